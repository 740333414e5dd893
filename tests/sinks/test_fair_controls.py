"""Every selection against slow NumPy; what matched controls promise; and that neither batch, padding nor devices matter."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively
from support.slow_masking import Slow

import jaxsink
from jaxsink import JaxsinkError, record
from jaxsink.parallel import make_mesh, shard
from jaxsink.sampling.interventions import Previous
from jaxsink.sinks import MaskSinks, Threshold, Turns
from jaxsink.sinks.matched import as_much, partners, random_order

pytestmark = pytest.mark.usefixtures("quick_compilation")
PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
BOTH = {"received": record.received(), "dropped": record.dropped()}
SAMPLERS = {
    "llada": jaxsink.LLaDASampler(8, 8, 4),
    "dream": jaxsink.DreamSampler(8, 8),
    "llama3.1": jaxsink.ARSampler(10, stop_at_eos=False),
}


def run(family: str, policy, prompts=PROMPTS, seed=3, **options) -> jaxsink.Generation:
    model = lively(FAMILIES[family])
    out = jaxsink.generate(model, prompts, SAMPLERS[family], record=BOTH, intervene=policy, seed=seed, **options)
    return out.on_host()


def ranked_maps(family: str, policy: MaskSinks, out: jaxsink.Generation) -> np.ndarray:
    """[T,L,B,H,S]: what the policy ranked, by passes of their own if these were clean."""
    if policy.rank_on == "masked":
        return out.record["received"]
    model = lively(FAMILIES[family])
    canvases = [out.canvas(step, model.config.mask_id) for step in range(len(out.recorded_steps))]
    return np.stack([jaxsink.forward(model, one, out.mask, record=record.received()).record for one in canvases])


def slow(policy: MaskSinks, maps: np.ndarray, real: np.ndarray, seed: int) -> np.ndarray:
    """What is hidden in each step: bool[T,L,B,H,S]."""
    total, layers, batch, heads, _ = maps.shape
    hidden = np.zeros(maps.shape, bool)
    if policy.per == "layer":
        maps = np.broadcast_to(maps.mean(axis=3, keepdims=True), maps.shape)
    for layer, row, head in np.ndindex(layers, batch, heads):
        if policy.layers is not None and layer not in policy.layers:
            continue
        one = Slow(policy, seed, layer, head, (layers, heads))
        for step in range(max(1, policy.spare), total):
            there = np.flatnonzero(real[step - 1, row])
            hidden[step, layer, row, head, there[sorted(one.step(maps[step - 1, layer, row, head, there]))]] = True
    return hidden


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "policy"),
    [
        ("llada", MaskSinks(2, "partner")),
        ("llada", MaskSinks(2, "mass")),
        ("llada", MaskSinks(2, "partner", rank_on="clean")),
        ("llada", MaskSinks(2, "mass", rank_on="clean")),
        ("llada", MaskSinks(select="partner", rule="threshold", eps=0.3)),
        ("llada", MaskSinks(2, "mass", rule="top_k_above", eps=0.3)),
        ("llada", MaskSinks(3, "partner", rule=Threshold(0.2))),
        ("llada", MaskSinks(2, "mass", positions=(0, 3))),
        ("llada", MaskSinks(select="partner", share=0.2)),
        ("llada", MaskSinks(2, "partner", per="layer", spare=3)),
        ("llada", MaskSinks(2, "mass", per="layer", layers=(0, 2))),
        ("llada", MaskSinks(2, "first")),
        ("llada", MaskSinks(select="first", share=0.2)),
        ("llada", MaskSinks(share=0.2)),
        ("dream", MaskSinks(2, "top_not_first")),
        ("dream", MaskSinks(2, "top_not_first", rule="top_k_above", eps=0.3)),
        ("llama3.1", MaskSinks(1, "partner")),
        ("llama3.1", MaskSinks(2, "mass")),
        ("llama3.1", MaskSinks(2, "first")),
        ("llama3.1", MaskSinks(share=0.3)),
        ("llama3.1", MaskSinks(2, "partner", rows="all")),
        ("llama3.1", MaskSinks(select="top", rule="threshold", eps=0.5, rows="all")),
    ],
    ids=lambda x: x if isinstance(x, str) else repr(x)[10:60],
)
def test_what_is_hidden_is_what_slow_code_hides(family: str, policy: MaskSinks) -> None:
    out = run(family, policy)
    found, real = out.record["dropped"], out.real_at()
    np.testing.assert_array_equal(found, slow(policy, ranked_maps(family, policy, out), real, 3))
    assert found[1:].any() and not found[0].any()
    assert (out.record["received"][found] == 0).all() or policy.rows == "all"  # there, first queries would go blind
    for row, prompt in enumerate(PROMPTS):  # neither the batch nor the padding matters
        alone = run(family, policy, [prompt])
        np.testing.assert_array_equal(alone.response[0], out.response[row])
        np.testing.assert_array_equal(alone.record["dropped"][:, :, 0], found[:, :, row, :, 6 - len(prompt) :])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llada", "llama3.1"])
def test_policies_take_turns_on_devices_too(family: str) -> None:
    policies = (
        MaskSinks(2, "partner"),
        None,
        MaskSinks(1, "mass"),
        MaskSinks(select="partner", share=0.3, layers=(1,)),
        MaskSinks(2, "mass", per="layer", spare=2),
        MaskSinks(2, "first"),
        MaskSinks(3, "top_not_first"),
        MaskSinks(select="first", share=0.3),
    )
    prompts = [PROMPTS[n % 2] for n in range(8)]
    for order in (list(range(8)), [7, 6, 5, 4, 3, 2, 0, 0]):
        out = run(family, Turns(policies), prompts, policies=order)
        apart = run(family, Turns(policies), prompts, policies=order, devices=jax.devices()[:3])
        np.testing.assert_array_equal(apart.record["dropped"], out.record["dropped"])
        np.testing.assert_array_equal(apart.tokens, out.tokens)
        for row in (0, 2, 3, 4, 6):
            policy = policies[order[row]]
            alone = run(family, policy, [prompts[row]])
            start = 6 - len(prompts[row])
            np.testing.assert_array_equal(alone.record["dropped"][:, :, 0], out.record["dropped"][:, :, row, :, start:])


@pytest.mark.slow
@pytest.mark.parametrize(("family", "rows"), [("llada", None), ("llama3.1", None), ("llama3.1", "all")])
def test_a_mesh_changes_nothing(family: str, rows) -> None:
    policies = Turns((MaskSinks(2, "partner", rows=rows), None, MaskSinks(1, "mass", rows=rows)))
    model, prompts = lively(FAMILIES[family]), PROMPTS * 2
    spread = shard(model, make_mesh(2, 2, jax.devices()[:4]))
    here, there = (
        jaxsink.generate(one, prompts, SAMPLERS[family], record=BOTH, intervene=policies, seed=3).on_host()
        for one in (model, spread)
    )
    np.testing.assert_array_equal(here.tokens, there.tokens)
    np.testing.assert_array_equal(here.record["dropped"], there.record["dropped"])
    np.testing.assert_allclose(here.record["received"], there.record["received"], atol=1e-4)


def test_a_partner_is_another_token_and_never_changes_but_for_new_tokens() -> None:
    keys = jax.vmap(jax.random.key)(jnp.arange(3, dtype=jnp.uint32))
    whole = np.ones((3, 15), bool)
    whole[1, :4] = whole[2, 9:] = False

    def partner_of(mask: np.ndarray) -> np.ndarray:
        """i[L,B,H,S]: -1 for padding."""
        order = random_order(keys, jnp.asarray(mask), 2, 4)
        found = np.full((2, 3, 4, 15), -1)
        for j in range(15):
            targets = np.zeros((2, 3, 4, 15), bool)
            targets[..., j] = mask[None, :, None, j]
            hidden = np.asarray(partners(jnp.asarray(targets), order, jnp.asarray(mask)))
            assert (hidden.sum(-1) == mask[None, :, None, j]).all() and not (hidden & targets).any()
            found[..., j] = np.where(hidden.any(-1), hidden.argmax(-1), -1)
        return found

    full = partner_of(whole)
    for index in np.ndindex(2, 3, 4):
        real = np.flatnonzero(whole[index[1]])
        assert sorted(full[index][real]) == real.tolist()  # a permutation: as many partners as keys
    assert len({tuple(full[i]) for i in np.ndindex(2, 3, 4)}) == 24
    shorter = whole.copy()
    shorter[:, 8] = False  # a token is not there yet
    fewer = partner_of(shorter)
    # the draws go by token position, so tokens after it would move; compare those before
    grown = whole & (np.arange(15) < 8)
    now = whole & (np.arange(15) < 9)
    before, after = partner_of(grown), partner_of(now)
    both = np.broadcast_to(grown[None, :, None, :], before.shape)
    assert ((before != after) & both).sum(-1).max() == 1  # exactly the key before the new token
    assert ((before != after) & both).sum(-1).min() == 1 and (fewer[..., 8] == -1).all()
    alone = np.zeros((3, 15), bool)
    alone[:, 5] = True
    order = random_order(keys, jnp.asarray(alone), 2, 4)
    assert not partners(
        jnp.broadcast_to(jnp.asarray(alone)[None, :, None], (2, 3, 4, 15)), order, jnp.asarray(alone)
    ).any()


def test_partners_are_as_many_and_stay_as_long_as_sinks() -> None:
    """Ranked on clean maps the sinks are the same for both, so that each key's steps can be compared with its partner's."""
    top, control = (run("llada", MaskSinks(1, select, rank_on="clean"), seed=5) for select in ("top", "partner"))
    canvases_differ = (top.committed_at != control.committed_at).any() or (top.tokens != control.tokens).any()
    maps = ranked_maps("llada", MaskSinks(1, rank_on="clean"), control)
    sinks = slow(MaskSinks(1), maps, control.real_at(), 5)  # what would be hidden along the control's own way
    assert (control.record["dropped"].sum(-1) == sinks.sum(-1)).all() and not (control.record["dropped"] & sinks).any()
    times, partner_times = (np.sort(x.sum(axis=0), axis=-1) for x in (sinks, control.record["dropped"]))
    np.testing.assert_array_equal(times, partner_times)
    assert canvases_differ or (top.record["dropped"] == sinks).all()


def test_mass_is_reached_by_no_more_keys_than_needed() -> None:
    policy = MaskSinks(1, "mass")
    out = run("dream", policy, seed=4)
    total, layers, batch, heads, _ = out.record["received"].shape
    short = 0
    for layer, row, head in np.ndindex(layers, batch, heads):
        one = Slow(policy, 4, layer, head, (layers, heads))
        there = np.flatnonzero(out.mask[row])
        for step in range(1, total):
            scores = out.record["received"][step - 1, layer, row, head, there]
            before = set(one.hidden)
            hidden = one.step(scores)
            order = [j for j in one.order(len(there)) if j in hidden]
            wanted = sum(scores[j] for j in one.targets)
            assert not hidden & (one.targets | before)  # no key twice in a row, as a hidden sink comes back
            assert sum(scores[j] for j in order[:-1]) < wanted
            reached = sum(scores[j] for j in order) >= wanted
            others = set(range(len(there))) - one.targets - before
            assert reached or len(others - hidden) == 1
            short += not reached
    found = jaxsink.sinks.hidden_keys(**out.record, mask=out.mask, policy=policy)
    assert found.short.mean() == pytest.approx(short / (layers * batch * heads * (total - 1)))


def test_what_cannot_be_reached_leaves_one_key() -> None:
    scores = jnp.array([9.0, 0.5, 0.2, 0.3, 0.0]).reshape(1, 1, 1, 5)
    targets = jnp.array([True, False, False, False, False]).reshape(1, 1, 1, 5)
    order = jnp.array([3, 0, 1, 2, 4]).reshape(1, 1, 1, 5)
    real = jnp.array([True, True, True, True, False]).reshape(1, 1, 1, 5)
    found = np.asarray(as_much(scores, targets, real & ~targets, order))[0, 0, 0]
    np.testing.assert_array_equal(np.flatnonzero(found), [1, 3])
    few = np.asarray(as_much(scores.at[..., 0].set(0.4), targets, real & ~targets, order))[0, 0, 0]
    np.testing.assert_array_equal(np.flatnonzero(few), [1, 3])
    exact = np.asarray(as_much(scores.at[..., 0].set(0.3), targets, real & ~targets, order))[0, 0, 0]
    np.testing.assert_array_equal(np.flatnonzero(exact), [3])
    assert not as_much(scores, jnp.zeros_like(targets), real, order).any()


def previous(scores: np.ndarray, mask: np.ndarray) -> Previous:
    keys = jax.vmap(jax.random.key)(jnp.zeros(len(mask), jnp.uint32))
    tokens = jnp.zeros(mask.shape, jnp.int32)
    drop = jnp.zeros(scores.shape, bool)
    return Previous(jnp.asarray(scores), jnp.int32(1), tokens, jnp.asarray(mask), tokens > 0, keys, drop)


def test_one_pass_without_memory_follows_what_it_sees() -> None:
    """As likelihoods do it: no step before, and the step's own key."""
    scores = np.random.default_rng(0).gamma(0.3, 3.0, (3, 2, 4, 20)).astype(np.float32)
    mask = np.ones((2, 20), bool)
    mask[0, :6] = False
    top = np.asarray(MaskSinks(2)(previous(scores, mask)))
    partner, mass = (np.asarray(MaskSinks(2, select)(previous(scores, mask))) for select in ("partner", "mass"))
    assert (partner.sum(-1) == 2).all() and (partner & ~mask[None, :, None, :]).sum() == 0
    assert not (mass & top).any() and (partner != top).any()
    kept = np.asarray(MaskSinks(2, "mass", rank_on="clean", keep=True)(previous(scores, mask)))
    np.testing.assert_array_equal(kept, mask[None, :, None, :] & ~mass)


def test_controls_of_policies() -> None:
    assert MaskSinks(2, rule="threshold").control("mass") == MaskSinks(2, "mass", rule="threshold")
    assert MaskSinks(2, "first").control("partner") == MaskSinks(2, "partner", positions=(0, 1))
    assert MaskSinks(2, "first").control("random") == MaskSinks(2, "random")
    for policy in (MaskSinks(2, "top_not_first"), MaskSinks(select="first", share=0.1)):
        with pytest.raises(JaxsinkError, match="follows the top sinks"):
            policy.control("partner")
    assert (
        replace(MaskSinks(1), select="partner").has_targets and not MaskSinks(1, "partner", rank_on="clean").has_targets
    )
