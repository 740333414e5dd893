"""MaskSinks in the loop: what it hides, its controls, and that nothing depends on batch or padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.recording import recorders as record
from jaxsink.sampling.interventions import Previous
from jaxsink.sinks import MaskSinks, Threshold, TopK, Turns, detect

pytestmark = pytest.mark.usefixtures("quick_compilation")


def previous(scores: np.ndarray, mask: np.ndarray, step: int = 3, seed: int = 0) -> Previous:
    keys = jax.vmap(lambda s: jax.random.key(s))(jnp.full(len(mask), seed, jnp.uint32))
    tokens = jnp.zeros(mask.shape, jnp.int32)
    return Previous(
        jnp.asarray(scores), jnp.int32(step), tokens, jnp.asarray(mask), tokens > 0, keys, jnp.zeros(scores.shape, bool)
    )


@pytest.fixture
def scores() -> np.ndarray:
    return np.random.default_rng(0).gamma(0.3, 3.0, (3, 2, 4, 20)).astype(np.float32)


@pytest.fixture
def mask() -> np.ndarray:
    mask = np.ones((2, 20), bool)
    mask[0, :6] = False
    return mask


def test_top_hides_the_largest_and_bottom_the_smallest(scores, mask) -> None:
    top = np.asarray(MaskSinks(3)(previous(scores, mask)))
    bottom = np.asarray(MaskSinks(3).control("bottom")(previous(scores, mask)))
    for layer, row, head in np.ndindex(3, 2, 4):
        real = np.flatnonzero(mask[row])
        order = real[np.argsort(-scores[layer, row, head, real], kind="stable")]
        assert set(np.flatnonzero(top[layer, row, head])) == set(order[:3])
        assert set(np.flatnonzero(bottom[layer, row, head])) == set(order[-3:])


def test_random_hides_as_many_real_keys_and_others_each_step(scores, mask) -> None:
    policy = MaskSinks(4, select="random")
    first, again, other = (np.asarray(policy(previous(scores, mask, seed=s))) for s in (0, 0, 1))
    assert (first.sum(-1) == 4).all() and not (first & ~mask[None, :, None, :]).any()
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert len({tuple(first[i]) for i in np.ndindex(3, 2, 4)}) > 10  # every layer and head has lots of its own


@pytest.mark.parametrize("rule", ["threshold", "top_k_above", Threshold(1.0), TopK(2) | Threshold(2.0)])
def test_rules_and_their_controls_hide_equally_many(scores, mask, rule) -> None:
    policy = MaskSinks(2, rule=rule, eps=1.5)
    top = np.asarray(policy(previous(scores, mask)))
    found = np.asarray(detect(scores, rule if not isinstance(rule, str) else Threshold(1.5), mask))
    if rule == "threshold":
        np.testing.assert_array_equal(top, found)
    else:
        best = np.asarray(detect(np.where(found, scores, -1), TopK(2), mask))
        np.testing.assert_array_equal(top, found & best)
    for select in ("random", "bottom"):
        np.testing.assert_array_equal(np.asarray(policy.control(select)(previous(scores, mask))).sum(-1), top.sum(-1))


def test_layers_spare_keep_and_per_layer(scores, mask) -> None:
    plain = np.asarray(MaskSinks(2)(previous(scores, mask)))
    some = np.asarray(MaskSinks(2, layers=[1])(previous(scores, mask)))
    assert not some[[0, 2]].any() and (some[1] == plain[1]).all()
    assert not np.asarray(MaskSinks(2, spare=4)(previous(scores, mask, step=3))).any()
    assert np.asarray(MaskSinks(2, spare=4)(previous(scores, mask, step=4))).any()
    kept = np.asarray(MaskSinks(2, keep=True)(previous(scores, mask)))
    np.testing.assert_array_equal(kept, mask[None, :, None, :] & ~plain)
    shared = np.asarray(MaskSinks(2, per="layer")(previous(scores, mask)))
    assert (shared == shared[:, :, :1]).all()
    np.testing.assert_array_equal(shared[:, :, 0], np.asarray(detect(scores.mean(2), TopK(2), mask[None].repeat(3, 0))))
    lots = np.asarray(MaskSinks(2, per="layer", select="random")(previous(scores, mask)))
    assert (lots == lots[:, :, :1]).all() and (lots.sum(-1) == 2).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "select"),
    [("llada", "top"), ("llada", "random"), ("dream", "bottom"), ("llama3.1", "top"), ("llama3.1", "bottom")],
)
def test_masking_in_the_loop(family: str, select: str) -> None:
    """Hidden keys receive exactly 0, the others share the rest, and a padded batch equals single runs."""
    config = FAMILIES[family]
    model = lively(config)
    sampler = {
        "llada": jaxsink.LLaDASampler(8, 8, 4),
        "dream": jaxsink.DreamSampler(8, 8),
        "llama3.1": jaxsink.ARSampler(8, stop_at_eos=False),
    }[family]
    prompts = [[5, 6, 7, 8, 9], [11, 12, 13]]
    policy = MaskSinks(2, select=select)
    run = lambda p: jaxsink.generate(model, p, sampler, record=record.received(), intervene=policy)  # noqa: E731
    out = run(prompts)
    received = np.asarray(out.record)  # [T,L,B,H,S]
    assert (received[0][:, 0][..., :5] > 0).all()  # nothing is hidden in the first step
    for t in range(1, len(received)):
        if select == "random":
            break
        there = np.arange(13) < 5 - 1 + t if family == "llama3.1" else np.ones(13, bool)  # in the step before
        there = np.asarray(out.mask) & there
        hidden = np.asarray(detect(received[t - 1] if select == "top" else -received[t - 1], TopK(2), there))
        assert (hidden.sum(-1) == 2).all()
        assert (received[t][hidden] == 0).all()
        rest = np.broadcast_to(there[None, :, None, :], hidden.shape) & ~hidden
        assert (received[t][rest] > 0).all()
        total = 1 if family == "llama3.1" else np.asarray(out.mask).sum(-1)[None, :, None]
        np.testing.assert_allclose(received[t].sum(-1), np.broadcast_to(total, hidden.shape[:-1]), rtol=1e-5)
    plain = jaxsink.generate(model, prompts, sampler, record=record.received())
    assert np.abs(np.asarray(plain.record)[-1] - received[-1]).max() > 1e-3
    for row, prompt in enumerate(prompts):
        alone = run([prompt])
        np.testing.assert_array_equal(alone.response[0], out.response[row])
        np.testing.assert_allclose(alone.record[:, :, 0], received[:, :, row, :, 5 - len(prompt) :], atol=1e-5)


POLICIES = (
    MaskSinks(2),
    None,
    MaskSinks(1, select="random"),
    MaskSinks(5, select="random"),
    MaskSinks(3, select="bottom", per="layer"),
    MaskSinks(2, rule="threshold", eps=0.5, layers=(1,)),
    MaskSinks(2, rule="top_k_above", eps=0.5, select="random", spare=9),
    MaskSinks(3, positions=(0, 1, 2)),
    MaskSinks(3, positions=(0, 1, 2), select="bottom", keep=True),
    MaskSinks(2, rule=Threshold(0.2)),
)


@pytest.mark.parametrize(
    "order", [(0, 1, 2, 3, 4, 5), (9, 8, 7, 6, 5, 4), (2, 2, 2, 0, 3, 1), (7, 1, 9, 6, 0, 13)], ids=str
)
def test_a_sequence_follows_the_policy_it_is_given_whatever_stands_beside_it(order, scores, mask) -> None:
    whole = previous(np.concatenate([scores, scores[:, ::-1], scores * 2], axis=1), np.concatenate([mask] * 3))
    found = np.asarray(Turns(POLICIES)(whole._replace(policy=jnp.array(order, jnp.int32))))
    for row, number in enumerate(order):
        policy = POLICIES[number % len(POLICIES)]
        alone = np.zeros_like(found) if policy is None else np.asarray(policy(whole))
        np.testing.assert_array_equal(found[:, row], alone[:, row])


@pytest.mark.slow
def test_generate_hands_each_sequence_its_policy() -> None:
    """Neither the place in the batch nor the device decides."""
    model, sampler = lively(FAMILIES["llada"]), jaxsink.LLaDASampler(4, 4, 4)
    policies, order = (None, MaskSinks(1), MaskSinks(2, select="random")), [2, 0, 1, 1, 2]
    prompts = [[5, 6, 7 + n] for n in range(5)]

    def records(**options):
        out = jaxsink.generate(
            model, prompts, sampler, record=record.received(), intervene=Turns(policies), policies=order, **options
        )
        return np.asarray(out.record)

    found = records()
    np.testing.assert_allclose(records(devices=jax.devices()[:4]), found, atol=1e-6)
    for row, number in enumerate(order):
        alone = jaxsink.generate(
            model, [prompts[row]], sampler, record=record.received(), intervene=policies[number]
        ).record
        np.testing.assert_allclose(found[:, :, row], np.asarray(alone)[:, :, 0], atol=1e-5)
    for wrong in ([0], [0.5] * 5):
        with pytest.raises(JaxsinkError, match=r"a whole number (per prompt|or None)"):
            jaxsink.generate(model, prompts, sampler, intervene=Turns(policies), policies=wrong)


def test_policies_take_turns(scores, mask) -> None:
    """Row b does what policies[b modulo n] does to it alone, random draws included; factors and flags mix."""
    whole = previous(np.concatenate([scores, scores[:, ::-1], scores * 2], axis=1), np.concatenate([mask] * 3))
    policies = (MaskSinks(2), None, MaskSinks(1, select="random"))
    found = np.asarray(Turns(policies)(whole))
    for number, policy in enumerate(policies):
        alone = np.zeros_like(found) if policy is None else np.asarray(policy(whole))
        np.testing.assert_array_equal(found[:, number::3], alone[:, number::3])
    mixed = np.asarray(Turns((MaskSinks(2), MaskSinks(2, factor=0.5)))(whole))
    np.testing.assert_array_equal(mixed[:, ::2], np.where(np.asarray(MaskSinks(2)(whole))[:, ::2], 0, 1))
    assert set(np.unique(mixed[:, 1::2])) == {0.5, 1.0}
    assert not np.asarray(Turns((None,) * 4)(whole)).any()
    with pytest.raises(JaxsinkError, match="some policies rank on clean maps"):
        Turns((MaskSinks(1), MaskSinks(1, rank_on="clean")))
    with pytest.raises(JaxsinkError, match="at least one policy"):
        Turns(())
    assert Turns((None, MaskSinks(1, rank_on="clean"))).rank_on == "clean"
    with pytest.raises(JaxsinkError, match="no layer 9"):
        jaxsink.generate(
            lively(FAMILIES["llada"]),
            [[5, 6]],
            jaxsink.LLaDASampler(4, 4, 4),
            intervene=Turns((MaskSinks(1, layers=(9,)),)),
        )
