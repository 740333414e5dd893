"""Documents to train on and to score: text files, JSON lines, and TFDS datasets.

documents("input.txt")                                        # the whole file
documents("train.jsonl", template="{question}\\n{answer}")     # a document per line
documents("tfds:data/my_dataset/1.0.0", template="{text}")    # a dataset that TFDS has prepared, or can prepare by name
documents("folder")                                           # all .txt, .md and .jsonl files below it
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jaxsink.errors import JaxsinkError
from jaxsink.runs.files import refuse_special, user_path

TEMPLATE = "{text}"
SUFFIXES = (".txt", ".md", ".jsonl")
TFDS = "tfds:"


def documents(source: str, template: str = TEMPLATE) -> Iterator[str]:
    """The texts of a source. template: how a record's fields make a text."""
    if source.startswith(TFDS):
        yield from (filled(template, record, source) for record in dataset_records(source.removeprefix(TFDS)))
        return
    path = user_path(source)
    if not path.is_dir():
        yield from texts_of(path, template)
        return
    files = [file for file in sorted(path.rglob("*")) if file.suffix in SUFFIXES and file.is_file()]
    if not files:
        raise JaxsinkError(f"{path} holds no {', '.join(SUFFIXES)} file; give the files themselves.")
    for file in files:
        yield from texts_of(file, template)


def texts_of(path: Path, template: str = TEMPLATE) -> Iterator[str]:
    """The whole file, or of a .jsonl file a text for every line."""
    refuse_special(path)
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise JaxsinkError(f"cannot read the text {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise JaxsinkError(f"{path} is not text in UTF-8; convert it first.") from error
    if path.suffix != ".jsonl":
        yield content
        return
    for number, line in enumerate(content.splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise JaxsinkError(f"line {number} of {path} is not a JSON object; give one per line.") from error
        if not isinstance(record, dict):
            raise JaxsinkError(f"line {number} of {path} is not a JSON object; give one per line.")
        yield filled(template, record, f"line {number} of {path}")


def filled(template: str, record: Mapping[str, object], where: str) -> str:
    """The template with {field} replaced by the record's text."""

    def text(match: re.Match[str]) -> str:
        value = record.get(match[1])
        value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        if not isinstance(value, str):
            known = ", ".join(sorted(record)) or "none"
            raise JaxsinkError(
                f'{where} has no text "{match[1]}" (its fields: {known}); say how to read it (--template).'
            )
        return value

    return re.sub(r"\{(\w+)\}", text, template)


def dataset_records(name: str) -> Sequence[Mapping[str, object]]:
    """A split of a TFDS dataset, "name:split" or "directory:split"; "train" where none is named."""
    import tensorflow_datasets as tfds  # takes seconds, and few need it

    name, _, split = name.partition(":")
    folder = user_path(name)
    try:
        if folder.is_dir():
            builder = tfds.builder_from_directory(str(folder))
        else:
            builder = tfds.builder(name, file_format="array_record")
            builder.download_and_prepare()
        return cast(Any, builder).as_data_source(split or "train")
    except Exception as error:  # TFDS raises many kinds
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise JaxsinkError(
            f"TFDS cannot give {name} ({words[:200]}); prepare it first, and name its directory."
        ) from error
