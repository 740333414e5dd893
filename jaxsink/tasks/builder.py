"""The built-in task as a TFDS dataset, like the real ones; needs no TensorFlow.

    builder = WordProblems(data_dir=..., file_format="array_record")
    builder.download_and_prepare()
    builder.as_data_source("test")[0]    # {"question": b"...", "answer": b"...", "template": b"...", "result": 11}

Problems are in the order in which `task.problems` makes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast, get_args

import numpy as np
import tensorflow_datasets as tfds

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.tasks.task import Split, problems

Record = tuple[int, JsonObject]
"""An example with its number."""

SIZES: Mapping[Split, int] = {"train": 20_000, "test": 2_000}


class WordProblems(tfds.core.GeneratorBasedBuilder):
    """Grade-school word problems with step-by-step answers, generated from a seed."""

    name = "jaxsink_word_problems"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "question": tfds.features.Text(),
            "answer": tfds.features.Text(),
            "template": tfds.features.Text(),
            "result": tfds.features.Scalar(dtype=np.int32),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description=self.__doc__,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=None,
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator[Record]]:
        return {split: self._generate_examples(split) for split in get_args(Split)}

    def _generate_examples(self, split: Split) -> Iterator[Record]:
        for index, problem in enumerate(problems(split, SIZES[split])):
            yield (
                index,
                {
                    "question": problem.question,
                    "answer": problem.answer.removeprefix("\n"),
                    "template": problem.template,
                    "result": problem.result,
                },
            )


def word_problems(data_dir: str | os.PathLike[str], split: Split) -> Sequence[JsonObject]:
    """A split as a random-access source; written to `data_dir` on first use."""
    builder = WordProblems(data_dir=os.fspath(data_dir), file_format="array_record")
    builder.download_and_prepare()
    return cast(Any, builder).as_data_source(split)
