"""Writes what the study found into README.md, docs/study.md and docs/explanations.md, all numbers from committed results.

    python docs/findings.py          write the pages anew
    python docs/findings.py --check  say whether they are as they would be written

The results are those of three runs, whose directories `experiments/` were copied to experiments/results/, and of those on
docs/protocol.md (docs/protocol.py):

    jaxsink study --out builtin
    jaxsink study --model untrained:mini-llada … (one for each built-in model) --problems 12 --out untrained
    jaxsink study --model planted --problems 12 --out planted

and those in experiments/results/explanations/ of the same three with the names of the experiments: jaxsink study waiting
paths past token takeover frequency …
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jaxsink.evals.paper import COUNTS, TABLE1
from jaxsink.study.verdicts import LEVEL, all_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results"
BEGIN, END = "<!-- findings: written by docs/findings.py -->", "<!-- end of findings -->"
MODELS = ("mini-llada", "mini-dream", "mini-llama")
PUBLISHED = {"llada-8b-instruct": "LLaDA-8B", "dream-7b-instruct": "Dream-7B", "llama-3.1-8b-instruct": "Llama-3.1-8B"}
SIGNS = {"supported": "**yes**", "refuted": "**no**", "undecided": "?", "not testable here": "–"}
EXPLAINED, EXPLANATIONS = ("waiting", "paths", "past", "token", "takeover", "frequency"), "explanations/"
USUAL = ("fig1", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig10", "table2", "values", "table1", "controls")


@cache
def finding(name: str, run: str = "") -> dict[str, Any]:
    return json.loads((RESULTS / run / f"{name}.json").read_text(encoding="utf-8"))


def result_of(name: str, model: str, words: str = "", run: str = "") -> dict[str, Any]:
    """The one test of a finding that is about this model, and whose statistic has these words."""
    found = [test for test in finding(name, run)["tests"] if test["model"] == model and words in test["statistic"]]
    return exactly(found)


def against(test: dict[str, Any], null: str) -> dict[str, Any]:
    (found,) = (one for one in test["comparisons"] if null in one["null"])
    return found


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def number(value: float, sign: str = "") -> str:
    return f"{value:{sign}.2f}" if abs(value) < 10 else f"{value:{sign}.1f}"


def range_of(one: dict[str, Any], show: Callable[[float], str] = number) -> str:
    """A difference with its interval, or a value with its."""
    value = one["difference"] if "difference" in one else one["value"]
    return f"{show(value)} [{show(one['low'])}, {show(one['high'])}]"


def signed(value: float) -> str:
    return number(value, "+")


def row(model: str, condition: str) -> dict[str, Any]:
    """A line of the masking table."""
    table = finding("table1")["tables"][0]
    (found,) = (line for line in table["rows"] if line[:2] == [model, condition])
    return dict(zip(table["columns"], found, strict=True))


def readme() -> str:
    return numbered((sentence.replace(" %", "\xa0%") for sentence in in_short()), width=160).replace("\xa0", " ")


def numbered(points: Iterator[str], width: int = 125) -> str:
    lines = (f"{number}. {sentence}" for number, sentence in enumerate(points, 1))
    return "\n".join(textwrap.fill(line, width, subsequent_indent="   ", break_on_hyphens=False) for line in lines)


def in_short() -> Iterator[str]:
    """The first page: a sentence and its figures each. `sentences` checks the verdicts."""
    few, every = (protocol_line("smollm2-text", "smollm2")[protocol] for protocol in (FEW, EVERY))
    yield (
        "**The protocol decides what a sink costs.** On plain text, hiding SmolLM2-135M's first token from the newest "
        f"token only, as the paper does with Llama, costs {number(few)} nats per token; hiding it from all tokens, as "
        f"for diffusion models, costs {number(every)}. Other keys and small models differ ([protocols](docs/protocol.md))."
    )
    strong, moves = ([result_of(name, model) for model in MODELS[:2]] for name in ("fig1", "fig4"))
    chance = listed([percent(against(test, "shuffled")["null_value"]) for test in strong])
    received = by_model(percent(test["value"]) for test in strong)
    yield f"**Sinks are there.** The strongest 3 % of keys receive {received} of attention; chance gives {chance}."
    yield (
        "**They move less than the paper says.** When a head's largest sink changes, only "
        f"{by_model(percent(test['value']) for test in moves)} are real moves, "
        "from a sink that ends to one that begins."
    )
    costs = [lost_with_top_key(name) for name in MODELS]
    mass = listed([percent(against(test, "mass keys")["null_value"]) for test in costs])
    top = by_model(percent(test["value"]) for test in costs)
    yield (
        f"**Controls matter.** Hiding each head's strongest key costs {top} of the problems; "
        f"hiding other keys with as much attention costs {mass}."
    )
    longer = by_model(number(math.exp(result_of("values", name, "length of values")["value"])) for name in MODELS)
    yield (
        f"**These sinks carry information.** Their values are {longer} times as long as those of other keys; sinks of large "
        "models have short values, so these small models are no stand-in."
    )


def by_model(figures: Iterable[str]) -> str:
    """Figures of the first models, in their order, each with its model's name."""
    return listed([f"{figure} (`{name}`)" for figure, name in zip(figures, MODELS, strict=False)])


def listed(words: Sequence[str]) -> str:
    *some, last = words
    return f"{', '.join(some)} and {last}"


def sentences() -> Iterator[str]:
    """The findings in plain words. What they assert about verdicts is checked, so that other results need other words."""
    yield protocol_sentence()
    diffusion = MODELS[:2]
    sinks = [result_of("fig10", name) for name in diffusion]
    strong = [result_of("fig1", name) for name in diffusion]
    assert {test["verdict"] for test in (*sinks, *strong)} == {"supported"}
    shuffled = [against(test, "shuffled")["null_value"] for test in strong]
    yield (
        f"*Sinks are there, beyond chance.* By the paper's rule {share(sinks[0])} % of the tokens are sinks in `mini-llada` "
        f"and {share(sinks[1])} % in `mini-dream`; the strongest 3 % of the keys take {both(strong)} of the attention, and "
        f"{percent(shuffled[0])} and {percent(shuffled[1])} if it is chance which keys queries share."
    )
    first, moves = result_of("fig7", "mini-llama", "first token"), [result_of("fig4", name) for name in diffusion]
    assert first["verdict"] == "refuted" and {test["verdict"] for test in moves} == {"refuted"}
    values = [result_of("values", name, "length of values") for name in MODELS]
    yield (
        f"*But not as in the paper.* When the largest sink of a head changes its place, a sink has moved in {both(moves)} "
        "of the cases (`mini-llada`, `mini-dream`); in the rest, the old place stays a sink or the new one was one already. "
        "The autoregressive `mini-llama` has no sink on its first token, which is the strongest key in "
        f"{percent(first['value'])} of heads and steps: it cannot stand for Llama. And real sinks have short values; the "
        f"length of values at these, over that of other keys, is {times(values[0])} in `mini-llada`, {times(values[1])} in "
        f"`mini-dream` and {times(values[2])} in `mini-llama`: such sinks carry information."
    )
    yield from masking_sentences()
    yield (
        "*So this says what the instrument measures, not what 8B models do*: small models of one task or one text, "
        "[over three seeds](docs/testbeds.md) where a run is short, and one real autoregressive model of 135M parameters. "
        "The same commands run on LLaDA-8B."
    )


EVERY, FEW, FIRST = "every row", "newest or decoded rows", "the first token"


def protocol_line(run: str, model: str, hidden: str = FIRST) -> dict[str, Any]:
    """What hiding the key costs under both protocols."""
    table = finding("protocol", f"protocol/{run}")["tables"][0]
    lines = (dict(zip(table["columns"], line, strict=True)) for line in table["rows"])
    return exactly([line for line in lines if line["model"] == model and line["hidden"] == hidden])


def protocol_sentence() -> str:
    runs = {"smollm2-text": "plain text", "smollm2-gsm8k": "GSM8K's answers"}
    words = f"lost with {FIRST} hidden from {FEW}"
    tests = [result_of("protocol", "smollm2", f"nats per token {words}", f"protocol/{run}") for run in runs]
    small = [result_of("protocol", name, f"nats per token {words}", "protocol/builtin") for name in MODELS[:2]]
    assert {test["verdict"] for test in tests} == {"supported"} and {test["verdict"] for test in small} == {"refuted"}
    lines = [protocol_line(run, "smollm2") for run in runs]
    dlms = [protocol_line("builtin", name) for name in MODELS[:2]]

    def cost(protocol: str) -> str:
        parts = zip(lines, runs.values(), strict=True)
        shown = (f"{signed3(line[protocol])} [{signed3(line[f'{protocol}: low'])}, {signed3(line[f'{protocol}: high'])}]"
                 f" nats per token of {given}" for line, given in parts)  # fmt: skip
        return " and ".join(shown)

    reverse = " and ".join(f"{number(line[FEW])} instead of {number(line[EVERY])}" for line in dlms)
    return (
        "*What hiding a sink costs is decided by the protocol.* Hidden from every row, as in a diffusion step, the first "
        f"token of the real SmolLM2-135M costs {cost(EVERY)}: the sink forms anew on another token. Hidden from the newest "
        f'row only, on a cache that was made with it, as the paper masks its autoregressive model, {cost(FEW)}. So "ARMs '
        f'break, DLMs do not" compares protocols as well as models. {seeds_sentence()} In the built-in diffusion '
        f"models, whose first token carries information, fewer rows cost less ({reverse}): [both kinds under both protocols]"
        "(docs/protocol.md)."
    )


def seeds_sentence() -> str:
    """What the top key costs autoregressive models more than diffusion models, by protocol, over seeds."""
    paper, few, every = more_of_arms("shakespeare")
    assert paper["low"] > 0 and few["low"] > 0 and every["low"] < 0 < every["high"]
    stories = more_of_arms("triple")
    assert all(one["difference"] < 0 for one in stories)
    said = [range_of(one, signed) for one in stories]
    return (
        "On Shakespeare, over three seeds, top keys cost small autoregressive models more nats per token than small "
        f"diffusion models as the paper masks them ({range_of(paper, signed)}) or if both lose them in few rows "
        f"({range_of(few, signed)}), but not if both lose them in every row ({range_of(every, signed)}); on word problems, "
        f"over three seeds, less ({said[0]}, {said[1]} and {said[2]})."
    )


def more_of_arms(run: str) -> list[dict[str, Any]]:
    """Over seeds, against the masked diffusion models: as in the paper, both few rows, both every row."""
    tests = [test for test in finding("seeds", f"protocol/{run}")["tests"] if test["model"].startswith(f"{run}-arm")]
    found = []
    for words in ("as in the paper", f"both {FEW}", f"both {EVERY}"):
        asked = [test for test in tests if test["statistic"].endswith(f"hidden, {words}")]
        found.append(exactly([one for t in asked for one in t["comparisons"] if one["null"].startswith(f"{run}-dlm")]))
    return found


def signed3(value: float) -> str:
    return f"{value:+.3f}"


LOST = "problems lost with the top key hidden"


def masking_sentences() -> Iterator[str]:
    """What is lost with the top key hidden, against its controls."""
    lost = [lost_with_top_key(name) for name in MODELS]
    parts = []
    for name, test in zip(MODELS, lost, strict=True):
        partner, mass = (against(test, f"{control} keys")["null_value"] for control in ("partner", "mass"))
        parts.append(
            f"`{name}` {percent(test['value'])} [{percent(test['low'])}, {percent(test['high'])}] of the problems "
            f"({percent(partner)} with partners, {percent(mass)} with keys that have as much attention; more than "
            f"both: {test['verdict']})"
        )
    yield f"*Hiding the strongest key of every head costs* {'; '.join(parts)}. The paper has no such controls."


def lost_with_top_key(model: str) -> dict[str, Any]:
    return exactly([t for t in finding("controls")["tests"] if t["model"] == model and t["statistic"] == LOST])


def exactly(found: list[dict[str, Any]]) -> dict[str, Any]:
    (one,) = found
    return one


def share(test: dict[str, Any]) -> str:
    """In per cent, with its interval."""
    value, low, high = (f"{100 * test[name]:.1f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def both(tests: list[dict[str, Any]]) -> str:
    return " and ".join(percent(test["value"]) for test in tests)


def times(test: dict[str, Any]) -> str:
    """A log ratio as a ratio, with its interval."""
    value, low, high = (f"{math.exp(test[name]):.2f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def table_of_tests(names: Sequence[str], folder: str = "") -> str:
    """Findings × random weights, the planted model and the built-in ones."""
    runs = {kind: f"{folder}{kind}" for kind in ("untrained", "planted")}
    columns = [*(f"untrained:{name}" for name in MODELS), "planted", *MODELS]
    lines = [f"| claim and statistic | {' | '.join(columns)} |", f"| --- | {' | '.join('---' for _ in columns)} |"]
    for name in names:
        for statistic in statistics_of(name, folder):
            cells = []
            for column in columns:
                run = next((run for start, run in runs.items() if column.startswith(start)), folder)
                found = finding(name, run)["tests"]
                test = next((t for t in found if t["model"] == column and t["statistic"] == statistic), None)
                cells.append(cell(test))
            lines.append(f"| `{name}` {statistic} | {' | '.join(cells)} |")
    return "\n".join(lines)


def statistics_of(name: str, folder: str = "") -> list[str]:
    found = (test for run in ("", "untrained", "planted") for test in finding(name, f"{folder}{run}")["tests"])
    return list(dict.fromkeys(test["statistic"] for test in found))


def cell(test: dict[str, Any] | None) -> str:
    if test is None:
        return ""
    if not test["comparisons"]:
        return SIGNS[test["verdict"]]
    differences = "; ".join(range_of(one, signed) for one in test["comparisons"])
    return f"{number(test['value'])} ({differences}) {SIGNS[test['verdict']]}"


def explanations() -> str:
    """What the paper explains, the verdict on each model, and the comparison that decides it."""
    lines = [f"| explanation | {' | '.join(f'`{name}`' for name in MODELS)} |", f"| --- | {' | '.join(3 * ['---'])} |"]
    for name in EXPLAINED:
        tests = finding(name, EXPLANATIONS)["tests"]
        cells = [why([test for test in tests if test["model"] == model]) for model in MODELS]
        lines.append(f"| **{name}**: {finding(name, EXPLANATIONS)['paper']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def why(tests: list[dict[str, Any]]) -> str:
    """The verdict on all tests of a model, and the comparison that it hangs on: the clearest one that refutes, or else the
    weakest one."""
    verdict = all_of([test["verdict"] for test in tests])
    if verdict == "not testable here":
        return "–" if not tests else f"not testable: {tests[0]['why']}"
    pairs = [(test, one) for test in tests if test["verdict"] == verdict for one in test["comparisons"]]
    towards = verdict != "refuted"
    test, one = max(pairs, key=lambda pair: pair[1]["p"] if towards else -pair[1]["p_opposite"])
    return f"**{verdict}**: {test['statistic']} {number(test['value'])}, {range_of(one, signed)} against {one['null']}"


def reasons() -> str:
    """Why each test of an explanation stays undecided on a built-in model."""
    lines = ["| explanation | model | statistic | why it is undecided |", "| --- | --- | --- | --- |"]
    for name in EXPLAINED:
        for test in finding(name, EXPLANATIONS)["tests"]:
            if test["model"] in MODELS and test["verdict"] == "undecided":
                lines.append(f"| **{name}** | `{test['model']}` | {test['statistic']} | {reason(test)} |")
    return "\n".join(lines)


def reason(test: dict[str, Any]) -> str:
    """The comparison that keeps a test from a verdict: one that alone would refute, one that shows nothing, or, where each
    alone is on the side of the claim, the correction for all tests."""
    against_it = [one for one in test["comparisons"] if one["p_opposite"] < LEVEL]
    open_ones = [one for one in test["comparisons"] if one["p"] >= LEVEL]
    if against_it:
        one = min(against_it, key=lambda one: one["p_opposite"])
        return (
            f"{range_of(one, signed)} against {one['null']} is against the claim alone (p = {one['p_opposite']:.3f}), not "
            f"after the correction for {tests_of_explanations()} tests"
        )
    if not open_ones:
        one = max(test["comparisons"], key=lambda one: one["p"])
        return (
            f"{range_of(one, signed)} against {one['null']} is for the claim alone (p = {one['p']:.3f}), not after the "
            f"correction for {tests_of_explanations()} tests (p = {test['p']:.2f})"
        )
    one = max(open_ones, key=lambda one: (one["low"] < 0 < one["high"], one["p"]))
    if one["low"] < 0 < one["high"]:
        reach = number((one["high"] - one["low"]) / 2)
        found = signed(one["difference"])
        return f"{cases(test)} show no difference below {reach} against {one['null']}, and it is {found} here"
    return f"{range_of(one, signed)} against {one['null']} is on the other side, and this null cannot refute"


def cases(test: dict[str, Any]) -> str:
    """How many problems a test rests on, and of how many, where the rest has nothing to measure."""
    settings = json.loads((RESULTS / EXPLANATIONS / "manifest.json").read_text(encoding="utf-8"))["settings"]
    count, known = test["problems"], (settings["generations"], settings["problems"])
    asked = min((number for number in known if number >= count), default=count)
    return f"{count} problems" if count == asked else f"the {count} of {asked} problems that have a case"


@cache
def tests_of_explanations() -> int:
    """That were corrected together."""
    return sum(1 for name in EXPLAINED for test in finding(name, EXPLANATIONS)["tests"] if test["comparisons"])


def paper_table() -> str:
    """Table 1 of the paper (GSM8K, %) beside ours: top / partner / mass."""
    published = [TABLE1[f"{model}/gsm8k/study"] for model in PUBLISHED]
    names = [*(f"{name}, paper" for name in PUBLISHED.values()), *(f"`{name}`" for name in MODELS)]
    lines = [f"| K | {' | '.join(names)} |", f"| ---: | {' | '.join('---:' for _ in names)} |"]
    for place, k in enumerate(COUNTS):
        chosen = [f"K = {k}, {select}" for select in ("top", "partner", "mass")] if k else ["K = 0"]
        ours = [" / ".join(f"{100 * row(model, c)['solved']:.0f}" for c in chosen) for model in MODELS]
        lines.append(f"| {k} | {' | '.join([*(str(figures[place]) for figures in published), *ours])} |")
    return "\n".join(lines)


def masking_table() -> str:
    """Every condition of Table 1: answers, likelihood, and what was hidden."""
    table = finding("table1")["tables"][0]
    lines = [
        "| model | hidden | solved | nats per token lost | keys per head | share of S | duty | Eq. 3 sinks | attention |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for found in table["rows"]:
        line = dict(zip(table["columns"], found, strict=True))
        more = range_of({"value": line["more nats"], "low": line["more: low"], "high": line["more: high"]}, signed)
        kept = [line[name] for name in HIDDEN]
        shown = [number(kept[0]) if kept[0] != "" else "", *(percent(x) if x != "" else "" for x in kept[1:])]
        cells = [line["model"], line["condition"], percent(line["solved"]), more, *shown]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


HIDDEN = (
    "keys hidden per head",
    "as share of S",
    "duty of a hidden key",
    "of them sinks by Eq. 3",
    "attention on them before",
)


def page_with(path: Path, text: str) -> str:
    """The page with what stands between the marks written anew."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def pages() -> dict[Path, str]:
    words = numbered(sentences()).replace("](docs/", "](")
    study = "\n\n".join([table_of_tests(USUAL), PAPER, paper_table(), MASKING, masking_table(), "**In words:**", words])
    explained = "\n\n".join([explanations(), UNDECIDED, reasons(), TESTS, table_of_tests(EXPLAINED, EXPLANATIONS)])
    texts = {"README.md": readme(), "docs/study.md": study, "docs/explanations.md": explained}
    return {ROOT / name: page_with(ROOT / name, text) for name, text in texts.items()}


UNDECIDED = (
    "**Why undecided.** Each undecided test of a trained model, with what stands in its way. *Alone*: at 5 %, without the "
    "correction (Holm)."
)
TESTS = "**All tests**, as in [the study](study.md#what-came-out):"
PAPER = (
    "**Table 1** of the paper (GSM8K) beside ours (word problems), % solved: top keys hidden / partners / mass-matched."
)
MASKING = (
    "**Masking with all controls.** *Duty*: of the steps in which a key could be hidden, those in which it was (if ever). "
    "*Eq. 3 sinks*: of the hidden keys. *Attention*: on the hidden keys of a head, in the map they were selected from."
)

if __name__ == "__main__":
    wrong = [path for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv:
        sys.exit(f"written by hand: {', '.join(map(str, wrong))}" if wrong else 0)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
