"""Who is studied: a model, how it writes, and what it is asked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import numpy as np
from jax.sharding import Mesh

from jaxsink.checkpoints.load import load, sampler_for
from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.fingerprint import fingerprint
from jaxsink.nn.new_model import abstract
from jaxsink.nn.quantization import INT8, weights_dtype
from jaxsink.nn.transformer import Model
from jaxsink.runs.files import user_path
from jaxsink.sampling.base import Sampler
from jaxsink.sinks.tokens import kind_table
from jaxsink.study.planted import static_sinks
from jaxsink.study.prompts import Prompts, TextWindows
from jaxsink.tasks.exam import Exam, chat_exam, task_exam
from jaxsink.tasks.word_tasks import SUMS, task_of
from jaxsink.text.tokenizer import Tokenizer
from jaxsink.training.start import small_model
from jaxsink.zoo.builtin import BUILTIN
from jaxsink.zoo.resolve import NAMES

PLANTED, UNTRAINED = "planted", "untrained:"
OWN_SEED = 1
"""Of a subject that is untrained; those that it is held against have others."""


@dataclass(frozen=True)
class Subject:
    """A model with its tokenizer, sampler and questions.

    Attributes:
        name: of the model, in tables
        model: what is asked
        tokenizer: its own
        sampler: with which it answers
        chats: questions go through its chat template
        prompts: what it is asked; None: the study's word problems
        tokens: that it writes; None: as the sampler has it

    Examples:
        >>> one = jaxsink.study.subject("mini-dream")
        >>> one.name, one.is_diffusion
        ('mini-dream', True)
        >>> one.mask_id == one.model.config.mask_id, one.graded, one.answered
        (True, True, True)
        >>> one.writing(tokens=8).sampler.response_length, len(one.exam(total=3, seed=0).questions)
        (8, 3)
        >>> one.kinds.shape, len(one.fingerprint)  # the kind of each token; a digest of weights and configuration
        ((107,), 64)
    """

    name: str
    model: Model
    tokenizer: Tokenizer
    sampler: Sampler
    chats: bool  # asked through its chat template
    prompts: Prompts | TextWindows | None = None  # None: the built-in word problems
    tokens: int | None = None  # the most of an answer that are scored; None: all

    @property
    def is_diffusion(self) -> bool:
        return self.model.config.is_diffusion

    @property
    def mask_id(self) -> int | None:
        """The token that it fills; None for one that writes token by token, which a mask of its weights does not change."""
        return self.model.config.mask_id if self.is_diffusion else None

    @cached_property
    def kinds(self) -> np.ndarray:
        return kind_table(self.tokenizer, self.model.config)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.model)

    @property
    def graded(self) -> bool:
        """Its answers can be told right or wrong."""
        return self.prompts is None or self.prompts.graded

    @property
    def answered(self) -> bool:
        """Its prompts have answers whose likelihood can be told."""
        return self.prompts is None or self.prompts.answered

    def writing(self, tokens: int | None = None, cache: str | None = None) -> Subject:
        """The same subject with responses of so many tokens, of which given answers have no more either; and with a sampler
        that keeps keys and values (LLaDA's, Dream's)."""
        sampler = self.sampler if tokens is None else self.sampler.with_length(tokens)
        if cache is not None and self.is_diffusion:
            if "cache" not in sampler.settings():
                raise JaxsinkError(f"--cache {cache}: {type(sampler).__name__}, which {self.name} uses, has no cache.")
            sampler = sampler.with_settings({"cache": cache})
            sampler.check(self.model.config)
        return replace(self, sampler=sampler, tokens=tokens)

    def exam(self, total: int, seed: int) -> Exam:
        """Questions, the same for every subject; of the built-in problems held-out ones, as different as can be."""
        exam = self._exam(total, seed)
        return replace(exam, questions=tuple(replace(q, gold=q.gold[: self.tokens]) for q in exam.questions))

    def _exam(self, total: int, seed: int) -> Exam:
        if self.prompts is not None:
            return self.prompts.exam(self.tokenizer, self.sampler, self.chats, total, seed)
        numbers = (task_of(self.model.config.vocab) or SUMS).spread("test", total, seed)
        if self.chats:
            return chat_exam(self.tokenizer, numbers, self.sampler, seed)
        return task_exam(self.model.config, numbers, self.sampler, seed)


def with_random_weights(subject: Subject, seed: int, name: str) -> Subject:
    """The same configuration, untrained: of the same type, and where the subject's weights lie, however large they are."""
    model, config = subject.model, subject.model.config
    leaves, treedef = jax.tree.flatten(model)
    if weights_dtype(model) == INT8:
        raise JaxsinkError(
            f"{subject.name} has int8 weights, and there are no random ones of that kind to hold it against; give "
            "--untrained 0, or weights of another type."
        )
    shardings = None
    if not model.is_unrolled:
        shardings = jax.tree.unflatten(jax.tree.structure(abstract(config)), [leaf.sharding for leaf in leaves])
    drawn = small_model(config, seed, shardings)
    found = jax.tree.leaves(drawn.unrolled() if model.is_unrolled else drawn)
    made = [new.astype(old.dtype) for new, old in zip(found, leaves, strict=True)]
    return replace(subject, name=name, model=jax.tree.unflatten(treedef, made))


def planted_subject() -> Subject:
    """Sinks on bos and on full stops."""
    entry, tokenizer = BUILTIN["mini-llada"], SUMS.tokenizer()
    stop = tokenizer.backend.token_to_id(".")
    assert entry.config.bos_id is not None and stop is not None
    model = static_sinks(entry.config.vocab, entry.config.bos_id, stop).unrolled()
    return Subject(PLANTED, model, tokenizer, entry.sampler, chats=False)


@checked()
def trained(run: str | os.PathLike[str], checkpoint: str | None = None) -> Subject:
    """The model of a training run, or one of its checkpoints along the way.

    Args:
        run: the directory of `jaxsink train --out RUN`
        checkpoint: its name; None: the last one

    Examples:
        >>> Path("pens.txt").write_text("Ann has 3 pens and buys 2; how many?" * 200) > 0
        True
        >>> result = jaxsink.train("1x32x2", "pens", data="pens.txt", tokenizer="characters", steps=2, batch=8, length=16)
        >>> jaxsink.study.trained(Path("pens")).name
        'pens'
    """
    run = user_path(run)
    checkpoint_path = run / "model" if checkpoint is None else run / "checkpoints" / checkpoint
    if not checkpoint_path.is_dir():
        raise JaxsinkError(f"{run} holds no trained model; make one with `jaxsink train --out {run}`.")
    model = load(checkpoint_path, dtype="float32").unrolled()
    name = run.name if checkpoint is None else f"{run.name}@{checkpoint}"
    return Subject(name, model, model.tokenizer, sampler_for(model), chats=False)


@checked(mask_id=at_least(0))
def subject(
    name: str, mesh: Mesh | None = None, mask_id: int | None = None, ignore_settings: Sequence[str] = ()
) -> Subject:
    """A built-in model by name, or any checkpoint by path; asked through its chat template, if it has one.

    "untrained:NAME" is a built-in model with random weights, in which a study must find nothing; "planted" one whose sinks
    are known.

    Args:
        name: as for `load`
        mesh: devices that it is cut over
        mask_id: as for `load`
        ignore_settings: as for `load`

    Examples:
        >>> one = jaxsink.study.subject("mini-dream")
        >>> one.name, one.is_diffusion
        ('mini-dream', True)
    """
    if name == PLANTED:
        return planted_subject()
    if name.startswith(UNTRAINED):
        return with_random_weights(subject(name.removeprefix(UNTRAINED)), OWN_SEED, name)
    if name in NAMES:
        model = load(name).unrolled()
        return Subject(name, model, SUMS.tokenizer(), sampler_for(model), chats=False)
    model = load(name, mesh=mesh, mask_id=mask_id, ignore_settings=ignore_settings)
    short = str(name).rstrip("/").rsplit("/", 1)[-1]
    tokenizer, sampler = model.tokenizer, sampler_for(model)
    if sampler.is_autoregressive:  # what a study asks beside generations is asked under the same pattern
        model = model.with_attention("causal")
    return Subject(short, model, tokenizer, sampler, chats=tokenizer.template is not None)
