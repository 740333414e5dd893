"""docs/findings.md has the verdicts of the committed results, and what it says in words is in them."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from support.paths import ROOT

FOUND = importlib.util.spec_from_file_location("claims", ROOT / "docs" / "claims.py")
assert FOUND is not None and FOUND.loader is not None
claims = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(claims)

DIFFUSION = ("mini-llada", "mini-dream")


def test_the_page_is_as_the_program_writes_it() -> None:
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page(), "write it anew: python docs/claims.py"


def test_another_verdict_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: dict[tuple[str, str], list[dict[str, Any]]] = {**claims.tests()}
    changed["fig1", "mini-llada"] = [{**test, "verdict": "refuted"} for test in changed["fig1", "mini-llada"]]
    monkeypatch.setattr(claims, "tests", lambda: changed)
    assert claims.PAGE.read_text(encoding="utf-8") != claims.page()


def verdicts(name: str, *models: str) -> set[str | None]:
    return {claims.verdict(name, model) for model in models}


def test_what_the_page_says_holds() -> None:
    for name in ("fig1", "fig3", "fig10"):
        assert verdicts(name, *DIFFUSION) == {"supported"}
    in_nats = [
        test["verdict"]
        for model in DIFFUSION
        for test in claims.tests()["controls", model]
        if test["statistic"].startswith("nats")
    ]
    assert in_nats and set(in_nats) == {"supported"}


def test_what_the_page_says_does_not_hold() -> None:
    for name in ("fig4", "fig5", "values"):
        assert verdicts(name, *DIFFUSION) == {"refuted"}
    for name in claims.EXPLAINED:
        assert "supported" not in verdicts(name, *DIFFUSION)


def test_who_passes_the_gate() -> None:
    assert verdicts("gate", "smollm2") == {"supported"}
    assert "supported" not in verdicts("gate", "mini-llama")


def test_what_the_page_says_of_three_seeds() -> None:
    kinds = [model for model in claims.testbeds() if model.startswith("shakespeare-")]
    said = {(name, model): claims.verdict(name, model) for name, model in claims.tests() if model in kinds}
    del said["gate", "shakespeare-arm"]
    assert len(said) > 12 and said.pop(("fig7", "shakespeare-arm")) == "refuted"
    assert set(said.values()) == {"undecided"}


def test_no_model_that_was_trained_here_passes_the_gate() -> None:
    there = [model for name, model in claims.tests() if name == "gate" and model != "smollm2"]
    assert len(there) > 4 and "supported" not in verdicts("gate", *there)


def test_of_a_kind_with_seeds_one_run_elsewhere_does_not_count() -> None:
    """The adapted model that writes on a cache is one of three; over these its claim stands in the table."""
    kinds = ("triple-arm", "triple-dlm", "triple-adapted")
    assert verdicts("protocol", *kinds) == {"undecided"}
    assert {test["model"] for kind in kinds for test in claims.tests()["protocol", kind]} == {
        f"{kind} (3 seeds)" for kind in kinds
    }
