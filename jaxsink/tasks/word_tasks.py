"""The word problems that models are trained on here: the short sums of the built-in models, and stories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from jaxsink.tasks import stories, task, vocabulary
from jaxsink.tasks.task import Problem, Split
from jaxsink.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class WordTask:
    """An endless series of problems, of two splits, and how they become tokens.

    prompt    positions of the question, bos included
    response  positions of the answer, at least one eos included
    make      (split, seed, index) -> a problem of the series
    problems  (split, total, seed) -> the first of the series, none twice
    spread    (split, total, seed) -> numbers of problems as different as can be
    tokenizer makes or reads it
    about     what they are, for the card of a model
    """

    name: str
    prompt: int
    response: int
    make: Callable[[Split, int, int], Problem]
    problems: Callable[[Split, int, int], list[Problem]]
    spread: Callable[[Split, int, int], Sequence[int]]
    tokenizer: Callable[[], Tokenizer]
    about: Callable[[], str]

    @property
    def length(self) -> int:
        return self.prompt + self.response


@cache
def story_tokenizer() -> Tokenizer:
    return vocabulary.word_tokenizer(vocabulary.pieces(stories.wordings(), stories.LARGEST))


def one_by_one(split: Split, total: int, seed: int) -> Sequence[int]:
    """Stories are all different."""
    return range(total)


SUMS = WordTask("task", 32, 32, task.make_problem, task.problems, task.spread_out, vocabulary.tokenizer, task.about)
STORIES = WordTask(
    "stories", 64, 64, stories.make_problem, stories.problems, one_by_one, story_tokenizer, stories.about
)
WORD_TASKS = (SUMS, STORIES)


def task_of(vocab: int) -> WordTask | None:
    """The one whose words a model of so many tokens knows."""
    return next((one for one in WORD_TASKS if one.tokenizer().size == vocab), None)
