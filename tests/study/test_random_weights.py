"""What a study says where the answer is known: nothing of random weights, and what was planted of planted sinks.

A study that finds sinks in a model without training finds them in anything. The same study of a trained model has enough
generations to find them, so that silence is not for want of power.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from jaxsink_experiments.conduct import choose_experiments
from matplotlib import pyplot

from jaxsink.study import Finding, Study, Subject, subject
from jaxsink.study.finding import judge
from jaxsink.study.plots import styled

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_compilation")]
OF_GENERATIONS = ("fig1", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig10", "table2", "values")
EXPLANATIONS = ("waiting", "paths", "past", "token", "takeover", "frequency")
PLANTED = ("fig1", "fig5", "fig6", "fig7", "fig8", "fig10", "table2")


def brisk(name: str) -> Subject:
    """A subject that writes half its answer at once where it can."""
    found = subject(name)
    if not found.is_diffusion:
        return replace(found, sampler=replace(found.sampler, max_new_tokens=16))
    return replace(found, sampler=replace(found.sampler, steps=found.sampler.steps // 2))


def findings(names: Sequence[str], study: Study, monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    """Experiments on generations, with verdicts over all their tests; figures are not kept."""
    experiments = choose_experiments(names)
    predictions = tuple(prediction for one in experiments for prediction in one.predictions)
    study = replace(study, predictions=predictions)
    monkeypatch.setattr(Study, "figure", lambda self, name, figure: pyplot.close(figure) or name)
    with styled():
        return {one.name: one for one in judge([experiment.run(study) for experiment in experiments])}


def of_model(found: dict[str, Finding], model: str) -> dict[str, list[str]]:
    """Verdicts of the tests about a model, by experiment."""
    tests = {name: [test.verdict for test in one.tests if test.model == model] for name, one in found.items()}
    return {name: verdicts for name, verdicts in tests.items() if verdicts}


def test_nothing_is_supported_on_random_weights_and_sinks_are_found_in_a_trained_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = ("untrained:mini-llada", "untrained:mini-llama")
    subjects = [brisk(name) for name in (*random, "mini-llada")]
    found = findings(OF_GENERATIONS, Study(subjects, tmp_path, generations=8, untrained=7), monkeypatch)
    for name in random:
        said = of_model(found, name)
        assert len(said) >= 2 and not any("supported" in verdicts for verdicts in said.values()), said
    compared = [test for one in found.values() for test in one.tests if test.model == random[0] and test.comparisons]
    assert len(compared) >= 8  # they were tested
    trained = of_model(found, "mini-llada")
    assert [trained[name] for name in ("fig1", "fig3", "fig10")] == [["supported"]] * 3, {
        name: [test.in_words() for test in found[name].tests] for name in ("fig1", "fig3", "fig10")
    }


def test_no_explanation_is_supported_on_random_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study([brisk("untrained:mini-llada")], tmp_path, problems=5, generations=6, untrained=4)
    found = findings(EXPLANATIONS, study, monkeypatch)
    said = of_model(found, "untrained:mini-llada")
    assert set(said) == set(EXPLANATIONS) and not any("supported" in verdicts for verdicts in said.values()), said
    assert len([test for one in found.values() for test in one.tests if test.comparisons]) >= 8  # they were tested


def test_planted_sinks_are_found_and_what_was_not_planted_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study([brisk("planted")], tmp_path, generations=12, untrained=12)
    said = of_model(findings(PLANTED, study, monkeypatch), "planted")
    assert said["fig1"] == said["fig10"] == said["table2"] == ["supported"] and said["fig5"] == ["supported"] * 2
    for name in ("fig6", "fig7", "fig8"):  # whoever looks, whenever, the sinks are the same
        assert "supported" not in said[name], name
