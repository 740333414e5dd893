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
from jaxsink.tasks.task import Problem
from jaxsink.tasks.word_tasks import SUMS, WordTask


class Batch(NamedTuple):
    """Token ids, and which of them are real; False = padding, on the left."""

    tokens: Int[np.ndarray, "B S"]
    real: Bool[np.ndarray, "B S"]


def prompt_ids(problems: Sequence[Problem], task: WordTask = SUMS) -> list[list[int]]:
    """What a model is asked: bos and the question."""
    return task.tokenizer().encode_batch([problem.question for problem in problems], add_special_tokens=True)


def answer_ids(problems: Sequence[Problem], task: WordTask = SUMS) -> list[list[int]]:
    """What it is to write, without the end token."""
    return task.tokenizer().encode_batch([problem.answer for problem in problems])


def encode(problems: Sequence[Problem], task: WordTask = SUMS) -> Batch:
    """Questions with their answers, as training data."""
    special, begin = task.tokenizer().special, task.prompt
    tokens = np.full((len(problems), task.length), special["pad"], np.int32)
    tokens[:, begin:] = special["eos"]
    given = zip(tokens, prompt_ids(problems, task), answer_ids(problems, task), strict=True)
    for sequence, question, answer in given:
        if len(question) > begin or len(answer) >= task.response:
            raise JaxsinkError(
                f"a problem of {len(question)} + {len(answer)} tokens does not fit {begin} + {task.response}."
            )
        sequence[begin - len(question) : begin] = question
        sequence[begin : begin + len(answer)] = answer
    return Batch(tokens, tokens != special["pad"])


def training_batch(step: int, size: int, seed: int, task: WordTask = SUMS) -> Batch:
    """The batch of a step: a run that was interrupted finds the same data as one that was not."""
    return encode([task.make("train", seed, step * size + n) for n in range(size)], task)
