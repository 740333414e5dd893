"""Reading a study directory: every file is checked, and what is wrong is said with the file's name."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.report.played import PlayedGeneration, read_generation
from jaxsink.runs.files import interpreting, read_json
from jaxsink.study.finding import Claim, Finding, Table
from jaxsink.study.verdicts import Comparison, Tested, Verdict

VERDICTS: tuple[str, ...] = get_args(Verdict)
TEXTS = (*(part.name for part in fields(Claim) if part.name != "name"), "found")
EPS = 3.0  # the paper's
KINDS = ("fig", "table")  # the paper's own come first


@dataclass(frozen=True)
class StudyResults:
    """What the page shows: findings, with their figures in `path`, and generations for the player.

    Examples:
        >>> few = {"problems": 2, "generations": 2, "untrained": 0}
        >>> findings, study = jaxsink.study(["fig1"], "mini-llama", "one-figure", **few)
        >>> results = jaxsink.report.read_study("one-figure")
        >>> [finding.title for finding in results.findings] == [finding.title for finding in findings]
        True
        >>> results.eps, results.figures(results.findings[0])[0].suffix
        (3.0, '.svg')
    """

    path: Path
    manifest: dict[str, Any]
    findings: list[Finding]
    generations: list[PlayedGeneration]
    title: str = "Attention sinks: the study"

    @property
    def eps(self) -> float:
        """How far above the mean of the others a sink is."""
        settings = self.manifest.get("settings")
        eps = settings.get("eps") if isinstance(settings, dict) else None
        return float(eps) if isinstance(eps, int | float) else EPS

    def figures(self, finding: Finding) -> list[Path]:
        """.svg; a .png of the same name lies beside each."""
        return [self.path / "figures" / name for name in finding.figures]


@checked()
def read_study(path: str | Path) -> StudyResults:
    """Everything in a study directory that the page shows.

    Args:
        path: the directory of `jaxsink study`

    Examples:
        >>> few = {"problems": 2, "generations": 2, "untrained": 0}
        >>> findings, study = jaxsink.study(["fig1"], "mini-llama", "one-figure", **few)
        >>> len(jaxsink.report.read_study("one-figure").generations)
        4
    """
    path = Path(path)
    if not path.is_dir():
        raise JaxsinkError(f"{path} is not a directory; give the directory that `jaxsink study` wrote.")
    if not (path / "manifest.json").is_file():
        raise JaxsinkError(f"{path} holds no manifest.json, so it is not the directory of a study.")
    manifest = read_json(path / "manifest.json")
    files = sorted((path / "experiments").glob("*.json"), key=lambda file: order(file.stem))
    kind = manifest.get("kind", "study") if isinstance(manifest, dict) else None
    if not files and isinstance(kind, str) and kind != "study":
        raise JaxsinkError(
            f"{path} holds a run of another kind ({kind}); give the directory that `jaxsink study` wrote."
        )
    if not files:
        raise JaxsinkError(f"{path / 'experiments'} holds no results yet; run `jaxsink study` first.")
    generations = [
        read_generation(file) for file in sorted((path / "player").glob("*.npz"), key=lambda file: order(file.stem))
    ]
    with interpreting(path / "experiments"):
        findings = [read_finding(file, path / "figures") for file in files]
    return StudyResults(path, manifest, findings, generations)


def order(name: str) -> list[Any]:
    """Figures, then tables, then the rest; fig2 before fig10."""
    kind = next((number for number, start in enumerate(KINDS) if name.startswith(start)), len(KINDS))
    return [
        kind,
        *((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part),
    ]


def read_finding(file: Path, figures: Path) -> Finding:
    data = read_json(file)
    for key in TEXTS:
        if not isinstance(data.get(key), str):
            raise JaxsinkError(f'{file} needs a text "{key}".')
    if data.get("verdict") not in VERDICTS:
        raise JaxsinkError(f'{file}: "verdict" is {data.get("verdict")!r}, but must be one of {", ".join(VERDICTS)}.')
    names = list_of(data, "figures", file)
    for name in names:
        check_figure(name, figures, file)
    return Finding(
        name=str(data.get("name", file.stem)),
        **{key: data[key] for key in TEXTS},
        verdict=data["verdict"],
        tests=[read_test(test, file) for test in list_of(data, "tests", file)],
        figures=names,
        tables=[read_table(table, file) for table in list_of(data, "tables", file)],
    )


def list_of(data: dict[str, Any], key: str, file: Path) -> list[Any]:
    value = data.get(key, [])
    if not isinstance(value, list):
        raise JaxsinkError(f'{file}: "{key}" must be a list.')
    return value


def check_figure(name: Any, figures: Path, file: Path) -> None:
    if not isinstance(name, str) or Path(name).name != name or Path(name).suffix != ".svg":
        raise JaxsinkError(f"{file}: {name!r} is not the name of an .svg file.")
    for path in (figures / name, (figures / name).with_suffix(".png")):
        if not path.is_file():
            raise JaxsinkError(f"{file} names a figure that is missing: {path}.")


def read_test(test: Any, file: Path) -> Tested:
    try:
        known = {name: math.nan if value is None else value for name, value in test.items()}
        return Tested(**{**known, "comparisons": [Comparison(**one) for one in test["comparisons"]]})
    except (TypeError, KeyError, AttributeError) as error:
        raise JaxsinkError(f"{file}: a test lacks or has what it should not: {error}.") from error


def read_table(table: Any, file: Path) -> Table:
    if not isinstance(table, dict):
        raise JaxsinkError(f"{file}: a table must be a JSON object.")
    title, columns, rows = str(table.get("title", "")), list_of(table, "columns", file), list_of(table, "rows", file)
    if not columns:
        raise JaxsinkError(f'{file}: the table "{title}" has no columns.')
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list) or len(row) != len(columns):
            raise JaxsinkError(f'{file}: row {number} of the table "{title}" must have {len(columns)} cells.')
    return Table(title, [str(column) for column in columns], rows, str(table.get("note") or ""))
