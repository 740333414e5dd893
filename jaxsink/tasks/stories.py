"""Stories: word problems put together from an opening, two to four events and a question, in thousands of wordings.

    Mia has 3 bags with 4 eggs in each bag. Tom gives Mia 5 eggs. She sells 6 of them. How many eggs does Mia have now?
    The bags hold 3 * 4 = 12 eggs.
    Mia has 12 + 5 = 17 eggs.
    Mia has 17 - 6 = 11 eggs.
    #### 11

A tenth of the wordings (opening and events) is held out, and of the others a tenth of the numbers: the test asks in ways and
for sums that training never saw together. No problem is asked twice; each is a cluster of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, product
from random import Random

from jaxsink.tasks.task import (
    ALL_THINGS,
    BOXES,
    NAMES,
    TEST_SHARE,
    THINGS,
    Problem,
    Split,
    Step,
    Template,
    render,
    words_of,
)

LARGEST = 20  # no number, given or computed, is larger
EVENTS = (2, 3, 4)
GIVEN, COMPUTED = "abcdefgh", "pqrstuvwxyz"  # letters of numbers that a story states, and of results
MORE, FEWER, SIZE = (2, 9), (1, 9), (2, 6)  # numbers of an event; of boxes and what is in one
START = (2, LARGEST)
TRIES = 200  # numbers that are drawn for a wording before another one is


@dataclass(frozen=True)
class Part:
    """A sentence; {n} is its number, {m} a second one. sign: what it does to what was there; "*" brings n times m more."""

    text: str
    sign: str = ""


@dataclass(frozen=True)
class World:
    """Parts that fit each other. lead: of the lines of the answer."""

    name: str
    openings: tuple[Part, ...]
    events: tuple[Part, ...]
    questions: tuple[str, ...]
    lead: str


PERSON = World(
    "person",
    (
        Part("{name} has {n} {things}."),
        Part("{name} finds {n} {things} at home."),
        Part("{name} starts the day with {n} {things}."),
        Part("{name} buys {n} {things} for the party."),
        Part("{name} has {n} {boxes} with {m} {things} in each {box}.", "*"),
        Part("In the morning {name} gets {n} {boxes} with {m} {things} in each.", "*"),
    ),
    (
        Part("{he} buys {n} more {things}.", "+"),
        Part("{other} gives {name} {n} {things}.", "+"),
        Part("Then {he} finds {n} {things}.", "+"),
        Part("{he} wins {n} {things} in a game.", "+"),
        Part("Later {name} gets {n} more from {other}.", "+"),
        Part("{he} gives {n} {things} to {other}.", "-"),
        Part("{he} sells {n} of them.", "-"),
        Part("Then {name} loses {n} {things}.", "-"),
        Part("{other} takes {n} of the {things}.", "-"),
        Part("On the way {n} {things} are lost.", "-"),
        Part("{he} buys {n} {boxes} with {m} {things} in each {box}.", "*"),
    ),
    (
        "How many {things} does {name} have now?",
        "How many {things} does {name} have in the end?",
        "How many {things} are left?",
    ),
    "{name} has",
)
PLACE = World(
    "place",
    (
        Part("There are {n} {things} in a shop."),
        Part("A shop has {n} {things}."),
        Part("In the morning {n} {things} are in a shop."),
        Part("A shop has {n} {boxes} with {m} {things} in each {box}.", "*"),
    ),
    (
        Part("{name} brings {n} more {things}.", "+"),
        Part("Then {n} {things} arrive.", "+"),
        Part("Later {name} and {other} bring {n} more.", "+"),
        Part("{name} buys {n} {things}.", "-"),
        Part("Then {other} takes {n} of them.", "-"),
        Part("Later {n} {things} are sold.", "-"),
        Part("{name} gets {n} of the {things}.", "-"),
        Part("{name} brings {n} {boxes} with {m} {things} in each.", "*"),
    ),
    (
        "How many {things} are in the shop now?",
        "How many {things} are left in the shop?",
        "How many {things} does the shop have in the end?",
    ),
    "The shop has",
)
WORLDS = (PERSON, PLACE)
HOLD = "The {boxes} hold"


def compose(world: World, parts: tuple[Part, ...], question: str) -> Template:
    """The wording of an opening, events and a question. Its name has what a story is, apart from the question's words."""
    given, computed = iter(GIVEN), iter(COMPUTED)
    sentences, steps, ranges, have = [], [], {}, ""
    for number, part in enumerate(parts):
        n = next(given)
        ranges[n] = SIZE if part.sign == "*" else START if number == 0 else MORE if part.sign == "+" else FEWER
        sign, more = part.sign, n
        text = part.text.replace("{n}", f"{{{n}}}")
        if part.sign == "*":
            m, more, sign = next(given), next(computed), "+"
            ranges[m] = SIZE
            text = text.replace("{m}", f"{{{m}}}")
            steps.append(Step(HOLD, f"{n} * {m} = {more}", ALL_THINGS))
        if number == 0:
            have = more
        else:
            result = next(computed)
            steps.append(Step(world.lead, f"{have} {sign} {more} = {result}", ALL_THINGS))
            have = result
        sentences.append(text)
    name = " | ".join([world.name, *(part.text for part in parts)])
    return Template(name, " ".join([*sentences, question]), tuple(steps), ranges, LARGEST)


def draw_wording(random: Random) -> Template:
    """With boxes once at most: two products seldom stay below LARGEST."""
    world = random.choice(WORLDS)
    plain = [part for part in world.events if part.sign != "*"]
    parts = [random.choice(world.openings)]
    for _ in range(random.choice(EVENTS)):
        parts.append(random.choice(plain if any(part.sign == "*" for part in parts) else world.events))
    return compose(world, tuple(parts), random.choice(world.questions))


def held_out(*what: object) -> bool:
    return zlib.crc32(f"stories {what}".encode()) % TEST_SHARE == 0


def split_of(template: Template, numbers: tuple[int, ...]) -> Split:
    """The split that a story belongs to, in every version."""
    return "test" if held_out(template.name) or held_out(template.name, numbers) else "train"


def make_problem(split: Split, seed: int, index: int) -> Problem:
    """Problem number `index` of an endless series; the same arguments always give the same problem. Half of the test is in
    wordings that training never sees."""
    random = Random(f"stories {split} {seed} {index}")
    is_new = split == "test" and random.random() < 0.5
    template = draw_wording(random)
    while held_out(template.name) != is_new or (numbers := draw_numbers(random, template, split)) is None:
        template = draw_wording(random)
    names = tuple(random.sample(sorted(NAMES), 2))
    return render(template, numbers, names, random.choice(THINGS), random.choice(sorted(BOXES)))


def draw_numbers(random: Random, template: Template, split: Split) -> tuple[int, ...] | None:
    """Numbers that have an answer and belong to the split; None where none were found."""
    for _ in range(TRIES):
        numbers = tuple(random.randint(*template.ranges[letter]) for letter in template.given)
        if template.solve(numbers) is not None and split_of(template, numbers) == split:
            return numbers
    return None


def problems(split: Split, total: int, seed: int = 0) -> list[Problem]:
    """The first `total` problems of a series, none asked twice."""
    return list(islice(_distinct(split, seed), total))


def _distinct(split: Split, seed: int) -> Iterator[Problem]:
    seen = set()
    for index in count():
        problem = make_problem(split, seed, index)
        if problem.cluster not in seen:
            seen.add(problem.cluster)
            yield problem


def wordings() -> Iterator[str]:
    """Texts in which every word of every story occurs, at the beginning of a text or a line and within one."""
    names = sorted(NAMES)
    sentences = [part.text for world in WORLDS for part in (*world.openings, *world.events)]
    sentences += [text for world in WORLDS for text in (*world.questions, world.lead)]
    for turn, sentence in product(range(len(names)), (*sentences, HOLD, ALL_THINGS)):
        words = words_of((names[turn], names[turn - 1]), THINGS[turn % len(THINGS)], sorted(BOXES)[turn % len(BOXES)])
        text = sentence.format(n=2, m=2, **words)
        yield from (text, f" {text}")


def about() -> str:
    """For the card of a model."""
    parts = " and ".join(f"{len(world.openings)} openings with {len(world.events)} events" for world in WORLDS)
    return (
        f"{parts}, {EVENTS[0]} to {EVENTS[-1]} events in a story, numbers up to {LARGEST}. One wording in {TEST_SHARE} is "
        f"held out, and of the others one set of numbers in {TEST_SHARE}; each makes half of the test."
    )
