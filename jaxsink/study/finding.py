"""What an experiment says: the paper's finding, ours, whether it holds, and the tables and figures that show it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from jaxsink.evals.statistics import Interval
from jaxsink.runs.atomic import new_file, write_json

Verdict = Literal["holds", "holds partly", "does not hold", "not tested", "new"]  # new: the paper claims nothing here


Row = Mapping[str, str | int | float]
"""A line of a table, by the names of its columns."""


@dataclass(frozen=True)
class Table:
    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""

    @classmethod
    def of(cls, title: str, rows: Sequence[Row], note: str = "") -> Table:
        """Columns as the rows name them; all have the same."""
        columns = list(rows[0]) if rows else []
        return cls(title, columns, [[row[name] for name in columns] for row in rows], note)


@dataclass(frozen=True)
class Claim:
    """What is asked, what the paper says, the statistic that a verdict rests on, and what it is held against."""

    name: str
    title: str
    question: str
    paper: str
    statistic: str
    null: str


@dataclass(frozen=True)
class Finding(Claim):
    """What an experiment says, with all that a reader needs to judge it; `figures` are names of SVG files."""

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


def with_limits(name: str, interval: Interval) -> dict[str, float]:
    """A column for a value, and two for its confidence limits."""
    return {name: float(interval.estimate), f"{name}: low": float(interval.low), f"{name}: high": float(interval.high)}


def all_of(*held: bool) -> Verdict:
    """The verdict of a finding with several parts."""
    return "holds" if all(held) else "holds partly" if any(held) else "does not hold"
