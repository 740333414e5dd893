"""A model as far as it is known before its weights are read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jaxsink.checkpoints.load import describe_checkpoint
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.origin import Origin
from jaxsink.sampling.base import Sampler
from jaxsink.text.tokenizer import Tokenizer
from jaxsink.zoo.names import no_such_model
from jaxsink.zoo.recommend import recommended
from jaxsink.zoo.resolve import resolve

TALKS = {"instruct", "chat", "it", "sft", "dpo", "rl", "mixcot"}  # what names of models made for chats say


@dataclass(frozen=True)
class Found:
    """A checkpoint without its weights."""

    path: Path
    config: ModelConfig
    origin: Origin

    @classmethod
    def at(
        cls, model: str | os.PathLike[str], mask_id: int | None = None, ignore_settings: Iterable[str] = ()
    ) -> Found:
        path = resolve(model)
        if not path.exists():
            raise no_such_model(model)
        return cls(path, *describe_checkpoint(path, mask_id, ignore_settings))

    @property
    def sampler(self) -> Sampler:
        """The one that the checkpoint recommends."""
        return self.origin.sampler or recommended(self.config, self.origin.names)

    def tokenizer(self) -> Tokenizer:
        try:
            return Tokenizer.load(self.path, self.config.family)
        except JaxsinkError as error:
            raise JaxsinkError(f"{str(error).rstrip('.')}, or give token ids with --ids.") from error

    def prefers_chat(self, tokenizer: Tokenizer) -> bool:
        """Whether the model was made for chats, as far as names and files tell."""
        words = {word for name in self.origin.names for word in re.findall("[a-z]+", name.lower())}
        if tokenizer.template is None or "base" in words:
            return False
        return bool(words & TALKS) or tokenizer.brings_template
