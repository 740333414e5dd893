"""Autoregressive models with keys hidden from every query: every step again from scratch, without a cache."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively

import jaxsink
from jaxsink import record
from jaxsink.sinks import MaskSinks, Threshold, TopK, Turns, detect

pytestmark = pytest.mark.usefixtures("quick_compilation")
PROMPTS = [[5, 6, 7, 8, 9], [11, 12, 13]]
SAMPLER = jaxsink.ARSampler(7, stop_at_eos=False)
BOTH = {"received": record.received(), "dropped": record.dropped(), "last": record.last_row()}


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return lively(FAMILIES["llama3.1"])


def by_hand(model: jaxsink.Model, prompt: list[int], policy: MaskSinks, force: list[int] | None = None):
    """(tokens, log-probabilities, received [T,L,H,S], drops): each step is a pass over all tokens so far."""
    config, tokens, received, drops, sums = model.config, list(prompt), [], [], []
    ranked = None
    rule = Threshold(policy.eps) if policy.rule == "threshold" else TopK(policy.k)
    for step in range(SAMPLER.max_new_tokens):
        drop = np.zeros((config.layers, 1, config.heads, len(tokens)), bool)
        if step:
            drop[..., :-1] = np.asarray(detect(ranked, rule))
        out = jaxsink.forward(model, [tokens], drop=drop, record=record.received())
        clean = jaxsink.forward(model, [tokens], record=record.received()).record
        ranked = np.asarray(out.record if policy.rank_on == "masked" else clean)
        received.append(np.asarray(out.record)[:, 0])
        drops.append(drop[:, 0])
        table = np.asarray(jax.nn.log_softmax(out.logits[0, -1]))
        token = int(table.argmax()) if force is None or step >= len(force) else force[step]
        sums.append(table[token])
        tokens.append(token)
    return tokens, sums, received, drops


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        MaskSinks(2, rows="all"),
        MaskSinks(1, rank_on="clean", rows="all"),
        MaskSinks(rule="threshold", eps=0.7, rows="all"),
    ],
    ids=["masked", "clean", "threshold"],
)
@pytest.mark.parametrize("force", [None, [[21, 22, 23], [24]]], ids=["free", "forced"])
@pytest.mark.parametrize("whole_map", [False, True])
def test_every_step_is_a_pass_over_all_tokens(model, policy, force, whole_map) -> None:
    sampler = jaxsink.ARSampler(7, stop_at_eos=False, whole_map=whole_map)
    out = jaxsink.generate(model, PROMPTS, sampler, record=BOTH, intervene=policy, force=force).on_host()
    for row, prompt in enumerate(PROMPTS):
        tokens, sums, received, drops = by_hand(model, prompt, policy, None if force is None else force[row])
        start = 5 - len(prompt)
        assert out.tokens[row, start:].tolist() == tokens
        np.testing.assert_allclose(out.log_prob[row, 5:], sums, atol=1e-4)
        for step, (scores, drop) in enumerate(zip(received, drops, strict=True)):
            end = start + scores.shape[-1]
            np.testing.assert_allclose(out.record["received"][step, :, row, :, start:end], scores, atol=1e-4)
            np.testing.assert_array_equal(out.record["dropped"][step, :, row, :, start:end], drop)
            np.testing.assert_allclose(out.record["last"][step, :, row].sum(axis=-1), 1.0, rtol=1e-5)
        assert any(drop.any() for drop in drops)


@pytest.mark.slow
def test_hidden_from_all_queries_is_not_hidden_from_the_newest_alone(model) -> None:
    """And without anything hidden both are the same, whatever runs beside it."""
    policies = (None, MaskSinks(2, "first", rows="all"))
    prompts, order = PROMPTS * 2, [0, 0, 1, 1]
    every = jaxsink.generate(model, prompts, SAMPLER, intervene=Turns(policies), policies=order)
    newest = jaxsink.generate(model, prompts, SAMPLER, intervene=Turns((None, MaskSinks(2, "first"))), policies=order)
    plain = jaxsink.generate(model, PROMPTS, SAMPLER)
    for out in (every, newest):
        np.testing.assert_array_equal(out.tokens[:2], plain.tokens)
        np.testing.assert_allclose(out.log_prob[:2], plain.log_prob, atol=1e-4)
    assert np.abs(np.asarray(every.log_prob[2:]) - np.asarray(newest.log_prob[2:])).max() > 1e-3
    again = jaxsink.generate(
        model, prompts, SAMPLER, intervene=Turns(policies), policies=order, devices=jax.devices()[:2], stream=2
    )
    np.testing.assert_array_equal(again.tokens, every.tokens)
    np.testing.assert_allclose(again.log_prob, every.log_prob, atol=1e-5)


def test_sequences_that_end_count_nowhere(model) -> None:
    end = model.config.eos_ids[0]
    policy = MaskSinks(1, rows="all")
    out = jaxsink.generate(
        model, PROMPTS, jaxsink.ARSampler(7), record=BOTH, intervene=policy, force=[[11, end], [15] * 7]
    ).on_host()
    assert out.steps.tolist() == [2, 7]
    assert not out.record["received"][2:, :, 0].any() and not out.record["dropped"][2:, :, 0].any()
    assert (out.log_prob[0, 7:] == 0).all()
