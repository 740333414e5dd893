"""TFDS builders of the public benchmarks: its own of GSM8K, and ours of HumanEval and MBPP, which it does not have.

Each keeps the published order, checks what it downloads, and also takes a file that is already on the machine.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import requests
import tensorflow_datasets as tfds
from tensorflow_datasets.core.download.checksums import UrlInfo
from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
from tensorflow_datasets.core.download.util import DownloadError
from tensorflow_datasets.core.utils import Size
from tensorflow_datasets.text.gsm8k import gsm8k

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.errors import JaxsinkError
from jaxsink.runs.files import LARGEST_TEXT
from jaxsink.runs.progress import stage
from jaxsink.tasks.benchmarks import FILES, Benchmark, PublishedFile

Record = tuple[int, JsonObject]
"""An example with its number."""

MBPP_SPLITS = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974)}  # by task_id
GZIP_START = b"\x1f\x8b"
TIMEOUT = (5, 15)  # seconds, to connect and to wait for an answer


def _url_infos(files: tuple[PublishedFile, ...]) -> dict[str, UrlInfo]:
    """What TFDS compares a download with; its wheel leaves out even its own builders' checksums."""
    return {file.url: UrlInfo(Size(file.size), file.sha256, file.url.rsplit("/", 1)[-1]) for file in files}


class _FromOneFile(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A dataset of one file, downloaded or local, in the order of its lines."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, *, data_file: str | None = None, **options: Any) -> None:
        self.data_file = data_file
        super().__init__(**options)

    def ordered_info(self, features: tfds.features.FeatureConnector | None) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self, description=self.__doc__, features=features, supervised_keys=None, disable_shuffling=True
        )

    def path(self, dl_manager: tfds.download.DownloadManager, file: PublishedFile) -> str:
        return self.data_file or os.fspath(dl_manager.download(file.url))


class Gsm8kInOrder(_FromOneFile, gsm8k.Gsm8k):
    """TFDS's GSM8K, one configuration per published file; TFDS itself would shuffle it."""

    name = "jaxsink_gsm8k"
    VERSION = gsm8k.Gsm8k.VERSION
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=split) for file in FILES["gsm8k"] for split in file.splits]  # noqa: RUF012
    url_infos = _url_infos(FILES["gsm8k"])

    def _info(self) -> tfds.core.DatasetInfo:
        return self.ordered_info(super()._info().features)

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> JsonObject:
        assert self.builder_config is not None
        split = self.builder_config.name
        file = next(file for file in FILES["gsm8k"] if split in file.splits)
        path = self.path(dl_manager, file)
        check_file(path, ("question", "answer"))
        return {split: self._generate_examples(path)}


class HumanEval(_FromOneFile):
    """HumanEval: 164 Python functions to complete, each with its checks (Chen et al., 2021)."""

    name = "jaxsink_humaneval"
    url_infos = _url_infos(FILES["humaneval"])
    fields = ("task_id", "prompt", "entry_point", "canonical_solution", "test")

    def _info(self) -> tfds.core.DatasetInfo:
        return self.ordered_info(tfds.features.FeaturesDict({field: tfds.features.Text() for field in self.fields}))

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator[Record]]:
        return {"test": self._generate_examples(self.path(dl_manager, FILES["humaneval"][0]))}

    def _generate_examples(self, path: str) -> Iterator[Record]:
        for index, record in enumerate(read_records(path, self.fields)):
            yield index, {field: record[field] for field in self.fields}


class Mbpp(_FromOneFile):
    """MBPP: short Python programs from a sentence, each with three assertions (Austin et al., 2021)."""

    name = "jaxsink_mbpp"
    url_infos = _url_infos(FILES["mbpp"])
    fields = ("text", "code", "task_id", "test_setup_code", "test_list")

    def _info(self) -> tfds.core.DatasetInfo:
        texts = {field: tfds.features.Text() for field in ("text", "code", "test_setup_code")}
        tests = tfds.features.Sequence(tfds.features.Text())
        number = tfds.features.Scalar(dtype=np.int32)
        return self.ordered_info(tfds.features.FeaturesDict({**texts, "tests": tests, "task_id": number}))

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator[Record]]:
        path = self.path(dl_manager, FILES["mbpp"][0])
        numbers = [record["task_id"] for record in read_records(path, self.fields)]
        there = {name: span for name, span in MBPP_SPLITS.items() if any(span[0] <= n <= span[1] for n in numbers)}
        return {split: self._generate_examples(path, *span) for split, span in there.items()}

    def _generate_examples(self, path: str, first: int, last: int) -> Iterator[Record]:
        records = (one for one in read_records(path, self.fields) if first <= one["task_id"] <= last)
        for index, record in enumerate(records):
            texts = {field: record[field].replace("\r\n", "\n") for field in ("text", "code", "test_setup_code")}
            yield index, {**texts, "tests": record["test_list"], "task_id": record["task_id"]}


BUILDERS: Mapping[Benchmark, type[_FromOneFile]] = {"gsm8k": Gsm8kInOrder, "humaneval": HumanEval, "mbpp": Mbpp}


def prepared(
    name: Benchmark, split: str, data_file: str | os.PathLike[str] | None, data_dir: str | os.PathLike[str]
) -> Sequence[JsonObject]:
    """A split as a random-access source of records; written to `data_dir` on first use and only read afterwards."""
    options: JsonObject = {"config": split} if name == "gsm8k" else {}
    file = None if data_file is None else os.fspath(data_file)
    builder = BUILDERS[name](data_file=file, data_dir=os.fspath(data_dir), file_format="array_record", **options)
    settings = tfds.download.DownloadConfig(force_checksums_validation=True, num_shards=1)
    if file is None and not os.path.exists(builder.data_path):
        check_reachable(name, split)
    try:
        with stage(f"preparing {name}"):
            builder.download_and_prepare(download_config=settings)
    except NonMatchingChecksumError as error:
        raise JaxsinkError(
            f"the {name} file that was downloaded is not the published one (its SHA-256 differs); try again, or get the "
            "file by other means and name it (data_file)."
        ) from error
    except (DownloadError, OSError) as error:
        raise JaxsinkError(
            f"{name} could not be prepared in {data_dir} ({error}); check the network and the disk, or get "
            f"{', '.join(file.url for file in FILES[name])} by other means and name the file (data_file)."
        ) from error
    if split not in builder.info.splits:
        raise JaxsinkError(f"{file} has no question of the split {split!r} of {name}; give the whole published file.")
    return cast(Any, builder).as_data_source(split)


def check_reachable(name: Benchmark, split: str) -> None:
    """Ask for the file once: TFDS asks again and again for minutes, before it says that there is no network."""
    file = next(file for file in FILES[name] if split in file.splits)
    option = "--train-file" if name == "gsm8k" and split == "train" else "--data-file"
    try:
        with stage(f"asking for {name}"), requests.get(file.url, stream=True, timeout=TIMEOUT) as answer:
            reason = f"status {answer.status_code}" if answer.status_code >= 500 else ""
    except requests.RequestException as error:
        reason = "no answer" if isinstance(error, requests.Timeout) else "no connection"
    if reason:
        raise JaxsinkError(
            f"{name} is not on this machine, and it cannot be downloaded now ({reason}); get {file.url} by other means and "
            f"name the file with {option} (data_file=… in Python)."
        )


def check_file(path: str, fields: tuple[str, ...]) -> None:
    """Read a file to its end, only to see that it can be read."""
    for _ in read_records(path, fields):
        pass


def unpacked(raw: bytes) -> bytes:
    """What gzip packed; not more than such a file can have, whatever it claims."""
    with gzip.open(io.BytesIO(raw)) as file:
        found = file.read(LARGEST_TEXT + 1)
    if len(found) > LARGEST_TEXT:
        raise ValueError(f"it unpacks to more than {LARGEST_TEXT} bytes")
    return found


def read_records(path: str, fields: tuple[str, ...]) -> Iterator[JsonObject]:
    """The objects of a JSON-lines file, compressed or not."""
    raw = Path(path).read_bytes()
    number = 1
    try:
        text = (unpacked(raw) if raw.startswith(GZIP_START) else raw).decode()
        lines = text.removesuffix("\n").split("\n")  # splitlines would also cut at rarer marks inside a text
        for line in lines:
            record = json.loads(line)
            missing = [field for field in fields if field not in record]
            if missing:
                raise ValueError(f"no {missing[0]!r}")
            yield record
            number += 1
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise JaxsinkError(
            f"line {number} of {path} is not a record of this benchmark ({error}); give the published file."
        ) from error
