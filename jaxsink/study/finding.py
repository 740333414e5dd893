"""What an experiment says: the paper's finding, ours, whether it holds, and the tables and figures that show it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from jaxsink.runs.atomic import new_file

Verdict = Literal["holds", "holds partly", "does not hold", "not tested", "new"]  # new: the paper claims nothing here


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""


@dataclass(frozen=True)
class Finding:
    name: str
    title: str
    question: str
    paper: str
    found: str
    verdict: Verdict
    figures: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        """`NAME.json`, and each table as a CSV file beside it."""
        with new_file(folder / f"{self.name}.json") as partial:
            partial.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        for number, table in enumerate(self.tables):
            with new_file(folder / f"{self.name}-{number + 1}.csv") as partial:
                lines = [table.columns, *table.rows]
                partial.write_text("".join(",".join(map(_cell, line)) + "\n" for line in lines), encoding="utf-8")


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return '"' + text.replace('"', '""') + '"' if any(char in text for char in ',"\n') else text


def all_of(*held: bool) -> Verdict:
    """The verdict of a finding with several parts."""
    return "holds" if all(held) else "holds partly" if any(held) else "does not hold"
