"""Given answers that an autoregressive model is scored on without steps: keys lost in every row, or the first token."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively
from support.reference.transformer import run as slow_run

import jaxsink
from jaxsink.evals.conditions import PLAIN, hide
from jaxsink.evals.engine import Evaluation, ask_all, batches
from jaxsink.evals.likelihood.denoising import bucketed
from jaxsink.evals.likelihood.scoring import Pair, Scoring, likelihoods
from jaxsink.evals.results import Result
from jaxsink.sampling.autoregressive import ARSampler
from jaxsink.sinks import MaskSinks
from jaxsink.tasks.exam import Exam, Question, gold_exam, ungraded
from jaxsink.tasks.vocabulary import tokenizer

pytestmark = pytest.mark.usefixtures("quick_compilation")
EVERY = (hide(2, rows="all"), hide(1, "first", rows="all"), hide(1, "partner", rows="all"))
NEWEST = (hide(2), hide(1, "first", rows="newest"))
LENGTHS = ((5, 6), (2, 9), (7, 3))  # of prompts and answers


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return lively(FAMILIES["llama3.1"])


def made(diverges: bool = True) -> Exam:
    rng = np.random.default_rng(4)
    asked = [
        Question(
            3 * n, f"made/{n}", tuple(rng.integers(4, 70, a).tolist()), ungraded, tuple(rng.integers(4, 70, b).tolist())
        )
        for n, (a, b) in enumerate(LENGTHS)
    ]
    facts = {"setting": {"name": "made"}, "benchmark": "made", "splits": []}
    exam = Exam("made", tuple(asked), ARSampler(8), tokenizer(), facts, bucket=8)
    return gold_exam(exam, diverges=diverges)


def lines_of(job: Evaluation) -> dict[tuple[int, str], Result]:
    kept: list[Result] = []
    ask_all(job, kept.extend)
    return {(line["index"], line["condition"]): line for line in kept}


@pytest.fixture(scope="module")
def found(model) -> dict[tuple[int, str], Result]:
    return lines_of(Evaluation(model, made(), (PLAIN, *EVERY, *NEWEST), seed=5, eps=None, rows=4))


def test_what_takes_steps_and_what_does_not(model) -> None:
    job = Evaluation(model, made(), (PLAIN, *EVERY, *NEWEST))
    assert job.in_passes == (PLAIN, *EVERY, NEWEST[1]) and job.in_steps == NEWEST[:1]
    assert {bucket.conditions for bucket in bucketed(job)} == {(PLAIN, NEWEST[1]), EVERY}
    assert {batch.conditions for batch in batches(job)} == {NEWEST[:1]}
    for settings in ({"k": 2}, {"k": 1, "spare": 2}, {"k": 1, "keep": True}, {"share": 0.2}):
        assert not MaskSinks(select="first", **settings).hides_the_same
    asked = replace(job, exam=replace(job.exam, gold=False))
    assert asked.in_passes == () and asked.in_steps == job.conditions


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("select", [None, "top", "first"])
def test_against_a_slow_transformer(model, found, select: str | None) -> None:
    """The whole map of an unmasked pass is ranked; then no query sees the keys, but for those that see nothing else."""
    config = model.config
    name = "K = 0" if select is None else {"top": "K = 2, top, all rows", "first": "K = 1, first, all rows"}[select]
    for question in made().questions:
        tokens = np.array([[*question.prompt, *question.gold]])[:, :-1]
        real = np.ones(tokens.shape, bool)
        plain, maps = slow_run(config, model.params, tokens, real)
        drop = np.zeros((config.layers, 1, config.heads, tokens.shape[1]), bool)
        if select == "first":
            drop[..., 0] = True
        elif select == "top":
            for index in np.ndindex(drop.shape[:-1]):
                drop[index][np.argsort(-maps[index].sum(axis=0), kind="stable")[:2]] = True
        p, q = (log_softmax(x[0]) for x in (plain, slow_run(config, model.params, tokens, real, drop)[0]))
        places = [(len(question.prompt) - 1 + n, token) for n, token in enumerate(question.gold)]
        line = found[question.index, name]
        assert line["tokens"] == len(question.gold) and "t" not in line
        assert line["log_prob"] == pytest.approx(sum(q[at, token] for at, token in places), rel=2e-4, abs=2e-4)
        apart = np.mean([(np.exp(p[at]) * (p[at] - q[at])).sum() for at, _ in places])
        assert line["kl"] == pytest.approx(apart, rel=2e-3, abs=1e-5) and (apart > 1e-3) == (select is not None)


def test_the_first_token_hidden_at_once_or_step_by_step(model) -> None:
    """Step by step, all rows run again for every token: the same from the second token on, as the first hides nothing."""
    question = made().questions[1]
    policy = MaskSinks(1, "first", rows="all")
    sampler = ARSampler(len(question.gold), stop_at_eos=False)
    out = jaxsink.generate(
        model, [list(question.prompt)], sampler, force=[list(question.gold)], intervene=policy
    ).on_host()
    stepwise = np.asarray(out.log_prob)[0, out.prompt_length :]
    sums = [
        likelihoods(model, [Pair(question.prompt, question.gold[:n])], Scoring(intervene=policy, bucket=8))[0].log_prob
        for n in (1, len(question.gold))
    ]
    assert sums[1] - sums[0] == pytest.approx(stepwise[1:].sum(), abs=1e-3)
    assert abs(sums[0] - stepwise[0]) > 1e-3


@pytest.mark.parametrize(("number", "name"), [(0, "K = 1, first, newest rows"), (1, "K = 2, top"), (2, "K = 0")])
def test_what_the_newest_row_loses_is_lost_as_when_the_answer_is_written(model, found, number: int, name: str) -> None:
    question = made().questions[number]
    sampler = ARSampler(len(question.gold), stop_at_eos=False)
    policy = {"K = 0": None, "K = 2, top": MaskSinks(2)}.get(name, MaskSinks(1, "first"))
    out = jaxsink.generate(
        model, [list(question.prompt)], sampler, force=[list(question.gold)], intervene=policy, seed=5 + question.index
    ).on_host()
    assert found[question.index, name]["log_prob"] == pytest.approx(float(np.sum(out.log_prob)), abs=1e-3)


@pytest.mark.slow
def test_neither_batch_nor_devices_nor_other_conditions_matter(model, found) -> None:
    job = Evaluation(model, made(), (PLAIN, *EVERY, *NEWEST), seed=5, eps=None)
    for other in (
        replace(job, rows=1),
        replace(job, devices=jax.devices()[:2]),
        replace(job, conditions=EVERY[:1]),
        replace(job, conditions=(PLAIN,)),
    ):
        for key, line in lines_of(other).items():
            assert line["log_prob"] == pytest.approx(found[key]["log_prob"], rel=1e-4)
            assert line["kl"] == pytest.approx(found[key]["kl"], rel=1e-3, abs=1e-5)


def test_what_is_there_is_not_done_again(model, found) -> None:
    job = Evaluation(model, made(), (PLAIN, *EVERY, *NEWEST), seed=5, eps=None)
    first = made().questions[0].index
    left: list[Result] = []
    done = {key for key in found if key[0] != first or key[1] == "K = 0"}
    ask_all(job, left.extend, done=done)
    assert {(line["index"], line["condition"]) for line in left} == set(found) - done
    for line in left:
        assert line["log_prob"] == pytest.approx(found[first, line["condition"]]["log_prob"], rel=1e-4)


def test_the_divergence_can_be_left_out(model, found) -> None:
    lines = lines_of(Evaluation(model, made(diverges=False), (PLAIN, EVERY[0], NEWEST[0]), seed=5, eps=None))
    for key, line in lines.items():
        assert "kl" not in line and line["log_prob"] == pytest.approx(found[key]["log_prob"], rel=1e-4)
    assert made(diverges=False).facts["figures"] == ["log_prob"] and made().facts["figures"] == ["log_prob", "kl"]
