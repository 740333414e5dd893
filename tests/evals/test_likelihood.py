"""Likelihoods of given answers: against single passes, against loops over all masks, and whatever the batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import comb

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.evals.likelihood.canvases import canvases, count, drawn, every
from jaxsink.evals.likelihood.scoring import Likelihood, Pair, Scoring, likelihoods, pieces
from jaxsink.parallel import make_mesh, shard
from jaxsink.sinks import MaskSinks

pytestmark = pytest.mark.usefixtures("quick_compilation")
PAIRS = [Pair((5, 6, 7, 8), (11, 12, 13)), Pair((9,), (14,)), Pair((4, 20, 21), (22, 23, 24, 25, 26)), Pair((5,), ())]
DIFFUSION = ("llada", "dream", "gidd")
BLOCKS = ("sdar", "fast_dllm")
SCORING = Scoring(samples=7, rows=4, bucket=8)  # answers of up to three tokens are scored exactly


@pytest.fixture(scope="module")
def models() -> dict[str, jaxsink.Model]:
    return {name: lively(FAMILIES[name]) for name in ("llama3.1", *DIFFUSION, *BLOCKS)}


def tables(model: jaxsink.Model, tokens: list[list[int]], drop: np.ndarray | None = None) -> np.ndarray:
    """f64[B,S,V]: log-probabilities *of* the token at each place; sequences of one length, not padded."""
    scores = jaxsink.forward(model, np.array(tokens), drop=drop).logits
    found = np.asarray(jax.nn.log_softmax(scores), np.float64)
    shifted = model.config.shift_logits or model.config.attention == "causal"
    return np.roll(found, 1, axis=1) if shifted else found


def bound(model: jaxsink.Model, pair: Pair) -> float:
    """The expectation of LLaDA's estimate: mean over l, mean over the choices of l tokens, L / l times the sum."""
    length, total, first = len(pair.answer), 0.0, len(pair.context)
    for masks in range(1, length + 1):
        for chosen in combinations(range(length), masks):
            shown = [model.config.mask_id if n in chosen else token for n, token in enumerate(pair.answer)]
            table = tables(model, [[*pair.context, *shown]])[0]
            picked = sum(table[first + n, pair.answer[n]] for n in chosen)
            total += picked * length / masks / comb(length, masks) / length
    return total


def greedy(model: jaxsink.Model, context: tuple[int, ...], length: int) -> list[int]:
    """The surest of the masked places first, one per pass."""
    mask_id = model.config.mask_id
    tokens = [*context, *[mask_id] * length]
    while mask_id in tokens:
        table = tables(model, [tokens])[0]
        table[:, mask_id] = -np.inf
        place = max((n for n, token in enumerate(tokens) if token == mask_id), key=lambda n: table[n].max())
        tokens[place] = int(table[place].argmax())
    return tokens[len(context) :]


def values(found: list[Likelihood]) -> np.ndarray:
    return np.array([one.log_prob for one in found])


def test_an_autoregressive_answer_has_the_probability_of_one_pass(models) -> None:
    model = models["llama3.1"]
    best = int(tables(model, [[5, 6, 7, 8, 0]])[0, 4].argmax())
    pairs = [*PAIRS, Pair((5, 6, 7, 8), (best,)), Pair((5, 6, 7, 8), (best, 1, 2))]
    found = likelihoods(model, pairs, SCORING)
    for (context, answer), one in zip(pairs, found, strict=True):
        table = tables(model, [[*context, *answer]])[0]
        places = range(len(context), len(context) + len(answer))
        assert one.log_prob == pytest.approx(sum(table[p, t] for p, t in zip(places, answer, strict=True)), abs=1e-4)
        assert one.is_greedy == all(table[p].argmax() == t for p, t in zip(places, answer, strict=True))
    assert [one.is_greedy for one in found] == [False, False, False, True, True, False]


@pytest.mark.parametrize("name", DIFFUSION)
def test_a_short_answer_is_scored_over_all_masks(models, name: str) -> None:
    model = models[name]
    found = likelihoods(model, PAIRS, replace(SCORING, check_greedy=False))
    for number in (0, 1):
        assert found[number].log_prob == pytest.approx(bound(model, PAIRS[number]), abs=1e-4)
    assert found[3] == Likelihood(0.0, False)


@pytest.mark.parametrize("name", DIFFUSION)
def test_a_drawn_estimate_tends_to_the_bound(models, name: str) -> None:
    """Every estimate differs, their mean does not; with all masks the five tokens are exact too."""
    model, pair = models[name], PAIRS[2]
    exact = bound(model, pair)
    assert likelihoods(model, [pair], Scoring(31, check_greedy=False))[0].log_prob == pytest.approx(exact, abs=1e-4)
    some = [likelihoods(model, [pair], Scoring(16, seed=n, check_greedy=False))[0].log_prob for n in range(64)]
    error = np.std(some) / 8
    assert error > 0.01 and abs(np.mean(some) - exact) < 4 * error


def test_canvases_are_as_llada_draws_them() -> None:
    shown = drawn(6, 60_000, 3)
    masks = shown.masked.sum(axis=1)
    np.testing.assert_allclose(np.bincount(masks, minlength=7)[1:], 10_000)  # evenly spread
    np.testing.assert_allclose(shown.weight, 6 / masks / 60_000)
    np.testing.assert_allclose(shown.masked.mean(axis=0), 3.5 / 6, atol=0.01)  # no place is preferred
    firsts = np.bincount([int(drawn(6, 4, seed).masked[0].sum()) for seed in range(600)], minlength=7)[1:]
    assert firsts.min() > 70  # the spread begins anywhere
    whole = every(4)
    assert len({tuple(row) for row in whole.masked.tolist()}) == 15 and whole.masked.any(axis=1).all()
    np.testing.assert_allclose((whole.weight[:, None] * whole.masked).sum(axis=0), 1)  # a token's weights add up to one
    assert [len(canvases(n, 7, 0).weight) for n in (1, 3, 4)] == [count(n, 7) for n in (1, 3, 4)] == [1, 7, 7]


@pytest.mark.parametrize("name", DIFFUSION)
def test_greedy_answers_are_those_filled_surest_first(models, name: str) -> None:
    model = models[name]
    written = [
        Pair(context, tuple(greedy(model, context, n))) for context, n in (((5, 6), 4), ((9,), 1), ((4, 7, 8), 3))
    ]
    others = [Pair(context, (*answer[:-1], answer[-1] ^ 1)) for context, answer in written]
    found = likelihoods(model, written + others, SCORING)
    assert [one.is_greedy for one in found] == [True] * 3 + [False] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3.1", *DIFFUSION, *BLOCKS])
@pytest.mark.parametrize(
    "policy", [None, MaskSinks(1, select="random"), MaskSinks(1, select="partner")], ids=["plain", "masked", "partner"]
)
def test_neither_batch_nor_padding_nor_order_changes_a_result(models, name: str, policy: MaskSinks | None) -> None:
    scoring = replace(SCORING, intervene=policy)
    together = likelihoods(models[name], PAIRS, scoring)
    turned = likelihoods(models[name], PAIRS[::-1], replace(scoring, rows=3, bucket=16))[::-1]
    np.testing.assert_allclose(values(together), values(turned), atol=1e-4)
    (alone,) = likelihoods(models[name], PAIRS[2:3], replace(scoring, rows=1))
    assert alone.log_prob == pytest.approx(together[2].log_prob, abs=1e-4)
    other = likelihoods(models[name], PAIRS[2:3], replace(scoring, seed=1))[0].log_prob
    chance = models[name].config.is_diffusion or policy is not None
    assert (abs(other - alone.log_prob) > 1e-3) == chance


def test_a_mesh_changes_nothing(models) -> None:
    for name in ("llama3.1", "llada"):
        spread = shard(models[name], make_mesh(2, 2, jax.devices()[:4]))
        here, there = (likelihoods(model, PAIRS, SCORING) for model in (models[name], spread))
        np.testing.assert_allclose(values(here), values(there), atol=1e-4)
        assert [one.is_greedy for one in here] == [one.is_greedy for one in there]


def test_hidden_sinks_are_those_of_the_same_canvas(models) -> None:
    """A single token has one canvas, so that the two passes can be made by hand."""
    model, pair = models["llada"], PAIRS[1]
    shown = np.array([[*pair.context, model.config.mask_id]])
    seen = np.asarray(jaxsink.forward(model, shown, record=jaxsink.record.received()).record)  # [L,1,H,2]
    drop = np.arange(2) == seen.argmax(axis=-1, keepdims=True)
    expected = tables(model, shown.tolist(), drop)[0, 1, pair.answer[0]]
    (found,) = likelihoods(model, [pair], replace(SCORING, intervene=MaskSinks(1)))
    (plain,) = likelihoods(model, [pair], SCORING)
    assert found.log_prob == pytest.approx(expected, abs=1e-4) and abs(plain.log_prob - expected) > 1e-2


def test_an_autoregressive_model_with_hidden_sinks_writes_the_answer(models) -> None:
    model, policy, (context, answer) = models["llama3.1"], MaskSinks(1), PAIRS[2]
    sampler = jaxsink.ARSampler(5, stop_at_eos=False)
    forced = jaxsink.generate(model, [list(context)], sampler, force=[answer], intervene=policy)
    own = jaxsink.generate(model, [list(context)], sampler, intervene=policy)
    pairs = [PAIRS[2], Pair(context, tuple(np.asarray(own.response)[0].tolist()))]
    found = likelihoods(model, pairs, replace(SCORING, intervene=policy))
    assert found[0].log_prob == pytest.approx(float(np.asarray(forced.log_prob).sum()), abs=1e-4)
    assert abs(found[0].log_prob - likelihoods(model, PAIRS[2:3], SCORING)[0].log_prob) > 1e-2
    assert [one.is_greedy for one in found] == [False, True]


def test_guidance_mixes_in_the_model_without_the_context(models) -> None:
    model, (context, answer) = models["llada"], PAIRS[1]
    mask = model.config.mask_id
    with_it, without = (
        np.asarray(jaxsink.forward(model, np.array([row])).logits)[0, 1] for row in ([9, mask], [mask] * 2)
    )
    expected = jax.nn.log_softmax(without + 2.5 * (with_it - without))
    (found,) = likelihoods(model, [PAIRS[1]], replace(SCORING, cfg_scale=1.5))
    assert found.log_prob == pytest.approx(float(expected[answer[0]]), abs=1e-4)
    best = Pair(context, (int(np.argmax(np.where(np.arange(89) == mask, -np.inf, expected))),))
    assert likelihoods(model, [best], replace(SCORING, cfg_scale=1.5))[0].is_greedy


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_causal_model_is_scored_block_by_block(models, name: str) -> None:
    block = models[name].config.block_length
    assert block == 4
    pair = Pair((1, 2, 3, 4, 5, 6), (7, 8, 9, 10, 11, 12, 13))
    parts = list(pieces(pair, block))
    assert [(len(part.context), part.answer) for part in parts] == [(6, (7, 8)), (8, (9, 10, 11, 12)), (12, (13,))]
    (found,) = likelihoods(models[name], [pair], Scoring(15, bucket=8))
    assert found.log_prob == pytest.approx(sum(bound(models[name], part) for part in parts), abs=1e-4)


def test_long_answers_pass_the_head_in_parts(models) -> None:
    """More places than the head takes at a time."""
    answer = tuple(np.random.default_rng(0).integers(4, 60, 70).tolist())
    (found,) = likelihoods(models["llama3.1"], [Pair((5,), answer)], SCORING)
    table = tables(models["llama3.1"], [[5, *answer]])[0]
    assert found.log_prob == pytest.approx(sum(table[n, token] for n, token in enumerate(answer, 1)), abs=1e-3)


def test_mistakes_are_named(models) -> None:
    with pytest.raises(JaxsinkError, match="at least one token of context"):
        likelihoods(models["dream"], [Pair((), (1,))])
    with pytest.raises(JaxsinkError, match="cfg_scale is for diffusion"):
        likelihoods(models["llama3.1"], PAIRS, Scoring(cfg_scale=1.0))
    with pytest.raises(JaxsinkError, match="samples must be 1 or more"):
        Scoring(samples=0)
    with pytest.raises(JaxsinkError, match="no layer 9"):
        likelihoods(models["llada"], PAIRS, Scoring(intervene=MaskSinks(1, layers=(9,))))
