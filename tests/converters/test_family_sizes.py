"""The table of family files in CONTRIBUTING.md, and how long such a file may be."""

from __future__ import annotations

import re

from jaxsink_converters.families import FAMILIES
from support.paths import ROOT

FOLDER = ROOT / "converters" / "families"
LONGEST, NEAR = 130, 10  # lines of a file; lines by which the table may be out of date


def test_each_family_file_is_listed_and_short() -> None:
    """Prints the table as it should be."""
    found = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in FOLDER.glob("[!_]*.py")}
    homes = {family.name: family.configure.__module__.rsplit(".", 1)[-1] for family in FAMILIES}
    names = {stem: [name for name, home in homes.items() if home == stem] for stem in found}
    for stem in sorted(found):
        print(f"| `{stem}.py` | {', '.join(names[stem]) or 'shared'} | {found[stem]} |")
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("<!-- families -->")[2].partition("<!-- end of families -->")[0]
    rows = re.findall(r"^\| `(\w+)\.py` \| (.*?) \| (\d+) \|$", table, re.MULTILINE)
    assert [(stem, told) for stem, told, _ in rows] == [(s, ", ".join(names[s]) or "shared") for s in sorted(found)]
    assert all(abs(found[stem] - int(lines)) <= NEAR for stem, _, lines in rows)
    assert max(found.values()) <= LONGEST
