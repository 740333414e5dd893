"""What an experiment says: the paper's claim, its tests and their verdict, and the tables and figures that show it."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from jaxsink.runs.atomic import new_file, write_json
from jaxsink.study.verdicts import Tested, Verdict, all_of, decide, number

Row = Mapping[str, str | int | float]
"""A line of a table, by the names of its columns."""


@dataclass(frozen=True)
class Table:
    """Rows under named columns, for pages and CSV files.

    Examples:
        >>> jaxsink.study.Table.of("Sinks", [{"layer": 0, "sinks": 3}, {"layer": 1, "sinks": 1}]).rows
        [[0, 3], [1, 1]]
        >>> jaxsink.study.Table.of("Sinks", [{"layer": 0, "sinks": 3}]).save(Path("sinks.csv"))
        >>> Path("sinks.csv").read_text()
        'layer,sinks\\n0,3\\n'
    """

    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""

    @classmethod
    def of(cls, title: str, rows: Sequence[Row], note: str = "") -> Table:
        """Columns as the rows name them; a row may lack some."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        return cls(title, columns, [[row.get(name, "") for name in columns] for row in rows], note)

    def save(self, file: Path) -> None:
        with new_file(file) as partial, partial.open("w", encoding="utf-8") as opened:
            writer = csv.writer(opened, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows([f"{v:.6g}" if isinstance(v, float) else v for v in row] for row in self.rows)


@dataclass(frozen=True)
class Claim:
    """What is asked, and what the paper says; what lies beyond it says what we predict."""

    name: str
    title: str
    question: str
    paper: str


@dataclass(frozen=True)
class Finding(Claim):
    """What an experiment says, with all that a reader needs to judge it.

    Attributes:
        figures: names of SVG files
        values: what the tests rest on, problem by problem; kept as a CSV file of its own

    Examples:
        >>> said = ("first", "The first token", "Is it a sink?", "It is not.", "In one model of three.")
        >>> found = jaxsink.study.Finding(*said)
        >>> found.verdict
        'not testable here'
        >>> found.table_of_tests()  # nothing was tested
        []
        >>> found.save(Path("."))
        >>> Path("first.json").exists()
        True
    """

    found: str
    verdict: Verdict = "not testable here"
    tests: list[Tested] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    values: list[Row] = field(default_factory=list, repr=False)

    def save(self, folder: Path) -> None:
        """`NAME.json`, each table as a CSV file beside it, and `NAME-problems.csv`."""
        said = {name: value for name, value in asdict(self).items() if name != "values"}
        write_json(folder / f"{self.name}.json", strict(said))
        for index, table in enumerate(self.tables, 1):
            table.save(folder / f"{self.name}-{index}.csv")
        if self.values:
            Table.of("", self.values).save(folder / f"{self.name}-problems.csv")

    def table_of_tests(self) -> list[Table]:
        """A line for each comparison, if there are any."""
        rows: list[Row] = [
            {
                "model": test.model,
                "statistic": test.statistic,
                "value": test.value,
                "95 % interval": f"[{number(test.low)}, {number(test.high)}]",
                "problems": test.problems,
                "against": one.null,
                "its value": one.null_value,
                "difference": one.difference,
                "its 95 % interval": f"[{number(one.low)}, {number(one.high)}]",
                "p": one.p,
                "predicted": test.expected,
                "verdict": test.verdict,
            }
            for test in self.tests
            for one in test.comparisons
        ]
        note = (
            "p: of each comparison alone; a verdict needs the largest of a claim, corrected for all tests of the study"
        )
        return [Table.of("Tests", rows, note)] if rows else []


def strict(value: Any) -> Any:
    """Data as strict JSON has it: null for numbers that are none."""
    if isinstance(value, dict):
        return {name: strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [strict(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def judge(findings: Sequence[Finding]) -> list[Finding]:
    """Findings with their verdicts, which depend on the number of all tests."""
    decided = iter(decide([test for finding in findings for test in finding.tests]))
    judged = []
    for finding in findings:
        tests = [next(decided) for _ in finding.tests]
        judged.append(
            replace(
                finding, tests=tests, found=sentence(tests, finding.found), verdict=all_of([t.verdict for t in tests])
            )
        )
    return judged


def sentence(tests: Sequence[Tested], note: str) -> str:
    """The tests in words, statistic by statistic, and what the experiment adds."""
    by_statistic: dict[str, list[str]] = {}
    for test in tests:
        by_statistic.setdefault(test.statistic, []).append(test.in_words())
    said = [f"{statistic[0].upper()}{statistic[1:]}: {'; '.join(words)}." for statistic, words in by_statistic.items()]
    return " ".join([*said, note]).strip()
