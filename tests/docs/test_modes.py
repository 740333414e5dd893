"""The page on modes is written from the committed files of the experiment, and says what they say."""

from __future__ import annotations

import importlib.util

from support.paths import ROOT

FOUND = importlib.util.spec_from_file_location("modes", ROOT / "docs" / "modes.py")
assert FOUND is not None and FOUND.loader is not None
modes = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(modes)


def test_the_page_is_as_the_program_writes_it() -> None:
    assert modes.PAGE.read_text(encoding="utf-8") == modes.page(), "python docs/modes.py"


def test_what_the_page_says_is_in_the_files() -> None:
    lines = {(line["model"], line["attention"].split(" ")[0]): line for line in modes.modes()}
    verdicts = {(test["model"], test["statistic"]): test for test in modes.tests()}
    opposite = {"mini-llada": "causal", "mini-dream": "causal", "mini-llama": "bidirectional"}
    for model, mode in opposite.items():
        moved, blocks = (float(lines[model, m]["sinks that moved"]) for m in (mode, "block_causal"))
        assert 0.705 < moved < 0.775 and 0.3 < blocks < moved
        own = next(test for (name, words), test in verdicts.items() if name == model and "own mode" in words)
        assert own["verdict"] == "supported"
        for words in ("opposite pattern", "block-causal"):
            test = next(test for (name, found), test in verdicts.items() if name == model and words in found)
            assert test["verdict"] == "undecided"
            assert 0.015 < test["comparisons"][0]["null_value"] < 0.075
    for model, least in (("mini-llada", 1.9), ("mini-dream", 3.9)):
        both, causal = (float(lines[model, m]["score of the first token"]) for m in ("bidirectional", "causal"))
        assert both / causal > least
    dream = [lines["mini-dream", mode] for mode in ("bidirectional", "causal")]
    assert [f"{float(line['lost: the top key']):.2f}" for line in dream] == ["1.24", "0.24"]
    assert f"{float(dream[1]['nats per token']):.2f}" == "0.38"
    harmful = {name: test["verdict"] for (name, words), test in verdicts.items() if "the opposite mode" in words}
    assert harmful == {"mini-dream": "supported"} | dict.fromkeys(("mini-llada", "mini-llama"), "not testable here")
    refuted = {test["model"] for test in modes.tests() if test["verdict"] == "refuted"}
    assert refuted == {"mini-llada", "mini-dream"}
