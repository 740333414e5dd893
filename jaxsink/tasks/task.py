"""Word problems in the manner of GSM8K, made from a seed: a question, one line per step, and `#### 42` at the end.

    Mia has 2 bags with 3 apples in each bag and 4 more apples on the table. How many apples does Mia have?
    The bags hold 2 * 3 = 6 apples.
    Mia has 6 + 4 = 10 apples.
    #### 10

A template fixes the wording and the sums; names, things and numbers vary. Which split a problem belongs to follows from
a hash of (template, numbers), so that no combination of the two is ever in both: the test asks for sums in a setting in
which these numbers were never seen.
"""

from __future__ import annotations

import operator
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count, islice
from random import Random
from typing import Literal

LARGEST = 12  # no number, given or computed, is larger
TEST_SHARE = 10  # one combination in this many is held out
POOL = 2000  # problems of a series among which those to ask are spread out
SALT = 2271  # with it every template has held-out combinations, and every single sum of theirs occurs in training
NAMES: dict[str, str] = dict.fromkeys(("Ben", "Jack", "Leo", "Max", "Sam", "Tom"), "He")
NAMES |= dict.fromkeys(("Ann", "Eva", "Kate", "Lily", "Mia", "Zoe"), "She")
THINGS = ("apples", "balls", "books", "cards", "cookies", "eggs", "flowers", "marbles", "pencils", "shells")
BOXES = {"boxes": "box", "bags": "bag", "baskets": "basket"}
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")


@dataclass(frozen=True)
class Step:
    """One line of an answer: `lead` a + b = x `unit`, with the sum in letters."""

    lead: str
    sum: str
    unit: str = ""

    @property
    def line(self) -> str:
        letters = [f"{{{part}}}" if part.isalpha() else part for part in self.sum.split()]
        return " ".join(part for part in (self.lead, *letters, self.unit) if part) + "."


@dataclass(frozen=True)
class Template:
    """A wording; `ranges` says from which numbers each letter is drawn, inclusive."""

    name: str
    question: str
    steps: tuple[Step, ...]
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    largest: int = LARGEST  # number, given or computed

    @property
    def given(self) -> tuple[str, ...]:
        """The letters that the question states, in the order in which they are drawn."""
        return tuple(sorted(set(re.findall(r"\{([a-h])\}", self.question))))

    def solve(self, numbers: tuple[int, ...]) -> dict[str, int] | None:
        """All letters, computed ones included; None where a result does not lie between 1 and `largest`."""
        values = dict(zip(self.given, numbers, strict=True))
        for step in self.steps:
            left, sign, right, _, result = step.sum.split()
            values[result] = OPERATIONS[sign](values[left], values[right])
            if not 1 <= values[result] <= self.largest:
                return None
        return values


@dataclass(frozen=True)
class Problem:
    template: str
    numbers: tuple[int, ...]  # those the question states
    question: str
    steps: tuple[str, ...]
    result: int

    @property
    def answer(self) -> str:
        """What follows the question: a line break, the steps, `#### result`."""
        return "".join(f"\n{line}" for line in (*self.steps, f"#### {self.result}"))

    @property
    def cluster(self) -> str:
        """Problems with the same sums in the same setting differ in names and things alone."""
        return f"{self.template} {' '.join(map(str, self.numbers))}"

    def score(self, text: str) -> bool:
        """Exact match of the number after `####`."""
        return extract(text) == self.result


ALL_THINGS = "{things}"
TEMPLATES: tuple[Template, ...] = (
    Template(
        "more",
        "{name} has {a} {things}. {he} buys {b} more {things}. How many {things} does {name} have now?",
        (Step("{name} has", "a + b = x", ALL_THINGS),),
        {"a": (2, LARGEST)},
    ),
    Template(
        "give",
        "{name} has {a} {things} and gives {b} {things} to {other}. How many {things} does {name} have left?",
        (Step("{name} has", "a - b = x", ALL_THINGS),),
        {"a": (3, LARGEST)},
    ),
    Template(
        "table",
        "{name} has {a} {boxes} with {b} {things} in each {box} and {c} more {things} on the table. "
        "How many {things} does {name} have?",
        (Step("The {boxes} hold", "a * b = x", ALL_THINGS), Step("{name} has", "x + c = y", ALL_THINGS)),
    ),
    Template(
        "change",
        "{name} buys {a} {things} for {b} dollars each and pays with {c} dollars. "
        "How many dollars does {name} get back?",
        (Step("The {things} cost", "a * b = x", "dollars"), Step("{name} gets", "c - x = y", "dollars")),
        {"c": (5, LARGEST)},
    ),
    Template(
        "bus",
        "A bus has {a} people. Then {b} get off, {c} get on and {d} get off. How many people are on the bus?",
        (Step("First:", "a - b = x"), Step("Next:", "x + c = y"), Step("Last:", "y - d = z")),
        {"a": (5, LARGEST)},
    ),
    Template(
        "buy",
        "{name} has {a} {things}. {he} buys {b} {boxes} with {c} {things} in each and gives {d} to {other}. "
        "How many {things} are left?",
        (Step("The {boxes} hold", "b * c = x"), Step("{name} has", "a + x = y"), Step("{name} keeps", "y - d = z")),
        {"b": (2, 6), "c": (2, 6)},
    ),
)


def split_of(template: str, numbers: tuple[int, ...]) -> Split:
    """The split that a combination belongs to, in every version."""
    return "test" if zlib.crc32(f"{SALT} {template} {numbers}".encode()) % TEST_SHARE == 0 else "train"


@cache
def combinations(name: str, split: Split) -> tuple[tuple[int, ...], ...]:
    """All numbers that have an answer in this template and belong to the split."""
    template = next(template for template in TEMPLATES if template.name == name)
    found: list[tuple[int, ...]] = [()]
    for letter in template.given:
        low, high = template.ranges.get(letter, (2, 9))
        found = [(*numbers, n) for numbers in found for n in range(low, high + 1)]
    return tuple(n for n in found if split_of(name, n) == split and template.solve(n) is not None)


def make_problem(split: Split, seed: int, index: int) -> Problem:
    """Problem number `index` of an endless series; the same arguments always give the same problem."""
    random = Random(f"{split} {seed} {index}")
    template = random.choice(TEMPLATES)
    numbers = random.choice(combinations(template.name, split))
    name, other, third = random.sample(sorted(NAMES), 3)
    return render(template, numbers, (name, other, third), random.choice(THINGS), random.choice(sorted(BOXES)))


def render(template: Template, numbers: tuple[int, ...], names: tuple[str, ...], things: str, boxes: str) -> Problem:
    values = template.solve(numbers)
    assert values is not None
    fill = {**words_of(names, things, boxes), **values}
    lines = tuple(step.line.format(**fill) for step in template.steps)
    last = template.steps[-1].sum.split()[-1]
    return Problem(template.name, numbers, template.question.format(**fill), lines, values[last])


def words_of(names: tuple[str, ...], things: str, boxes: str) -> dict[str, str]:
    """What stands for the words of a template."""
    words = dict(zip(("name", "other", "third"), names, strict=False))
    return words | {"he": NAMES[words["name"]], "things": things, "boxes": boxes, "box": BOXES[boxes]}


def problems(split: Split, total: int, seed: int = 0) -> list[Problem]:
    """The first `total` problems of a series, each question once."""
    return list(islice(_distinct(split, seed), total))


def spread_out(split: Split, total: int, seed: int = 0) -> list[int]:
    """Numbers of problems of a series in which clusters occur as evenly as can be: each once, then each twice, …

    The series itself repeats the few combinations of short templates again and again. More numbers begin with the same.
    """
    return list(_by_occurrence(split, -(-total // POOL) * POOL, seed)[:total])


@cache
def _by_occurrence(split: Split, pool: int, seed: int) -> tuple[int, ...]:
    seen, ranked = Counter[str](), []
    for number, problem in enumerate(problems(split, pool, seed)):
        ranked.append((seen[problem.cluster], number))
        seen[problem.cluster] += 1
    return tuple(number for _, number in sorted(ranked))


def _distinct(split: Split, seed: int) -> Iterator[Problem]:
    seen = set()
    for index in count():
        problem = make_problem(split, seed, index)
        if problem.question not in seen:
            seen.add(problem.question)
            yield problem


def about() -> str:
    """For the card of a model."""
    held, known = (sum(len(combinations(t.name, s)) for t in TEMPLATES for s in group) for group in (("test",), SPLITS))
    return (
        f"{len(TEMPLATES)} templates, one to three steps, numbers up to {LARGEST}. One combination of template and numbers "
        f"in {TEST_SHARE} is held out ({held} of {known}), so that no test problem differs from a training problem in names "
        "only."
    )


def extract(text: str) -> int | None:
    """The number after the first `####`; None where there is none."""
    found = re.search(r"####\s*(-?\d+)", text)
    return None if found is None else int(found[1])
