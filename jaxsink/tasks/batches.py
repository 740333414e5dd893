"""Problems as token arrays of one shape, and the endless training series as a function of the step.

Every row is [padding, bos, question | answer, eos, eos …]: the question ends where the answer starts, at the same place
in all rows. The answer is filled up with eos, which a diffusion model has to write too (as in LLaDA's fine-tuning).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.tasks.task import Problem, make_problem
from jaxsink.tasks.vocabulary import tokenizer

PROMPT = 32  # places of the question, bos included
RESPONSE = 32  # places of the answer, at least one eos included
LENGTH = PROMPT + RESPONSE


class Batch(NamedTuple):
    tokens: np.ndarray  # i32[B,S]
    real: np.ndarray  # bool[B,S], False = padding on the left


def prompt_ids(problems: Sequence[Problem]) -> list[list[int]]:
    """What a model is asked: bos and the question."""
    return tokenizer().encode_batch([problem.question for problem in problems], add_special_tokens=True)


def answer_ids(problems: Sequence[Problem]) -> list[list[int]]:
    """What it is to write, without the end token."""
    return tokenizer().encode_batch([problem.answer for problem in problems])


def encode(problems: Sequence[Problem]) -> Batch:
    special = tokenizer().special
    tokens = np.full((len(problems), LENGTH), special["pad"], np.int32)
    tokens[:, PROMPT:] = special["eos"]
    for row, question, answer in zip(tokens, prompt_ids(problems), answer_ids(problems), strict=True):
        if len(question) > PROMPT or len(answer) >= RESPONSE:
            raise JaxsinkError(
                f"a problem of {len(question)} + {len(answer)} tokens does not fit {PROMPT} + {RESPONSE}."
            )
        row[PROMPT - len(question) : PROMPT] = question
        row[PROMPT : PROMPT + len(answer)] = answer
    return Batch(tokens, tokens != special["pad"])


def training_batch(step: int, size: int, seed: int) -> Batch:
    """The batch of a step: a run that was interrupted finds the same data as one that was not."""
    return encode([make_problem("train", seed, step * size + n) for n in range(size)])
