"""Writes a table of docs/sandbox.md from docs/harm.json: edits, flipped bits, wrong calls and interrupts, before and after.

    python docs/harm.py                       write the table anew
    python docs/harm.py --measure files       harm the files of a built-in model (tests/support/harm.py)
    python docs/harm.py --measure interrupts  interrupt training (tests/support/interrupts.py)
    python docs/harm.py --check               say whether the page is as it would be written

The part "before" of the results is what was counted when these were first tried, by other programs than these.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs")]

from sandbox import markdown  # noqa: E402
from support.harm import Outcomes, edits_of_the_manifest, flips  # noqa: E402
from support.interrupts import INTERRUPTS, interrupted  # noqa: E402

PAGE, RESULTS = ROOT / "docs" / "sandbox.md", ROOT / "docs" / "harm.json"
BEGIN, END = "<!-- table: written by docs/harm.py -->", "<!-- end of table -->"
FLIPS = {"weights/**/*": 200, "tokenizer*.json": 100, "jaxsink.json": 100}
Results = dict[str, Any]


def measured_files() -> Results:
    found: Results = {}
    with tempfile.TemporaryDirectory() as folder:
        found["edits"] = edits_of_the_manifest(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        found["fitted"] = edits_of_the_manifest(Path(folder), fits=True)
    for part, count in FLIPS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[part] = flips(Path(folder), part, count)
    return found


def measured_interrupts() -> Results:
    found = []
    for one in INTERRUPTS:
        with tempfile.TemporaryDirectory() as folder:
            found.append(interrupted(Path(folder), one)[1])
        print(json.dumps(found[-1]), flush=True)
    return {"interrupts": found}


def said(found: Outcomes) -> str:
    total = sum(found.values())
    parts = [f"{found.get('wrong', 0) + found.get('broken', 0)} of {total}"]
    for kind, words in {"harmless": "where nothing is read", "possible": "of a model that could be"}.items():
        if kind in found:
            parts.append(f"{found['refused']} refused, {found[kind]} {words}")
    return "; ".join(parts)


def rows() -> Iterator[list[str]]:
    """What was done, what came of it before, and now: how many went wrong."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    before, after = results["before"], results["after"]
    yield ["edits of a field of jaxsink.json", before["edits"], said(after["edits"])]
    yield ["the same with a checksum that fits", "there was none", said(after["fitted"])]
    names = {"weights/**/*": "weights", "tokenizer*.json": "the tokenizer", "jaxsink.json": "jaxsink.json"}
    for part, name in names.items():
        yield [f"one bit flipped in {name}", before[part], said(after[part])]
    calls = after["calls"]
    yield [
        "calls of the public API with arguments that cannot be",
        before["calls"],
        f"{calls['wrong']} of {calls['not admitted']}; {calls['admitted']} more values fit the annotation",
    ]
    ends = after["interrupts"]
    bad = [one for one in ends if one["code"] != 130 or one["traceback"] or not one["kept"]]
    yield ["Ctrl-C in `jaxsink train`", before["interrupts"], f"{len(bad)} of {len(ends)}"]


def page() -> str:
    """The page with its table written anew."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    table = markdown(["what", "went wrong before", "now"], rows())
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.split(END)[1]}"


def measure(what: str) -> None:
    found = {"files": measured_files, "interrupts": measured_interrupts}[what]()
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    kept["after"] |= found
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if "--measure" in sys.argv:
        measure(sys.argv[sys.argv.index("--measure") + 1])
    elif "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
