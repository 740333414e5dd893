"""Published answers filled in by diffusion models: against a slow transformer in float64, whatever batch and devices."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively
from support.reference.transformer import run as slow_run
from support.slow_masking import losing

import jaxsink
from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import PLAIN, conditions, hide
from jaxsink.evals.engine import Evaluation, ask_all, evaluate
from jaxsink.evals.likelihood.canvases import SHARES, masked_share
from jaxsink.evals.likelihood.denoising import bucketed, parts_of, question_rows
from jaxsink.evals.likelihood.passes import Pass, run_rows
from jaxsink.evals.results import Result, read_results
from jaxsink.evals.summary import summarise
from jaxsink.parallel import make_mesh, shard
from jaxsink.runs.stopping import StoppedError
from jaxsink.sampling.llada import LLaDASampler
from jaxsink.tasks.exam import Exam, Question, gold_exam, ungraded
from jaxsink.tasks.vocabulary import tokenizer

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONDITIONS = conditions((0, 2), ("top", "random", "bottom", "first"))
LENGTHS = ((5, 6), (9, 4), (3, 12), (6, 1))  # of prompts and answers
CANVASES = 2


def exam_of(config: jaxsink.ModelConfig, canvases: int = CANVASES) -> Exam:
    rng = np.random.default_rng(4)
    asked = [
        Question(
            7 * n, f"made/{n}", tuple(rng.integers(4, 70, a).tolist()), ungraded, tuple(rng.integers(4, 70, b).tolist())
        )
        for n, (a, b) in enumerate(LENGTHS)
    ]
    facts = {"setting": {"name": "made"}, "benchmark": "made", "splits": []}
    made = Exam("made", tuple(asked), LLaDASampler(8, 8, 8), tokenizer(), facts, bucket=8)
    return gold_exam(made, canvases)


def job_of(family: str, **options: Any) -> Evaluation:
    model = lively(FAMILIES[family])
    return Evaluation(model, exam_of(model.config), CONDITIONS, **{"seed": 3, "rows": 10, "eps": None, **options})


def lines_of(job: Evaluation) -> dict[tuple[int, str], Result]:
    kept: list[Result] = []
    ask_all(job, kept.extend)
    return {(line["index"], line["condition"]): line for line in kept}


FILLING = ("llada", "dream", "sdar", "fast_dllm")


@pytest.fixture(scope="module")
def found() -> dict[str, dict[tuple[int, str], Result]]:
    return {family: lines_of(job_of(family)) for family in FILLING}


def close(one: dict[tuple[int, str], Result], other: dict[tuple[int, str], Result]) -> None:
    assert set(one) == set(other)
    for key, line in one.items():
        for mine, theirs in [(line, other[key]), *((line["t"][t], other[key]["t"][t]) for t in line["t"])]:
            assert mine["tokens"] == theirs["tokens"]
            assert mine["log_prob"] == pytest.approx(theirs["log_prob"], rel=1e-4, abs=1e-4)
            assert mine["kl"] == pytest.approx(theirs["kl"], rel=1e-3, abs=1e-5)


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def hidden_keys(received: np.ndarray, select: str, k: int) -> np.ndarray:
    """bool[L,1,H,S] of scores [L,1,H,S]: the k keys of each head, ties in order of position."""
    drop = np.zeros(received.shape, bool)
    for index in np.ndindex(received.shape[:-1]):
        scores = received[index]
        order = {"top": np.argsort(-scores, kind="stable"), "bottom": np.argsort(scores, kind="stable")}
        drop[index][range(k) if select == "first" else order[select][:k]] = True
    return drop


def slow_figures(
    job: Evaluation, question: Question, select: str | None, rows: str | None = None
) -> dict[float, tuple[float, int, float]]:
    """By share of masked tokens: (sum of log-probabilities, tokens, mean divergence), canvas by canvas, in float64."""
    config, shift = job.config, int(job.config.shift_logits)
    kept: dict[float, list[tuple[float, float]]] = {share: [] for share in SHARES}
    for row in question_rows(job, question):
        tokens, real = row.tokens[None], np.ones((1, len(row.tokens)), bool)
        plain, maps = slow_run(config, job.model.params, tokens, real)
        masked = plain
        if select is not None:
            masks = np.flatnonzero(row.tokens == config.mask_id).tolist()
            queries = losing(rows, masks, range(row.given, len(row.tokens)), len(row.tokens), shift)
            keys = hidden_keys(maps[:, :, :, queries].sum(axis=3), select, 2)
            drop = np.zeros(maps.shape, bool)
            drop[:, :, :, queries] = keys[:, :, :, None]
            masked = slow_run(config, job.model.params, tokens, real, drop)[0]
        p, q = log_softmax(plain[0]), log_softmax(masked[0])
        for place, token in enumerate(row.answer):
            position = row.given + place
            assert (row.tokens[position] == config.mask_id) == row.scored[place]
            if row.scored[place]:
                of, to = p[position - shift], q[position - shift]
                kept[row.share].append((to[token], (np.exp(of) * (of - to)).sum()))
    return {t: (sum(a for a, _ in found), len(found), np.mean([b for _, b in found])) for t, found in kept.items()}


@pytest.mark.slow
@pytest.mark.parametrize("family", FILLING)
@pytest.mark.parametrize("select", [None, "top", "bottom", "first"])
def test_every_figure_against_a_slow_transformer(found, family: str, select: str | None) -> None:
    job = job_of(family)
    for question in job.exam.questions[:2]:
        line = found[family][question.index, "K = 0" if select is None else f"K = 2, {select}"]
        expected = slow_figures(job, question, select)
        for share, (log_prob, tokens, kl) in expected.items():
            part = line["t"][str(share)]
            assert part["tokens"] == tokens
            assert part["log_prob"] == pytest.approx(log_prob, rel=2e-4, abs=2e-4)
            assert part["kl"] == pytest.approx(kl, rel=2e-3, abs=2e-6)
        sums = list(zip(*expected.values(), strict=True))
        assert line["tokens"] == sum(sums[1]) and line["log_prob"] == pytest.approx(sum(sums[0]), rel=2e-4, abs=2e-4)
        assert line["kl"] == pytest.approx(np.average(sums[2], weights=sums[1]), rel=2e-3, abs=2e-6)
        assert (line["kl"] > 1e-3) == (select is not None)


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["decoded", "masked"])
@pytest.mark.parametrize("family", FILLING)
def test_keys_hidden_from_the_queries_of_masks_alone(found, family: str, rows: Any) -> None:
    """They are ranked by what these queries look at; the other conditions are what they are beside them."""
    wanted = (PLAIN, hide(2, rows=rows), hide(2, "first", rows=rows), hide(2, "random"))
    job = job_of(family)
    lines = lines_of(replace(job, conditions=wanted))
    for question in job.exam.questions[:2]:
        for condition, select in zip(wanted[1:3], ("top", "first"), strict=True):
            line = lines[question.index, str(condition)]
            for share, (log_prob, tokens, kl) in slow_figures(job, question, select, rows).items():
                part = line["t"][str(share)]
                assert part["tokens"] == tokens and part["log_prob"] == pytest.approx(log_prob, rel=2e-4, abs=2e-4)
                assert part["kl"] == pytest.approx(kl, rel=2e-3, abs=2e-6)
            assert line["log_prob"] != pytest.approx(found[family][question.index, f"K = 2, {select}"]["log_prob"])
    kept = {(index, name) for index, name in lines if name in ("K = 0", "K = 2, random")}
    close({key: lines[key] for key in kept}, {key: found[family][key] for key in kept})


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", [{"rows": 1}, {"rows": 100}, {"devices": 2}, {"devices": 8, "rows": 16}, {"mesh": (2, 2)}], ids=str
)
def test_rows_and_devices_change_nothing(found, place: dict[str, Any]) -> None:
    for family in ("llada", "sdar") if "rows" in place else ("dream",):
        job = job_of(family, rows=place.get("rows", 10))
        if "devices" in place:
            job = replace(job, devices=jax.devices()[: place["devices"]])
        if "mesh" in place:
            job = replace(job, model=shard(job.model, make_mesh(*place["mesh"], jax.devices()[:4])))
        close(lines_of(job), found[family])


@pytest.mark.slow
def test_neither_padding_nor_the_other_conditions_change_a_result(found) -> None:
    job = job_of("llada")
    padded = replace(job, exam=replace(job.exam, bucket=32), rows=7)
    close(lines_of(padded), found["llada"])
    for condition in (PLAIN, hide(2, "random")):
        alone = lines_of(replace(job, conditions=(condition,)))
        close(alone, {key: line for key, line in found["llada"].items() if key[1] == str(condition)})
    clean = lines_of(
        replace(job, conditions=(PLAIN, hide(2, "top"), hide(2, "top", "clean")))
    )  # both rank the first pass
    for question in job.exam.questions:
        one, other = (clean[question.index, name] for name in ("K = 2, top", "K = 2, top, ranked on clean maps"))
        assert one["log_prob"] == pytest.approx(other["log_prob"], rel=1e-5)


@pytest.mark.slow
def test_canvases_follow_from_seed_question_and_share_alone(found) -> None:
    job = job_of("llada")
    question = job.exam.questions[2]
    rows = list(question_rows(job, question))
    again = list(question_rows(replace(job, conditions=(PLAIN,), rows=3), question))
    assert all((a.tokens == b.tokens).all() and a.seed == b.seed for a, b in zip(rows, again, strict=True))
    assert [row.share for row in rows] == [0.25] * 2 + [0.5] * 2 + [0.75] * 2
    assert [int(row.scored.sum()) for row in rows] == [3, 3, 6, 6, 9, 9]  # of twelve
    assert len({row.seed for row in rows}) == 6 and len({row.scored.tobytes() for row in rows}) == 6
    other = list(question_rows(replace(job, seed=4), question))
    assert any((a.tokens != b.tokens).any() for a, b in zip(rows, other, strict=True))
    neighbour = list(question_rows(replace(job, seed=3 + question.index), replace(question, index=0)))
    assert all((a.tokens == b.tokens).all() for a, b in zip(rows, neighbour, strict=True))  # seed + index
    more = replace(job, exam=exam_of(job.config, 5))
    assert len(list(question_rows(more, question))) == 15
    for (index, _), line in found["llada"].items():
        length = next(len(q.gold) for q in job.exam.questions if q.index == index)
        wanted = {str(t): CANVASES * max(1, int(t * length + 0.5)) for t in SHARES}
        assert {t: part["tokens"] for t, part in line["t"].items()} == wanted


def test_shares_are_drawn_evenly() -> None:
    drawn = masked_share(10, 0.25, 20_000, np.random.default_rng(0))
    assert (drawn.sum(axis=1) == 3).all()  # 2.5, rounded up
    np.testing.assert_allclose(drawn.mean(axis=0), 0.3, atol=0.02)
    assert (masked_share(1, 0.25, 4, np.random.default_rng(0)).sum(axis=1) == 1).all()


def test_a_block_causal_model_fills_in_block_by_block() -> None:
    job = job_of("sdar")
    assert job.config.block_length == 4
    question = job.exam.questions[0]  # five and six tokens
    parts = parts_of(job, question)
    assert [(len(part.context), len(part.answer)) for part in parts] == [(5, 3), (8, 3)]
    rows = list(question_rows(job, question))
    assert len(rows) == 2 * len(SHARES) * CANVASES and {len(row.tokens) for row in rows} == {8, 11}
    assert len({bucket.shape for bucket in bucketed(job)}) == 2  # an answer's parts share a shape


def test_random_keys_are_as_many_and_differ_between_canvases() -> None:
    job = job_of("llada")
    question = job.exam.questions[0]
    rows = list(question_rows(job, question))
    seen: list[np.ndarray] = []
    policy = hide(2, "random").policy

    def spying(previous: Any) -> Any:
        drop = policy(previous)
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), drop)
        return drop

    shape = next(iter(bucketed(replace(job, exam=replace(job.exam, questions=(question,)))))).shape
    run_rows(job.model, rows, shape, Pass(spying))
    jax.effects_barrier()
    (drop,) = seen
    assert (drop.sum(axis=-1) == 2).all()
    padding = shape.length - len(rows[0].tokens)
    assert not drop[..., :padding].any()
    assert len({drop[:, row].tobytes() for row in range(len(rows))}) == len(rows)


def test_stopped_and_torn_runs_go_on(found, tmp_path: Path) -> None:
    looks = iter([False] * 3 + [True] * 100)
    with pytest.raises(StoppedError):
        evaluate(job_of("llada"), tmp_path, lambda: next(looks))
    path = tmp_path / "results-0001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert 2 < len(lines) < len(found["llada"])
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:30])  # killed while it wrote
    counted: list[int] = []
    ask_all(job_of("llada"), lambda new: counted.append(len(new)), done=read_lines(tmp_path, lines[:-1]))
    assert sum(counted) == len(found["llada"]) - len(lines) + 1  # nothing is done twice
    evaluate(job_of("llada"), tmp_path)
    close(read_results(tmp_path), found["llada"])
    evaluate(job_of("llada"), tmp_path, partial(pytest.fail, "there is nothing left"))


def read_lines(folder: Path, lines: list[bytes]) -> set[tuple[int, str]]:
    return {(value["index"], value["condition"]) for value in map(json.loads, lines)}


def test_shards_add_up(found, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        evaluate(job_of("llada", shard=(number, 3)), tmp_path)
    close(read_results(tmp_path), found["llada"])


def test_other_canvases_are_another_run(tmp_path: Path) -> None:
    evaluate(job_of("llada"), tmp_path)
    job = job_of("llada")
    with pytest.raises(JaxsinkError, match="canvases is 2, not 3"):
        evaluate(replace(job, exam=exam_of(job.config, 3)), tmp_path)
    with pytest.raises(JaxsinkError, match="at least one per share"):
        exam_of(job.config, 0)


def test_summary_by_hand(found, tmp_path: Path) -> None:
    evaluate(job_of("llada"), tmp_path)
    results = summarise(tmp_path, str)
    lines = read_results(tmp_path)
    by_name = {line["condition"]: line for line in results["conditions"]}
    tests = {(test["condition"], test["against"]): test for test in results["tests"]}
    for name in map(str, CONDITIONS):
        mine = [line for (_, label), line in lines.items() if label == name]
        plain = [line for (_, label), line in lines.items() if label == "K = 0"]
        for share in ("all", *map(str, SHARES)):
            parts = mine if share == "all" else [line["t"][share] for line in mine]
            figures = by_name[name] if share == "all" else by_name[name]["t"][share]
            tokens = sum(part["tokens"] for part in parts)
            mean = sum(part["log_prob"] for part in parts) / tokens
            assert figures["perplexity"] == pytest.approx(np.exp(-mean)) and figures["tokens"] == tokens
            assert figures["low"] <= figures["perplexity"] <= figures["high"]
            assert figures["kl"] == pytest.approx(sum(part["kl"] * part["tokens"] for part in parts) / tokens)
            assert figures["kl_low"] <= figures["kl"] <= figures["kl_high"]
            if name != "K = 0":
                others = plain if share == "all" else [line["t"][share] for line in plain]
                test = tests[name, "K = 0"] if share == "all" else tests[name, "K = 0"]["t"][share]
                gaps = [
                    a["log_prob"] / a["tokens"] - b["log_prob"] / b["tokens"]
                    for a, b in zip(parts, others, strict=True)
                ]
                assert test["difference"] == pytest.approx(np.mean(gaps)) and 0 < test["p"] <= 1
    assert results["gold"] and not results["sinks"]
