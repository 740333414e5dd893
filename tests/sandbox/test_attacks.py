"""Every attack, at every level, as root and as somebody without rights: none gets anything."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from support.attacks.measure import ENDS, Outcome
from support.attacks.programs import ATTACKS
from support.attacks.users import User, measured, python_for, seen, users
from support.levels import EVERY_LEVEL, need, offered

from jaxsink.sandbox.levels import LEVELS, Level

COMMITTED = Path(__file__).parents[2] / "docs" / "sandbox.json"
pytestmark = pytest.mark.skipif(
    not EVERY_LEVEL and (sys.platform != "linux" or python_for(users()[-1]) is None),
    reason="needs Linux, and a Python that an unprivileged user may start",
)


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], dict[str, Outcome]]:
    """By level and user; all at once, since most of the time is waiting."""
    wanted = [(level, user) for level, user in product(LEVELS, users()) if offered(level)]
    with ThreadPoolExecutor(len(wanted) or 1) as pool:
        found = pool.map(lambda pair: measured(*pair, quick=True), wanted)
        return {(level, user.name): one for (level, user), one in zip(wanted, found, strict=True)}


@pytest.mark.parametrize("user", [user.name for user in users()])
@pytest.mark.parametrize("level", LEVELS)
def test_no_attack_gets_anything(level: Level, user: str, outcomes: dict[tuple[str, str], dict[str, Outcome]]) -> None:
    need(level)
    found = outcomes[level, user]
    assert set(found) == {*ATTACKS, *ENDS}
    assert {name: words for name, (held, words) in found.items() if not held} == {}


@pytest.mark.parametrize("user", users(), ids=lambda user: user.name)
@pytest.mark.parametrize("level", LEVELS)
def test_all_that_holds_a_program_is_in_place(level: Level, user: User) -> None:
    """Seen from outside, while it runs; the two sides share nothing."""
    need(level)
    found = seen(level, user)
    first, second = found.pop("sockets")
    assert len(first) == len(second) == 1 and first != second
    assert found == {
        "processes": 0,  # more than there should be
        "sessions": 0,
        "users": [65533, 65534] if user.number == 0 else [user.number] * 2,
        "capabilities": ["0" * 16] * 6,
        "no new privileges": ["1"] * 2,
        "owners of /proc/PID": [0, 0],  # so that others of the same user cannot look in
    }


def test_the_results_on_the_page_are_of_these_attacks() -> None:
    """And the page has none that fell; docs/sandbox.py writes both."""
    committed = json.loads(COMMITTED.read_text(encoding="utf-8"))
    columns = [
        committed[when][level][user] for when, level, user in product(("before", "after"), LEVELS, ("root", "user"))
    ]
    assert all(set(column) == {*ATTACKS, *ENDS} for column in columns)
    assert all(held for column in columns[4:] for held, _ in column.values())
    assert sum(not held for column in columns[:4] for held, _ in column.values()) > 100
