"""docs/protocol.md and its figure are written from the committed results, and those results say what the page says."""

from __future__ import annotations

import importlib.util
import json
import re

import pytest
from support.paths import ROOT

from jaxsink.study.seeds import kind_of

FOUND = importlib.util.spec_from_file_location("protocol_page", ROOT / "docs" / "protocol.py")
assert FOUND is not None and FOUND.loader is not None
protocol = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(protocol)


def test_the_page_is_as_the_program_writes_it() -> None:
    assert protocol.PAGE.read_text(encoding="utf-8") == protocol.page(), "write it anew: python docs/protocol.py"


def test_the_figure_shows_these_results() -> None:
    (said,) = re.findall(r"<dc:description>(\w+)</dc:description>", protocol.FIGURE.read_text(encoding="utf-8"))
    assert said == protocol.digest(), "draw it anew: python docs/protocol.py"
    assert len(protocol.figure().axes) >= 6


def test_another_result_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = json.loads(json.dumps(protocol.finding("builtin")))
    changed["tables"][0]["rows"][0][4] += 0.01
    real = protocol.finding
    monkeypatch.setattr(protocol, "finding", lambda run: changed if run == "builtin" else real(run))
    assert protocol.PAGE.read_text(encoding="utf-8") != protocol.page()


def test_every_run_has_what_its_figures_rest_on_and_no_texts() -> None:
    assert {"builtin", "smollm2-text", "smollm2-gsm8k"} <= set(protocol.runs())
    for run in protocol.runs():
        rows = (protocol.RESULTS / run / "protocol-problems.csv").read_text(encoding="utf-8").splitlines()
        texts = [line["texts"] for line in protocol.table(run, "Loss") if line["hidden"] == "the top key"]
        assert len(rows) - 1 == sum(texts)
        assert (protocol.RESULTS / run / "manifest.json").is_file()
        assert max(map(len, rows[1:])) < 1000  # figures, no texts


def test_the_page_says_which_models_lack_a_control() -> None:
    names = ("mini-dream", "mini-llada", "mini-llama", "smollm2", "smollm2-adapted", "smollm2-step40")
    expected = f"*5 partners* and *equal mass to 5* were hidden in {', '.join(names)} alone; the other runs are older."
    assert protocol.gaps("Loss") == protocol.gaps("Written") == expected
    for line in protocol.table("builtin", "Where"):
        assert line["texts"] == 24 and line["0: gain: low"] < line["0: gain"] < line["0: gain: high"] < 0
    assert all("solved: low" in line for line in protocol.table("builtin", "Written"))


def test_five_top_keys_are_worse_than_their_controls_in_diffusion_models() -> None:
    found = [
        t for t in protocol.finding("builtin")["tests"] if "with 5 top keys, and not with others" in t["statistic"]
    ]
    assert len(found) == 6 and {t["verdict"] for t in found if t["model"] != "mini-llama"} == {"supported"}
    assert [[one["null"] for one in t["comparisons"]] for t in found] == [["5 partners", "equal mass to 5"]] * 6


def test_what_the_page_says_of_smollm2() -> None:
    """The first token: nothing is lost if every row loses it, very much if the newest does."""
    for run in ("smollm2-text", "smollm2-gsm8k"):
        line = protocol.line_of(run, "smollm2", "the first token")
        assert line["every row: high"] < 0.05 and line["newest or decoded rows: low"] > 0.5


def test_what_the_page_says_of_models_with_seeds() -> None:
    """Top keys cost more in few rows in each of nine runs; the ARM loses more than the DLMs unless every row loses them."""
    alone = [
        test
        for test in protocol.finding("shakespeare")["tests"]
        if test["statistic"].endswith(f"key hidden from {protocol.FEW}")
    ]
    assert len(alone) == 9 and {test["verdict"] for test in alone} == {"supported"}
    tests = json.loads((protocol.RESULTS / "shakespeare" / "seeds.json").read_text(encoding="utf-8"))["tests"]
    kinds = {
        test["statistic"].rpartition("hidden, ")[2]: test["comparisons"][0]
        for test in tests
        if test["comparisons"][0]["null"].startswith("shakespeare-dlm")
    }
    assert kinds["as in the paper"]["low"] > 0.3 and kinds[f"both {protocol.FEW}"]["low"] > 0.2
    assert kinds[f"both {protocol.EVERY}"]["low"] < 0 < kinds[f"both {protocol.EVERY}"]["high"]


def test_what_the_page_says_of_the_triple() -> None:
    """Run by run; and over seeds nothing is decided."""
    tests = protocol.finding("triple")["tests"]

    def verdicts(kind: str, keys: str) -> list[str]:
        statistic = f"nats per token lost with {keys} hidden from {protocol.FEW}"
        return sorted(t["verdict"] for t in tests if (kind_of(t["model"]), t["statistic"]) == (kind, statistic))

    assert verdicts("triple-arm", "the first token") == ["refuted", "refuted", "undecided"]
    assert verdicts("triple-adapted", "the first token") == ["refuted"] * 3
    pairs = [(kind, keys) for kind in ("triple-dlm", "triple-adapted") for keys in ("the top key", "5 top keys")]
    assert sorted(verdict for pair in pairs for verdict in verdicts(*pair)) == ["supported"] * 6 + ["undecided"] * 6
    assert verdicts("triple-arm", "the top key") + verdicts("triple-arm", "5 top keys") == ["undecided"] * 6
    kinds = [test for test in tests if test["comparisons"][0]["null"].startswith("triple-")]
    assert len(kinds) == 18 * 3 and {test["verdict"] for test in kinds} == {"refuted"}
    over = json.loads((protocol.RESULTS / "triple" / "seeds.json").read_text(encoding="utf-8"))["tests"]
    assert len(over) == 21 and {test["verdict"] for test in over} == {"undecided"}


def test_what_the_page_says_of_writing_on_a_cache() -> None:
    runs = [run for run in protocol.runs() if protocol.on_cache(run)]
    assert runs == [f"{name}-{kind}-cache" for name in ("mini", "triple") for kind in ("dual", "prefix")]
    assert protocol.table(runs[2], "Written") == protocol.table(runs[3], "Written")

    def verdicts(run: str, kind: str, keys: str = "") -> list[str]:
        tests = protocol.finding(run)["tests"]
        return [t["verdict"] for t in tests if t["statistic"].startswith(kind) and keys in t["statistic"]]

    for run in runs:
        manifest = json.loads((protocol.RESULTS / run / "manifest.json").read_text(encoding="utf-8"))
        assert all("cache='" in model["sampler"] for model in manifest["models"].values())
    assert all(verdicts(run, "change") == ["undecided"] * 3 for run in runs[2:])
    for run in runs[:2]:
        assert {*verdicts(run, "change", "first token"), *verdicts(run, "problems", "first token")} == {"refuted"}
        assert verdicts(run, "change", "top key") == ["supported"] * 2
    assert verdicts("mini-dual-cache", "problems", "top key") == ["undecided"] * 2


def test_a_line_over_seeds_by_hand() -> None:
    """Differences of 1, 2 and 6 nats, each with a standard error of 0.5."""

    def line(seed: int, value: float) -> dict[str, object]:
        parts = dict.fromkeys((protocol.EVERY, protocol.FEW, "difference"), value)
        ends = {f"{name}: {end}": value + 0.98 * sign for name in parts for end, sign in (("low", -1), ("high", 1))}
        return {"model": f"arm-{seed}", "hidden": "a key", "nothing hidden": 1.0, "texts": 9, **parts, **ends}

    (found,) = protocol.over_seeds([line(seed, value) for seed, value in enumerate((1.0, 2.0, 6.0))])
    assert (found["model"], found["difference"], found["nothing hidden"]) == ("arm (3 seeds)", 3.0, 1.0)
    reach = 4.302653 * (7.0 / 3 + 0.25) ** 0.5  # Student, two degrees of freedom
    assert (found["difference: low"], found["difference: high"]) == pytest.approx((3 - reach, 3 + reach), rel=1e-3)
