"""Problems as token arrays of one shape, and the endless training series as a function of the step.

Every sequence is [padding, bos, question | answer, eos, eos …]: the answer starts at the same position in all of them, and
is padded with eos, which a diffusion model has to write too (as in LLaDA's fine-tuning).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jaxsink.errors import JaxsinkError
from jaxsink.tasks.task import Problem, make_problem
from jaxsink.tasks.vocabulary import tokenizer

PROMPT = 32
"""Positions of the question, bos included."""

RESPONSE = 32
"""Positions of the answer, at least one eos included."""

LENGTH = PROMPT + RESPONSE


class Batch(NamedTuple):
    """Token ids, and which of them are real; False = padding, on the left."""

    tokens: Int[np.ndarray, "B S"]
    real: Bool[np.ndarray, "B S"]


def prompt_ids(problems: Sequence[Problem]) -> list[list[int]]:
    """What a model is asked: bos and the question."""
    return tokenizer().encode_batch([problem.question for problem in problems], add_special_tokens=True)


def answer_ids(problems: Sequence[Problem]) -> list[list[int]]:
    """What it is to write, without the end token."""
    return tokenizer().encode_batch([problem.answer for problem in problems])


def encode(problems: Sequence[Problem]) -> Batch:
    """Questions with their answers, as training data."""
    special = tokenizer().special
    tokens = np.full((len(problems), LENGTH), special["pad"], np.int32)
    tokens[:, PROMPT:] = special["eos"]
    for sequence, question, answer in zip(tokens, prompt_ids(problems), answer_ids(problems), strict=True):
        if len(question) > PROMPT or len(answer) >= RESPONSE:
            raise JaxsinkError(
                f"a problem of {len(question)} + {len(answer)} tokens does not fit {PROMPT} + {RESPONSE}."
            )
        sequence[PROMPT - len(question) : PROMPT] = question
        sequence[PROMPT : PROMPT + len(answer)] = answer
    return Batch(tokens, tokens != special["pad"])


def training_batch(step: int, size: int, seed: int) -> Batch:
    """The batch of a step: a run that was interrupted finds the same data as one that was not."""
    return encode([make_problem("train", seed, step * size + n) for n in range(size)])
