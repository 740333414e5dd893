"""Diffusion models with keys hidden from some queries only: every step again in slow NumPy, with and without caches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively
from support.reference.transformer import Slowly
from support.slow_masking import Slow, losing

import jaxsink
from jaxsink import JaxsinkError, record
from jaxsink.parallel import make_mesh, shard
from jaxsink.sampling.base import Sampler
from jaxsink.sinks import MaskSinks, Turns

pytestmark = pytest.mark.usefixtures("quick_compilation")
PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
SEED, BLOCK, NEW = 3, 4, 8
BOTH = {"received": record.received(), "dropped": record.dropped()}
LLADA, DREAM = jaxsink.LLaDASampler(NEW, NEW, BLOCK), jaxsink.DreamSampler(NEW, NEW)
CASES = [
    ("llada", None, MaskSinks(2, rows="decoded")),
    ("llada", None, MaskSinks(2, "partner", rows="decoded")),
    ("llada", None, MaskSinks(1, "mass", rows="masked")),
    ("llada", None, MaskSinks(2, rank_on="clean", rows="decoded")),
    ("llada", None, MaskSinks(1, "first", rows="masked")),
    ("dream", None, MaskSinks(2, rows="decoded")),
    ("dream", None, MaskSinks(2, rows="masked")),
    ("llada", "dual", MaskSinks(2, rows="decoded")),
    ("llada", "dual", MaskSinks(1, "first", rows="decoded")),
    ("llada", "prefix", MaskSinks(2, rows="masked")),
    ("llada", "prefix", MaskSinks(1, rank_on="clean", rows="decoded")),
]


def sampler_of(family: str, cache: Any = None) -> Sampler:
    return DREAM if family == "dream" else replace(LLADA, cache=cache)


def run(family: str, cache: Any, policy: Any, prompts: Any = PROMPTS, **options: Any) -> jaxsink.Generation:
    model = options.pop("model", None) or lively(FAMILIES[family])
    sampler = sampler_of(family, cache)
    return jaxsink.generate(model, prompts, sampler, record=BOTH, intervene=policy, seed=SEED, **options).on_host()


def replay(family: str, cache: Any, policy: MaskSinks, out: jaxsink.Generation, row: int) -> None:
    """One sequence of a generation, step by step: what was hidden, who received what, and which tokens were chosen."""
    model = lively(FAMILIES[family])
    config, start = model.config, int(out.mask[row].argmax())
    length, shift = out.mask.shape[1] - start, int(config.shift_logits)
    heads = [(layer, head) for layer in range(config.layers) for head in range(config.heads)]
    policies = {at: Slow(policy, SEED, *at, (config.layers, config.heads)) for at in heads}
    slow, clean, ranked = Slowly(model, length), Slowly(model, length), None
    for step in range(NEW):
        ids = out.canvas(step, config.mask_id)[row, start:].tolist()
        begin = length - NEW + (0 if family == "dream" else step // BLOCK * BLOCK)
        window = range(begin, length if family == "dream" else begin + BLOCK)
        masked = [j for j, token in enumerate(ids) if token == config.mask_id]
        queries = losing(policy.rows, masked, window, length, shift)
        keys = np.zeros((config.layers, config.heads, length), bool)
        for at in heads:
            if ranked is not None:
                keys[at][sorted(policies[at].step(ranked[at]))] = True
        np.testing.assert_array_equal(out.record["dropped"][step, :, row, :, start:], keys)
        drop = np.zeros((config.layers, config.heads, length, length), bool)
        drop[:, :, queries] = keys[:, :, None]
        first, last = 0, length
        if cache is not None and step % BLOCK:
            first, last = begin, length if cache == "prefix" else begin + BLOCK
        logits, maps = slow.run(ids, first, last, drop)
        np.testing.assert_allclose(out.record["received"][step, :, row, :, start:], maps.sum(2), atol=1e-4)
        for j in np.flatnonzero(out.committed_at[row, start:] == step):
            assert j in window and logits[max(j - shift, 0) - first].argmax() == out.tokens[row, start + j]
        if policy.rank_on == "clean":
            first, maps = 0, clean.run(ids, 0, length)[1]
        ranked = maps[:, :, [j - first for j in queries if 0 <= j - first < maps.shape[2]]].sum(2)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "cache", "policy"), CASES, ids=lambda x: repr(x)[:70])
def test_every_step_is_what_slow_code_does(family: str, cache: Any, policy: MaskSinks) -> None:
    out = run(family, cache, policy)
    for row in range(len(PROMPTS)):
        replay(family, cache, policy, out, row)
    hidden = out.record["dropped"]
    assert hidden[1:].any() and not hidden[0].any()
    usual = run(family, cache, replace(policy, rows=None))
    assert np.abs(usual.record["received"] - out.record["received"]).max() > 1e-2  # other rows, other attention


def test_where_all_of_a_response_is_decoded_at_once_both_are_the_same() -> None:
    """Unless logits are shifted, the queries of masks are those from which masks are read."""
    sampler = jaxsink.LLaDASampler(NEW, NEW, NEW)
    model = lively(FAMILIES["llada"])
    found = [
        jaxsink.generate(model, PROMPTS, sampler, record=BOTH, intervene=MaskSinks(2, rows=rows)).on_host()
        for rows in ("decoded", "masked")
    ]
    np.testing.assert_array_equal(found[0].record["received"], found[1].record["received"])
    apart = [run("llada", None, MaskSinks(2, rows=rows)).record["received"] for rows in ("decoded", "masked")]
    assert np.abs(apart[0] - apart[1]).max() > 1e-2  # here in blocks


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_neither_batch_nor_devices_nor_backend_matter(family: str) -> None:
    policies = Turns((MaskSinks(2, "partner", rows="decoded"), None, MaskSinks(1, "mass", rows="decoded")))
    prompts, order = [*PROMPTS, *PROMPTS[::-1]], [0, 1, 2, 0]
    out = run(family, None, policies, prompts, policies=order)
    for row, prompt in enumerate(prompts):
        alone = run(family, None, policies.policies[order[row]], [prompt])
        assert alone.response[0].tolist() == out.response[row].tolist()
        same = alone.record["dropped"][:, :, 0] == out.record["dropped"][:, :, row, :, 6 - len(prompt) :]
        assert same.all()
    spread = shard(lively(FAMILIES[family]), make_mesh(2, 2, jax.devices()[:4]))
    others: list[dict[str, Any]] = [{"devices": jax.devices()[:2]}, {"backend": "blocked"}, {"backend": "pallas"}]
    for options in [*others, {"model": spread}, {"stream": 3}]:
        again = run(family, None, policies, prompts, policies=order, **options)
        np.testing.assert_array_equal(again.tokens, out.tokens)
        np.testing.assert_array_equal(again.record["dropped"], out.record["dropped"])
        np.testing.assert_allclose(again.record["received"], out.record["received"], atol=1e-4)


def test_records_of_the_queries_that_lose_keys() -> None:
    kept = {"own": record.where_hidden(record.received()), "diagonal": record.where_hidden(record.diagonal())}
    policy, model = MaskSinks(2, rows="masked"), lively(FAMILIES["llada"])
    by_query = {"kinds": record.received_by_query(), "maps": record.maps()}
    out = jaxsink.generate(model, PROMPTS, LLADA, record=kept | by_query, intervene=policy).on_host()
    np.testing.assert_allclose(out.record["own"], out.record["kinds"]["masked"], atol=1e-5)
    for step in range(NEW):
        masked = (out.canvas(step, model.config.mask_id) == model.config.mask_id) & out.mask
        own = np.einsum("lbhqq,bq->lbh", out.record["maps"][step], masked) / masked.sum(axis=1)[:, None]
        np.testing.assert_allclose(out.record["diagonal"][step], own, atol=1e-5)
    plain = jaxsink.generate(model, PROMPTS, LLADA, record=kept | by_query).on_host()  # nobody is named: all queries
    np.testing.assert_allclose(plain.record["own"], plain.record["maps"].sum(axis=4), atol=1e-5)


@pytest.mark.parametrize("rows", ["decoded", "masked"])
def test_what_such_rows_are_not_for(rows: Any) -> None:
    with pytest.raises(JaxsinkError, match=f"rows='{rows}' is for diffusion models"):
        jaxsink.generate(lively(FAMILIES["llama3.1"]), PROMPTS, jaxsink.ARSampler(2), intervene=MaskSinks(1, rows=rows))
    with pytest.raises(JaxsinkError, match="mask all and"):
        Turns((MaskSinks(1, rows="all"), MaskSinks(1, rows=rows)))
    assert Turns((None, MaskSinks(1, rows=rows))).rows == rows
