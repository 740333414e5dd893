"""What a run trains on: the built-in word problems, or packed text. A step's batch follows from its number alone."""

from __future__ import annotations

import abc
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.load import copy_tokenizer
from jaxsink.errors import JaxsinkError
from jaxsink.nn.origin import Origin
from jaxsink.runs.files import read_json, user_path
from jaxsink.runs.progress import stage
from jaxsink.tasks.batches import Batch, encode, training_batch
from jaxsink.tasks.corpus import TEMPLATE, documents
from jaxsink.tasks.packing import VALIDATION, Stream, join, occurring
from jaxsink.tasks.word_tasks import SUMS, WORD_TASKS, WordTask
from jaxsink.text.new_tokenizer import is_new, new_tokenizer, rewrite_with_first, save_tokenizer
from jaxsink.text.tokenizer import Tokenizer

TASKS = {task.name: task for task in WORD_TASKS}
"""Word problems by the name under which they are data."""


class TrainingData(abc.ABC):
    """Batches of sequences of one length."""

    length: int
    prompt: int = 0  # positions before an answer begins; plain text has none
    tokenizer: Tokenizer

    @property
    @abc.abstractmethod
    def facts(self) -> JsonObject:
        """What must be the same for a run to go on."""

    @abc.abstractmethod
    def batch(self, step: int, size: int, seed: int) -> Batch:
        """What a step trains on."""

    @abc.abstractmethod
    def validation(self, count: int) -> Batch:
        """At most so many sequences that training never sees, always the same."""

    @abc.abstractmethod
    def write_tokenizer(self, folder: Path) -> None:
        """The files that the model's tokenizer is read from."""


class TaskData(TrainingData):
    """Word problems, all drawn anew."""

    def __init__(self, task: WordTask = SUMS) -> None:
        self.task = task
        self.length, self.prompt, self.tokenizer = task.length, task.prompt, task.tokenizer()

    @property
    def facts(self) -> JsonObject:
        return {"source": self.task.name}

    def batch(self, step: int, size: int, seed: int) -> Batch:
        return training_batch(step, size, seed, self.task)

    def validation(self, count: int) -> Batch:
        return encode(self.task.problems("test", count, 0), self.task)

    def write_tokenizer(self, folder: Path) -> None:
        save_tokenizer(self.tokenizer, folder)


@dataclass(frozen=True)
class TextData(TrainingData):
    """Windows of packed text. origin: of the checkpoint whose tokenizer is used; its files are copied."""

    train: Stream
    held_out: Stream
    length: int
    tokenizer: Tokenizer
    sources: tuple[str, ...]
    origin: Origin | None = None

    @property
    def facts(self) -> JsonObject:
        return {
            "sources": list(self.sources),
            "length": self.length,
            "tokens": len(self.train.tokens),
            "digest": self.train.digest(),
        }

    def batch(self, step: int, size: int, seed: int) -> Batch:
        return self.train.draw(step, size, seed, self.length)

    def validation(self, count: int) -> Batch:
        return self.held_out.side_by_side(count, self.length)

    def write_tokenizer(self, folder: Path) -> None:
        if self.origin is None:
            save_tokenizer(self.tokenizer, folder)
            return
        copy_tokenizer(self.origin, folder)
        if self.train.first is not None:
            rewrite_with_first(folder, self.train.first)
        mask = self.tokenizer.special.get("mask")
        if mask is not None:
            path = folder / "tokenizer_config.json"
            known = read_json(path) if path.is_file() else {}
            known["mask_token"] = self.tokenizer.backend.id_to_token(mask)
            path.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")

    def unused_special(self) -> int | None:
        """A special token that plays no part and that the text does not have: fit to be the mask."""
        seen = occurring(self.train, self.tokenizer.size)
        added = self.tokenizer.backend.get_added_tokens_decoder()
        taken = {*self.tokenizer.special.values()}
        return next((n for n, token in sorted(added.items()) if token.special and n not in taken and not seen[n]), None)


@dataclass(frozen=True)
class DataSettings:
    """sources: see jaxsink.tasks.corpus. tokenizer: "characters", "bpe:N", or a checkpoint that has one; None: the
    model's own. length: of a sequence. bos: every window begins with it, if the tokenizer has one."""

    sources: tuple[str, ...]
    template: str = TEMPLATE
    tokenizer: str | None = None
    length: int = 256
    validation: float = VALIDATION
    bos: bool = True

    def check(self) -> None:
        if self.length < 2:
            raise JaxsinkError(f"training: a sequence needs two tokens or more, not {self.length} (--length).")
        if not 0 < self.validation < 1:
            raise JaxsinkError(f"training: validation is a part of the data, between 0 and 1, not {self.validation}.")


def text_data(settings: DataSettings, own: Tokenizer | None = None, origin: Origin | None = None) -> TextData:
    """Read, tokenize and pack. own: the tokenizer of the model that is trained, where its origin has one."""
    settings.check()
    with stage("reading the data", detail=", ".join(settings.sources)):
        texts = [text for source in settings.sources for text in documents(source, settings.template)]
    tokenizer, origin = choose_tokenizer(settings.tokenizer, texts, own, origin)
    with stage("tokenizing"):
        ids = tokenizer.encode_batch(texts)
    special = tokenizer.special
    stream = join(ids, special.get("eos"), special.get("bos") if settings.bos else None)
    train, held_out = stream.split(settings.length, settings.validation)
    return TextData(train, held_out, settings.length, tokenizer, settings.sources, origin)


def choose_tokenizer(
    name: str | None, texts: Sequence[str], own: Tokenizer | None, origin: Origin | None
) -> tuple[Tokenizer, Origin | None]:
    """(the tokenizer, where its files are if it is a checkpoint's)."""
    if name is not None and is_new(name):
        return new_tokenizer(name, texts), None
    if name is not None:
        return Tokenizer.load(name), Origin(place=str(user_path(name).absolute()))
    if own is None:
        raise JaxsinkError(
            "training: the model brings no tokenizer; name one (--tokenizer characters, bpe:4096, or a checkpoint)."
        )
    return own, origin
