"""Writes the tables of docs/testbeds.md from the committed files of training runs and studies in experiments/results/.

    python docs/testbeds.py          write the page anew
    python docs/testbeds.py --check  say whether it is as it would be written
    python docs/testbeds.py --seeds  first make the findings over seeds anew, from the findings beside them

A run is a directory testbeds/NAME-SEED with the result.json, loss.csv and sinks.csv of `jaxsink train`; findings over seeds
are the seeds.json of `jaxsink study` with all seeds of a kind.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scipy import optimize, stats

from jaxsink.study.finding import Finding
from jaxsink.study.seeds import kind_of
from jaxsink.study.seeds import over_seeds as findings_over_seeds
from jaxsink.study.verdicts import LEVEL, Comparison, Tested

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results" / "testbeds"
PAGE = ROOT / "docs" / "testbeds.md"
BEGIN, END = "<!-- table: written by docs/testbeds.py -->\n", "<!-- end of table -->"
MARKED = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
HEAD = (
    "| | seeds | steps | tokens | loss on held-out text | solved | α₁ | heads above 0.3 | strongest key | first values |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)
TESTS = (
    "| experiment | models | statistic | value | against | verdict | runs, or pairs, alone |\n"
    "| --- | --- | --- | ---: | --- | :---: | --- |"
)
POWER = (
    "| study | statistics | tests | smallest difference found alone | corrected | corrected, 8 times of 10 | differences "
    "that were measured |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |"
)
OFTEN = 0.8
SIGNS = {"supported": "**yes**", "refuted": "**no**", "undecided": "?", "not testable here": "–"}


def kinds() -> list[str]:
    return sorted({path.name.rsplit("-", 1)[0] for path in RESULTS.glob("*-[0-9]")})


def runs(kind: str) -> list[Path]:
    return sorted(RESULTS.glob(f"{kind}-[0-9]"))


def result(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))


def last_look(run: Path) -> dict[str, float]:
    with (run / "sinks.csv").open(encoding="utf-8", newline="") as file:
        return {name: float(value) for name, value in list(csv.DictReader(file))[-1].items()}


def spread(values: list[float], written: Callable[[float], str]) -> str:
    """One figure, or the range over seeds; nothing where none was measured."""
    if not values:
        return ""
    low, high = written(min(values)), written(max(values))
    return low if low == high else f"{low} to {high}"


def line(kind: str) -> str:
    found, looks = [result(run) for run in runs(kind)], [last_look(run) for run in runs(kind)]
    cells = [
        f"`{kind}`",
        str(len(found)),
        spread([one["steps"] for one in found], lambda x: f"{x:,}"),
        spread([one["tokens"] for one in found], lambda x: f"{x / 1e6:.1f}M"),
        spread([one["validation_loss"] for one in found], lambda x: f"{x:.3f}"),
        spread([one["accuracy"]["share"] for one in found if "accuracy" in one], lambda x: f"{x:.0%}"),
        spread([look["alpha_first"] for look in looks], lambda x: f"{x:.3f}"),
        spread([look["heads_above"] for look in looks], lambda x: f"{x:.0%}"),
        spread([look["largest_share"] for look in looks], lambda x: f"{x:.0%}"),
        spread([look["value_first"] for look in looks], lambda x: f"{x:.2f}"),
    ]
    return f"| {' | '.join(cells)} |"


def studies() -> list[Path]:
    """Directories of findings over seeds; the gate's table is on another page."""
    found = (path.parent for path in RESULTS.parent.glob("*/*/seeds.json"))
    return sorted(path for path in found if path.parent.name != "gate")


def seeds(study: Path) -> dict[str, Any]:
    return json.loads((study / "seeds.json").read_text(encoding="utf-8"))


def again(study: Path) -> Finding:
    """What the committed findings of a study come to over seeds."""
    paths = (path for path in sorted(study.glob("*.json")) if path.name not in ("manifest.json", "seeds.json"))
    said = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    read = [
        Finding(
            one["name"], one["title"], one["question"], one["paper"], found="", tests=list(map(test_of, one["tests"]))
        )
        for one in said
        if "tests" in one
    ]
    (found,) = findings_over_seeds(read)
    return found


def test_of(said: dict[str, Any]) -> Tested:
    """As it was before it was written; JSON has no NaN."""
    known = {name: float("nan") if value is None else value for name, value in said.items()}
    return Tested(**{**known, "comparisons": [Comparison(**one) for one in said["comparisons"]]})


def tested(test: dict[str, Any], alone: Counter[str]) -> str:
    against = [
        f"{one['difference']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}] to {one['null']}"
        for one in test["comparisons"]
    ]
    name, _, statistic = test["statistic"].partition(": ")
    runs = ", ".join(f"{count} {SIGNS[verdict]}" for verdict, count in sorted(alone.items()))
    cells = [f"`{name}`", test["model"], statistic, f"{test['value']:.3f}", "; ".join(against), SIGNS[test["verdict"]]]
    return f"| {' | '.join([*cells, runs])} |"


def verdicts_alone(found: dict[str, Any], test: dict[str, Any]) -> Counter[str]:
    """Of the runs of a kind, or of the pairs of runs of two kinds, each by itself."""
    (table,) = found["tables"]
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    nulls = {one["null"].partition(" (")[0] for one in test["comparisons"]}
    return Counter(
        row["verdict"]
        for row in rows
        if f"{row['experiment']}: {row['statistic']}" == test["statistic"]
        and kind_of(row["model"]) == test["model"].partition(" (")[0]
        and nulls & {kind_of(null) or null for null in compared(row)}
    )


def compared(row: dict[str, Any]) -> list[str]:
    """What a run was held against."""
    return [name.removeprefix("to ") for name, value in row.items() if name.startswith("to ") and value != ""]


def lines_of(study: Path) -> list[str]:
    found = seeds(study)
    return [tested(test, verdicts_alone(found, test)) for test in found["tests"]]


def power_of(study: Path) -> list[str]:
    """What its seeds can find: a line for each experiment and its unit, by the median error of its comparisons."""
    asked = [test for test in seeds(study)["tests"] if test["comparisons"]]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for test in asked:
        name, _, statistic = test["statistic"].partition(": ")
        in_nats = f"nats per token, {test['model'].partition(' (')[0]}"
        groups.setdefault((name, in_nats if "nats" in statistic else statistic), []).append(test)
    lines = []
    for (name, words), tests in groups.items():
        weakest = [max(test["comparisons"], key=lambda one: one["p"]) for test in tests]
        error = statistics.median(error_of(one) for one in weakest)
        sizes = [abs(one["difference"]) for one in weakest]
        level = LEVEL / len(asked)  # Holm's for the clearest test of a study
        found = (errors_needed(LEVEL), errors_needed(level), errors_found(level))
        cells = [f"{study.parent.name}/{study.name}", f"`{name}`: {words}", str(len(tests))]
        cells += [f"{error * errors:.3f}" for errors in found]
        lines.append(f"| {' | '.join(cells)} | {spread(sizes, lambda x: f'{x:.3f}')} |")
    return lines


SEEDS = 3


def error_of(one: dict[str, Any]) -> float:
    """The standard error behind an interval of three seeds."""
    return (one["high"] - one["low"]) / (2 * float(stats.t.ppf(0.975, SEEDS - 1)))


def errors_needed(level: float, seeds: int = SEEDS) -> float:
    """A difference of so many standard errors is at this level, two-sided."""
    return float(stats.t.isf(level / 2, seeds - 1))


def errors_found(level: float, power: float = OFTEN) -> float:
    """A true difference of so many standard errors is found that often (noncentral t)."""
    bar = errors_needed(level)
    return float(optimize.brentq(lambda size: float(stats.nct.sf(bar, SEEDS - 1, size)) - power, 0, 10 * bar))


def more_seeds() -> str:
    """What the bar would be."""
    most = max(sum(1 for test in seeds(study)["tests"] if test["comparisons"]) for study in studies())
    bars = {count: errors_needed(LEVEL / most, count) for count in (SEEDS, 5, 8)}
    said = " and ".join(f"{bar:.1f} with {count}" for count, bar in bars.items() if count != SEEDS)
    return (
        f"The clearest of {most} tests must be {bars[SEEDS]:.1f} standard errors away from its null with {SEEDS} seeds; it "
        f"would be {said}, of errors that shrink with the number of seeds too."
    )


def page() -> str:
    """With its tables written anew."""
    tests = [line for study in studies() for line in lines_of(study)]
    power = [line for study in studies() for line in power_of(study)]
    tables = [[HEAD, *map(line, kinds())], [TESTS, *tests], [POWER, *power, "", more_seeds()]]
    first, *parts = MARKED.split(PAGE.read_text(encoding="utf-8"))
    written = ("\n".join(table) for table in tables)
    return first + "".join(f"{BEGIN}{table}\n{END}{part}" for table, part in zip(written, parts, strict=True))


if __name__ == "__main__":
    if "--seeds" in sys.argv:
        for path in RESULTS.parent.glob("*/*/seeds.json"):
            again(path.parent).save(path.parent)
    if "--check" in sys.argv:
        sys.exit("docs/testbeds.md is not as its results say" if PAGE.read_text(encoding="utf-8") != page() else 0)
    PAGE.write_text(page(), encoding="utf-8")
