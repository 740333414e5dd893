"""Writes the tables of docs/sandbox.md from docs/sandbox.json, which has what came of each attack on the sandbox.

    python docs/sandbox.py             write the page anew
    python docs/sandbox.py --measure   run all attacks first (tests/support/attacks), as root: all users can then be had;
                                       names of users after it leave the others as they are
    python docs/sandbox.py --check     say whether the page is as it would be written

The part "before" of the results is of the sandbox as it was before it was attacked, measured once with the same attacks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.attacks.measure import ENDS  # noqa: E402
from support.attacks.programs import GROUPS  # noqa: E402
from support.attacks.users import measured, users  # noqa: E402

from jaxsink.sandbox.levels import LEVELS  # noqa: E402

PAGE, RESULTS = ROOT / "docs" / "sandbox.md", ROOT / "docs" / "sandbox.json"
BEGIN, END = "<!-- tables: written by docs/sandbox.py -->", "<!-- end of tables -->"
COLUMNS = list(product(LEVELS, ("root", "root in a container", "user")))
TITLES = {
    "verdict": "A verdict that the checks did not give",
    "processes": "Other processes, and processes of its own",
    "files": "Files and devices",
    "memory": "Memory and time",
    "network": "Network",
    "traces": "Traces for the next program, and secrets of the run",
    "privileges": "Privileges and the kernel",
    "ends": "Processes left when the run is ended",
}
Results = dict[str, Any]


@cache
def results() -> Results:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def groups() -> dict[str, list[str]]:
    return {**{group: list(bodies) for group, bodies in GROUPS.items()}, "ends": list(ENDS)}


def markdown(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(columns), ["---"] * len(list(columns)), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def counts() -> str:
    """How many attacks got something."""

    def rows() -> Iterator[list[str]]:
        for level, user in COLUMNS:
            columns = [results()[when][level].get(user, {}).values() for when in ("before", "after")]
            fell = (f"{sum(not held for held, _ in one)} of {len(one)}" if one else "not tried" for one in columns)
            yield [level, user, *fell]

    return markdown(["level", "jaxsink runs as", "got something before", "now"], rows())


def cell(level: str, user: str, name: str) -> str:
    """What comes of an attack, and what came of it before if it got something then."""
    _, words = results()["after"][level][user][name]
    held, past = results()["before"][level].get(user, {}).get(name, (True, ""))
    return words if held else f"{words} (was: {past})"


def table(names: list[str]) -> str:
    rows = ([name, *(cell(level, user, name) for level, user in COLUMNS)] for name in names)
    return markdown(["attack", *(f"{level}, {user}" for level, user in COLUMNS)], rows)


def page() -> str:
    """The page with its tables written anew."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    parts = [counts(), *(f"### {TITLES[group]}\n\n{table(names)}" for group, names in groups().items())]
    return before + BEGIN + "\n\n" + "\n\n".join(parts) + "\n\n" + END + rest.split(END)[1]


def measure() -> None:
    """Run all attacks, or those of users that are named, each in a process of its own, and keep what came of them."""
    chosen = sys.argv[sys.argv.index("--measure") + 1 :]
    found: Results = results()["after"]
    for level in LEVELS:
        for user in users():
            if not chosen or user.name in chosen:
                found[level][user.name] = measured(level, user, quick=False)
    kept = {**results(), "after": found}
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    results.cache_clear()


if __name__ == "__main__":
    if "--measure" in sys.argv:
        measure()
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
