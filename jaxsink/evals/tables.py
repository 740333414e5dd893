"""Tables 1 and 2 of one or several evaluations beside the paper's, and other outcomes: rows, CSV, JSON and Markdown.

Every test is corrected for how many of its kind are in one table, so tables of several runs are made from all of them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from jaxsink.evals.conditions import CONTROLS, PLAIN, Amount, amount_text, order_of
from jaxsink.evals.paper import TABLE2
from jaxsink.evals.statistics import holm
from jaxsink.runs.atomic import write_json, write_text

Summary = Mapping[str, Any]  # what jaxsink.evals.summary writes into results.json
Row = dict[str, Any]
FAMILIES = (
    "p_paper",
    "p_plain",
    *(f"p_{kind}" for kind in CONTROLS),
)  # tests of one kind over all cells are corrected together
LEVEL = 0.05

MEANING = """right: per cent of the questions, with Wilson's 95 % interval. lost, gained: questions solved only without and
only with the mask. All tests are two-sided and exact. p_paper: the published figure against ours (Fisher; it is
rounded, so of the counts that round to it the nearest to ours is taken, and which questions were solved is not
known, so the test is unpaired and conservative). p_plain: against the same model unmasked, on the same
questions (McNemar). p_random: top-K against as many random keys, drawn anew in every step, on the same questions
(McNemar). p_partner: against as many random keys that stay hidden as long as the sinks. p_mass: against random keys that
receive as much attention. Columns with _holm are corrected for the number of tests of that kind in this table."""

OUTCOMES_MEANING = """unfinished: share of answers without an end token. empty: share with no text. zlib: size after
compression over size before; loops compress well. repeated: share of runs of four tokens that the answer had before.
difference: mean over the same questions, K = 0 subtracted; p by sign flips, corrected by Holm for all rows."""


def table1(summaries: Sequence[Summary]) -> list[Row]:
    """A row per evaluation and condition: accuracy, the published one, and every test with Holm's correction."""
    rows = [row for summary in summaries for row in _rows(summary)]
    for family in FAMILIES:
        tested = [row for row in rows if row[family] is not None]
        corrected = holm([row[family] for row in tested])
        for row in rows:
            row[f"{family}_holm"] = None
        for row, p in zip(tested, corrected, strict=True):
            row[f"{family}_holm"] = p
    return rows


def _rows(summary: Summary) -> list[Row]:
    tests = {(test["condition"], test["kind"]): test for test in summary["tests"]}
    rows = []
    for line in summary["conditions"]:
        condition = line["condition"]
        plain = tests.get((condition, "plain"), {})
        rows.append(
            {
                "model": summary["subject"],
                "benchmark": summary["benchmark"],
                "setting": summary["exam"],
                "condition": condition,
                **{name: line[name] for name in ("k", "select", "right", "total", "accuracy", "low", "high")},
                "paper": line["reported"],
                "p_paper": line["p_reported"],
                "lost": plain.get("lost"),
                "gained": plain.get("gained"),
                "p_plain": plain.get("p"),
                **{f"p_{kind}": tests.get((condition, kind), {}).get("p") for kind in CONTROLS},
            }
        )
    return rows


def table2(summaries: Sequence[Summary]) -> list[Row]:
    """The most frequent sink tokens of each unmasked model with their base rates, and the paper's in order beside them."""
    rows = []
    for summary in summaries:
        ours = summary["sinks"].get(str(PLAIN), {"tokens": []})["tokens"]
        theirs = TABLE2.get(summary["exam"].split("/")[0], ()) if ours else ()
        for rank, (token, paper) in enumerate(zip_longest(ours, theirs), 1):
            found = {name: token[name] for name in ("token", "share", "base", "lift")} if token else {}
            rows.append(
                {
                    "model": summary["subject"],
                    "benchmark": summary["benchmark"],
                    "rank": rank,
                    **{name: found.get(name) for name in ("token", "share", "base", "lift")},
                    "paper_token": paper[0] if paper else None,
                    "paper_share": paper[1] if paper else None,
                }
            )
    return rows


def outcome_rows(summaries: Sequence[Summary]) -> list[Row]:
    """A row per evaluation, condition and outcome besides accuracy, with the paired difference to K = 0.

    `differs` says that p is below LEVEL after Holm's correction for all tests of these rows.
    """
    rows = []
    for summary in summaries:
        tests = {test["condition"]: test["outcomes"] for test in summary["tests"] if test["kind"] == "plain"}
        for line in summary["conditions"]:
            for name, (mean, low, high) in _intervals(line["outcomes"]):
                about = {"model": summary["subject"], "setting": summary["exam"], "condition": line["condition"]}
                test = tests.get(line["condition"], {}).get(name, {})
                change = {key: test.get(of) for key, of in (("difference", "estimate"), ("p_plain", "p"))}
                ends = {f"difference_{end}": test.get(end) for end in ("low", "high")}
                rows.append({**about, "outcome": name, "mean": mean, "low": low, "high": high, **change, **ends})
    tested = [row for row in rows if row["p_plain"] is not None]
    corrected = iter(holm([row["p_plain"] for row in tested]))
    for row in rows:
        row["p_plain_holm"] = None if row["p_plain"] is None else next(corrected)
        row["differs"] = _is_small(row["p_plain_holm"])
    return rows


def _intervals(outcomes: Mapping[str, Mapping[str, float]]) -> list[tuple[str, tuple[float, float, float]]]:
    return [(name, (found["estimate"], found["low"], found["high"])) for name, found in outcomes.items()]


def compact(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """(heading, lines): Table 1 as the paper prints it, a column per model, a line per benchmark and condition.

    A cell is ours in per cent and the paper's in brackets; † ours differs from K = 0, * the paper's differs from ours.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    cells: dict[tuple[str, Amount, str], dict[str, str]] = {}
    for row in rows:
        mark = "†" if _is_small(row["p_plain_holm"]) else ""
        paper = "" if row["paper"] is None else f" ({row['paper']:g}{'*' if _is_small(row['p_paper_holm']) else ''})"
        mine = cells.setdefault((row["benchmark"], row["k"], row["select"] or ""), {})
        before = f"{mine[row['model']]}; " if row["model"] in mine else ""  # two settings of one model and benchmark
        mine[row["model"]] = f"{before}{100 * row['accuracy']:.1f}{mark}{paper}"
    keys = sorted(cells, key=lambda key: (key[0], order_of(key[1], key[2] or None)))
    lines = [[key[0], amount_text(key[1]), key[2], *(cells[key].get(model, "") for model in models)] for key in keys]
    return ["data", "K", "masked", *models], lines


def _is_small(p: float | None) -> bool:
    return p is not None and p < LEVEL


def write_tables(folder: Path, summaries: Sequence[Summary]) -> None:
    tables = {"table1": table1(summaries), "table2": table2(summaries), "outcomes": outcome_rows(summaries)}
    for name, rows in tables.items():
        write_text(folder / f"{name}.csv", as_csv(rows))
    write_json(folder / "tables.json", {**tables, "meaning": " ".join(MEANING.split())})
    write_text(folder / "tables.md", as_markdown(*tables.values()))


def as_csv(rows: Sequence[Row]) -> str:
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def as_markdown(first: Sequence[Row], second: Sequence[Row], others: Sequence[Row]) -> str:
    heading, lines = compact(first)
    blocks = [
        "# Table 1: accuracy with sinks masked",
        "Ours in %, the paper's in brackets. † differs from K = 0, * differs from the paper (p < .05 after correction).",
        _grid(heading, lines),
        MEANING,
        _whole(first) if first else "",
    ]
    if second:
        blocks += [
            "# Table 2: the tokens that are sinks, unmasked model",
            "share: of all sinks. base: how often the token occurs at all. lift: share / base.",
            _whole(second),
        ]
    if others:
        blocks += ["# Outcomes besides accuracy", " ".join(OUTCOMES_MEANING.split()), _whole(others)]
    return "\n\n".join(blocks) + "\n"


def _whole(rows: Sequence[Row]) -> str:
    return _grid(list(rows[0]), [[_text(value) for value in row.values()] for row in rows])


def _grid(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [heading, ["---"] * len(heading), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
