"""Who is studied: a model, how it writes, what it is asked, and what counts as right."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jaxsink.checkpoints.load import load, sampler_for
from jaxsink.errors import JaxsinkError
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import Model
from jaxsink.sinks.tokens import kind_table
from jaxsink.tasks.batches import PROMPT, prompt_ids
from jaxsink.tasks.task import Problem, problems
from jaxsink.tasks.vocabulary import tokenizer as task_tokenizer
from jaxsink.text.tokenizer import Tokenizer
from jaxsink.zoo.resolve import NAMES

CHAT_PROMPT = 128  # positions for a question in a chat template


@dataclass(frozen=True)
class Subject:
    name: str
    model: Model
    tokenizer: Tokenizer
    sampler: Any
    chats: bool  # asked through its chat template
    pad_to: int

    @property
    def is_diffusion(self) -> bool:
        return self.model.config.is_diffusion

    @property
    def mapped_sampler(self) -> Any:
        """The sampler that records whole maps: an autoregressive one adds up all queries so far."""
        return self.sampler if self.is_diffusion else replace(self.sampler, whole_map=True)

    @cached_property
    def kinds(self) -> np.ndarray:
        return kind_table(self.tokenizer, self.model.config)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the model's configuration and weights."""
        digest = hashlib.sha256(repr(self.model.config).encode())
        for name, leaf in named_leaves(self.model)[0]:
            digest.update(name.encode())
            digest.update(np.asarray(leaf).tobytes())
        return digest.hexdigest()

    def prompts(self, asked: Sequence[Problem]) -> list[list[int]]:
        if not self.chats:
            return prompt_ids(asked)
        return [
            self.tokenizer.chat(f"{p.question} Think step by step, and end with #### and the number.") for p in asked
        ]

    def texts(self, response: np.ndarray) -> list[str]:
        """The text of each sequence, up to its first eos."""
        ends = np.isin(response, self.model.config.eos_ids)
        stop = np.where(ends.any(axis=1), ends.argmax(axis=1), response.shape[1])
        return [self.tokenizer.decode(ids[:length]) for ids, length in zip(response, stop, strict=True)]


def questions(count: int, seed: int = 0) -> list[Problem]:
    """Held-out problems, the same for every subject."""
    return problems("test", count, seed)


def trained(run: Path, checkpoint: str | None = None) -> Subject:
    """The model of a training run (`jaxsink train --out RUN`), or one of its checkpoints along the way."""
    if not (run / "run.json").is_file():
        raise JaxsinkError(f"{run} holds no training run; make one with `jaxsink train --out {run}`.")
    checkpoint_path = run / "model" if checkpoint is None else run / "checkpoints" / checkpoint
    model = load(checkpoint_path, dtype="float32").unrolled()
    name = run.name if checkpoint is None else f"{run.name}@{checkpoint}"
    return Subject(name, model, task_tokenizer(), sampler_for(model), chats=False, pad_to=PROMPT)


def subject(
    name: str, mesh: Mesh | None = None, mask_id: int | None = None, ignore_settings: Sequence[str] = ()
) -> Subject:
    """A built-in model by name, or any checkpoint by path (asked through its chat template), cut over a mesh."""
    if name in NAMES:
        model = load(name, dtype="float32").unrolled()
        return Subject(name, model, task_tokenizer(), sampler_for(model), chats=False, pad_to=PROMPT)
    model = load(name, mesh=mesh, mask_id=mask_id, ignore_settings=ignore_settings)
    short = str(name).rstrip("/").rsplit("/", 1)[-1]
    return Subject(short, model, model.tokenizer, sampler_for(model), chats=True, pad_to=CHAT_PROMPT)
