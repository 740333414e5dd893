"""What an experiment says: the paper's finding, ours, whether it holds, and the tables and figures that show it."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from jaxsink.runs.atomic import new_file, write_json

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
        write_json(folder / f"{self.name}.json", asdict(self))
        for number, table in enumerate(self.tables, 1):
            with new_file(folder / f"{self.name}-{number}.csv") as partial, partial.open("w", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(table.columns)
                writer.writerows([f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in table.rows)


def all_of(*held: bool) -> Verdict:
    """The verdict of a finding with several parts."""
    return "holds" if all(held) else "holds partly" if any(held) else "does not hold"
