"""What arXiv 2510.15731 prints in its Tables 1 and 2, as data, and how to test a result of ours against it.

Everything else that quotes these numbers (settings, tables, experiments, tests of the README) takes them from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

COUNTS = (0, 1, 5, 10)  # K: the top-K sinks of every head are masked
QUESTIONS = {"gsm8k": 1319, "humaneval": 164, "mbpp": 500}  # of the whole test splits

# Name of the setting (jaxsink.evals.settings): accuracy in per cent for each K. The paper prints two decimals of a share.
TABLE1: Mapping[str, tuple[int, int, int, int]] = {
    "dream-7b-instruct/gsm8k/study": (82, 79, 78, 75),
    "llada-8b-instruct/gsm8k/study": (76, 75, 73, 55),
    "mmada-8b-mixcot/gsm8k/study": (54, 53, 54, 37),
    "llama-3.1-8b-instruct/gsm8k/study": (85, 2, 2, 1),
    "dream-7b-instruct/humaneval/study": (60, 64, 61, 57),
    "llada-8b-instruct/humaneval/study": (37, 37, 39, 35),
    "mmada-8b-mixcot/humaneval/study": (16, 16, 18, 9),
    "llama-3.1-8b-instruct/humaneval/study": (66, 0, 0, 0),
}
STEP = 1.0  # per cent between two figures that the paper can print

# First part of a setting's name: the five most frequent sink tokens and their share of all sinks (30 generations).
TABLE2: Mapping[str, tuple[tuple[str, float], ...]] = {
    "llada-8b-instruct": (("newline", 0.368), ("mask", 0.366), (".", 0.050), ("start_header", 0.008), ("space", 0.008)),
    "dream-7b-instruct": (("mask", 0.321), ("newline", 0.090), (".", 0.046), (",", 0.044), ("endoftext", 0.040)),
    "mmada-8b-mixcot": (
        ("newline", 0.180),
        ("mask", 0.166),
        ("end_header", 0.160),
        ("startoftext", 0.108),
        ("istant", 0.066),
    ),
}


@dataclass(frozen=True)
class Published:
    """An accuracy in per cent as somebody printed it, rounded to multiples of `step`, over `total` questions."""

    percent: float
    total: int
    step: float

    def p(self, right: int, total: int) -> float:
        """Two-sided p of `right` out of `total` being as good as this: Fisher's exact test of two proportions.

        Of the counts that round to the printed figure the one nearest to ours is taken, so that rounding alone is never a
        difference. Both sides answered the same questions, but which ones they solved was not published; without the
        pairs the test is conservative: it may miss a difference, it does not invent one.
        """
        from jaxsink.evals.statistics import (
            fisher,  # settings take figures from here, and are read where NumPy is not needed
        )

        return fisher(right, total, self.count_near(right / total), self.total)

    def count_near(self, share: float) -> int:
        """The number of right answers that rounds to the printed figure and is nearest to a share."""
        slack = 1e-9
        low = math.ceil((self.percent - self.step / 2) / 100 * self.total - slack)
        high = math.floor((self.percent + self.step / 2) / 100 * self.total + slack)
        if low > high:  # no count gives this figure: it was rounded otherwise
            low = high = round(self.percent / 100 * self.total)
        return min(max(round(share * self.total), low, 0), high, self.total)


def published(setting: str, k: int, reported: float | None = None) -> Published | None:
    """What is known of a setting with its top-K sinks masked: the paper's figure, else (K = 0) the authors' `reported`."""
    benchmark = setting.split("/")[1] if "/" in setting else ""
    if setting in TABLE1:
        if k not in COUNTS:
            return None
        return Published(TABLE1[setting][COUNTS.index(k)], QUESTIONS[benchmark], STEP)
    if reported is None or k != 0 or benchmark not in QUESTIONS:
        return None
    return Published(reported, QUESTIONS[benchmark], 0.1)
