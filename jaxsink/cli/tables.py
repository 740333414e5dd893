"""Tables 1 and 2 on the terminal: of one evaluation in full, of several in the form of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from jaxsink.cli.console import Console
from jaxsink.evals.conditions import CONTROLS, PLAIN
from jaxsink.evals.tables import compact, outcome_rows, table1

CORRECTED = "p: two-sided, corrected by Holm for the tests of one column (paper: Fisher; others: McNemar)."
NATS = "{difference:+.2f} ({low:+.2f}…{high:+.2f})"
OUTCOME_HEADINGS = {
    "unfinished": "unfinished",
    "empty": "empty",
    "zlib": "size after zlib",
    "repeated": "repeated 4-grams",
}
SHARES = ("accuracy", "low", "high")
MARKS = "Ours in %, (the paper's); † differs from K = 0, * from ours (two-sided, p < .05 after Holm's correction)."


def print_run(results: Mapping[str, Any], folder: Path) -> None:
    """Table 1 of one evaluation, Table 2 of its unmasked model, and the speed."""
    console = Console()
    console.print(f"{results['exam']}: {results['finished']} of {results['questions']} questions", markup=False)
    if results["gold"]:
        print_perplexities(console, results)
    else:
        print_accuracies(console, results)
        print_outcomes(console, results)
    if str(PLAIN) in results["sinks"]:
        print_sinks(console, results["sinks"][str(PLAIN)])
    speed = results["throughput"]
    if speed["questions_per_second"]:
        note = ", compiling included" if speed["with_compiling"] else ""
        each, tokens = speed["questions_per_second"], speed["tokens_per_second"]
        console.print(f"{each:.3g} questions/s under all conditions, {tokens:,.0f} tokens/s{note}.")
    console.print(f"Results are in {folder}.", markup=False, soft_wrap=True)


def print_perplexities(console: Console, results: Mapping[str, Any]) -> None:
    what = "the text" if results["benchmark"] == "text" else "the published answers"
    console.print(f"perplexity of {what}; nats per token gained or lost, and KL from the unmasked model")
    columns = ("condition", "perplexity (95 %)", "nats (95 %)", "KL", "p: none", "p: random")
    table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    tests = {(test["condition"], test["kind"]): test for test in results["tests"]}
    for line in results["conditions"]:
        condition = line["condition"]
        plain, control = (tests.get((condition, kind)) for kind in ("plain", "random"))
        table.add_row(
            escape(condition),
            "{perplexity:.2f} ({low:.2f}–{high:.2f})".format(**line),
            NATS.format(**plain) if plain else "",
            f"{line['kl']:.2g}",
            *(number(test["p"]) if test else "" for test in (plain, control)),
        )
    console.print(table)
    print_shares(console, results)


def print_shares(console: Console, results: Mapping[str, Any]) -> None:
    """The same by the share t of masked tokens, of a diffusion model."""
    shares = list(results["conditions"][0].get("t", ())) if results["conditions"] else []
    if not shares:
        return
    console.print("nats per masked token, by the share t of masked tokens (gained or lost)")
    table = Table("condition", *(f"t = {t}" for t in shares), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    plain = {test["condition"]: test["t"] for test in results["tests"] if test["kind"] == "plain"}
    for line in results["conditions"]:
        nats = {t: f"{-log(line['t'][t]['perplexity']):.2f}" for t in shares}
        change = {t: f" ({test['difference']:+.2f})" for t, test in plain.get(line["condition"], {}).items()}
        table.add_row(escape(line["condition"]), *(nats[t] + change.get(t, "") for t in shares))
    console.print(table)


def print_outcomes(console: Console, results: Mapping[str, Any]) -> None:
    """What else can be said of answers, in per cent."""
    rows = outcome_rows([results])
    names = list(dict.fromkeys(row["outcome"] for row in rows))
    cells = {(row["condition"], row["outcome"]): row for row in rows}
    if not names:
        return
    table = Table(
        "condition", *(OUTCOME_HEADINGS[name] for name in names), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for condition in dict.fromkeys(row["condition"] for row in rows):
        found = [cells.get((condition, name)) for name in names]
        table.add_row(
            condition,
            *("" if one is None else f"{100 * one['mean']:.1f}{'†' if one['differs'] else ''}" for one in found),
        )
    console.print(table)
    console.print("in %; † differs from K = 0 (sign flips, p < .05 after Holm's correction)", markup=False)


def print_accuracies(console: Console, results: Mapping[str, Any]) -> None:
    rows = table1([results])
    columns = {
        "condition": [row["condition"] for row in rows],
        "right, % (95 %)": ["{:.1f} ({:.1f}–{:.1f})".format(*(100 * row[n] for n in SHARES)) for row in rows],
        "paper": [number(row["paper"], "g") for row in rows],
        "p: paper": [number(row["p_paper_holm"]) for row in rows],
        "lost/won": ["" if row["lost"] is None else f"{row['lost']}/{row['gained']}" for row in rows],
        "p: none": [number(row["p_plain_holm"]) for row in rows],
        **{f"p: {kind}": [number(row[f"p_{kind}_holm"]) for row in rows] for kind in CONTROLS},
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    table = Table(*shown, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)  # narrow enough for 80 columns
    for line in zip(*shown.values(), strict=True):
        table.add_row(*line)
    console.print(table)
    if results["tests"]:
        console.print(CORRECTED, markup=False)


def number(value: float | None, form: str = ".2g") -> str:
    return "" if value is None else format(value, form)


def print_sinks(console: Console, found: Mapping[str, Any]) -> None:
    console.print(
        f"sinks, {PLAIN}: {found['per_head']:.3g} per head and step, {found['on_first_token']:.1%} on the first token"
    )
    table = Table("token", "share of sinks", "base rate", "lift", box=SIMPLE_HEAD, pad_edge=False)
    for token in found["tokens"]:
        table.add_row(escape(token["token"]), f"{token['share']:.3f}", f"{token['base']:.3f}", f"{token['lift']:.2f}")
    console.print(table)


def print_merged(summaries: Sequence[Mapping[str, Any]]) -> None:
    """Table 1 as the paper prints it."""
    heading, lines = compact(table1(summaries))
    table = Table(*heading, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for line in lines:
        table.add_row(*map(escape, line))
    console = Console()
    console.print(table)
    console.print(MARKS, markup=False)
    for one in summaries:
        if one["finished"] < one["questions"]:
            done = f"{one['finished']} of {one['questions']} questions"
            console.print(
                f"{one['subject']} on {one['exam']}: {done}, so it is not tested against the paper.", markup=False
            )
