"""MDLM's, BD3LM's and GIDD's samplers: step by step with the same random numbers, and as distributions."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.reference.ancestral import bayes, noised, slow_ancestral, slow_gidd
from support.sampling import PROMPTS, model_of

import jaxsink
from jaxsink import AncestralSampler, GIDDSampler, JaxsinkError
from jaxsink.sampling.canvas import Window
from jaxsink.sampling.confidence import keep_within_p
from jaxsink.sampling.gidd import posterior

pytestmark = pytest.mark.usefixtures("quick_compilation")


def numbers(steps: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    return {"token": rng.random((steps, 2, length, 89)), "transfer": rng.random((steps, 2, length))}


@pytest.mark.parametrize(
    ("family", "sampler"),
    [
        ("bd3lm", AncestralSampler(10)),  # blocks of 4 from position 6 on: the first has two masks, the last is whole
        ("bd3lm", AncestralSampler(12, temperature=0.6, top_p=0.5)),
        ("bd3lm", AncestralSampler(22, stop_at_eos=True)),
        ("mdlm", AncestralSampler(12, 5)),
        ("mdlm", AncestralSampler(12, 30, temperature=1.5, top_p=0.8)),
    ],
)
def test_ancestral_step_by_step(family: str, sampler: AncestralSampler) -> None:
    model = model_of(family)
    if sampler.stop_at_eos:
        eos = tuple(range(4, 24))
        model = jax.tree.unflatten(
            jax.tree.structure(jaxsink.abstract(model.config.replace(eos_ids=eos))), jax.tree.leaves(model)
        )
    draws = numbers(30, 6 + sampler.gen_length + (-(6 + sampler.gen_length) % 4 if family == "bd3lm" else 0))
    out = jaxsink.generate(model, PROMPTS, sampler, draws=draws)
    ends = []
    for row, prompt in enumerate(PROMPTS):
        expected = slow_ancestral(model, prompt, sampler, draws, row)
        assert np.asarray(out.tokens)[row].tolist() == expected.tokens
        assert np.asarray(out.committed_at)[row].tolist() == expected.at
        ends.append(max(expected.at))
    assert out.commits is None
    if sampler.stop_at_eos:
        assert min(ends) < 20  # a sequence stops before it is full
    at = np.asarray(out.committed_at)[:, 6:]
    if sampler.steps is None and not sampler.stop_at_eos:
        assert all(sorted(row) == list(range(len(row))) for row in at.tolist())  # one token per step


@pytest.mark.parametrize("uniform", [0.2, np.exp(-20.0)])
def test_gidd_step_by_step(uniform: float) -> None:
    config = FAMILIES["gidd"].replace(uniform_noise=uniform)
    model = jax.tree.unflatten(jax.tree.structure(jaxsink.abstract(config)), jax.tree.leaves(model_of("gidd")))
    sampler, draws = GIDDSampler(9, 8), numbers(8, 15)
    out = jaxsink.generate(model, PROMPTS, sampler, draws=draws)
    canvases = np.stack([slow_gidd(model, prompt, sampler, draws, row) for row, prompt in enumerate(PROMPTS)], axis=1)
    for step, canvas in enumerate(canvases):
        np.testing.assert_array_equal(out.canvas(step, 80), canvas)
    np.testing.assert_array_equal(out.tokens, canvases[-1])
    changed = canvases[1:] != canvases[:-1]
    np.testing.assert_array_equal(out.commits, np.where(changed, canvases[1:], -1))
    assert not (np.asarray(out.tokens) == 80).any()
    revised = (changed & (canvases[:-1] != 80)).any()
    assert revised == (uniform == 0.2)
    first = np.where((canvases[0] == 80), (canvases[1:] != 80).argmax(axis=0), -1)
    np.testing.assert_array_equal(out.committed_at, first)
    np.testing.assert_array_equal(out.times_committed(), changed.sum(axis=0))


@pytest.mark.parametrize("eps", [1e-4, 0.01])
def test_the_posterior_is_bayes_rule(eps: float) -> None:
    """For a mask, for a token that the model likes and for one that it does not; at the first, middle and last levels."""
    config = FAMILIES["gidd"].replace(vocab=11, mask_id=6, eos_ids=())
    sampler, rng = GIDDSampler(3, 9, eps), np.random.default_rng(0)
    logits = 2 * rng.standard_normal(11)
    clean = np.exp(logits) * (np.arange(11) != 6)
    clean /= clean.sum()
    here = np.array([6, clean.argmax(), logits.argmin()])
    for step in (0, 4, 8):
        window = Window(
            position=jnp.arange(3)[None],
            eligible=jnp.ones((1, 3), bool),
            block_step=jnp.zeros(1, int),
            block_masks=jnp.zeros(1, int),
            step=jnp.int32(step),
            offset=jnp.arange(3)[None],
            token=jnp.asarray(here)[None],
            written=jnp.zeros((1, 3), bool),
        )
        ours = np.exp(sampler.log_weights(config, jnp.tile(logits, (1, 3, 1)).astype(jnp.float32), window)[0])
        t, s = ((1 - 2 * eps) * (1 - k / 9) + eps for k in (step, step + 1))
        expected = [bayes(config, clean, int(token), t, s) for token in here]
        np.testing.assert_allclose(ours, expected, atol=2e-6, rtol=1e-4)
        (told,) = np.asarray(sampler.time(config, window))
        assert told == pytest.approx(t, rel=1e-6)


def test_levels_and_steps_of_the_noise_fit_together() -> None:
    config = FAMILIES["gidd"].replace(vocab=7, mask_id=6, eos_ids=())
    found = posterior(5, 1e-3, config.uniform_noise, 7)
    assert all((np.asarray(part) >= 0).all() for part in (*found.forward, *found.before))
    for step in range(5):
        kept, mask, other = (x[step] for x in found.before)
        s = (1 - 2e-3) * (1 - (step + 1) / 5) + 1e-3
        np.testing.assert_allclose(noised(config, s)[0], [kept + other, *[other] * 5, mask], rtol=1e-5)
    assert noised(config, 0.5)[0, 1:6].sum() * 6 / 5 == pytest.approx(config.uniform_noise)


def indifferent(family: str, vocab: int = 8, **changes: Any) -> tuple[jaxsink.Model, np.ndarray]:
    """A model that predicts the same distribution everywhere, whatever it sees; and that distribution."""
    config = FAMILIES[family].replace(vocab=vocab, mask_id=vocab - 1, eos_ids=(), **changes)
    model = jax.tree.map(jnp.zeros_like, jaxsink.init(config))
    bias = np.linspace(1.5, -1.0, vocab)
    bias[-1] = 5.0  # would be the mask
    assert model.head is not None and model.head.bias is not None
    model.head.bias[...] = jnp.asarray(bias, jnp.float32)
    probs = np.exp(bias[:-1])
    return model, probs / probs.sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "sampler"),
    [
        ("bd3lm", AncestralSampler(32)),
        ("mdlm", AncestralSampler(32, 4)),
        ("gidd", GIDDSampler(32, 4)),
        ("gidd", GIDDSampler(32, 40)),
    ],
)
def test_texts_have_the_distribution_of_the_model(family: str, sampler: Any) -> None:
    """Whatever the number of steps: what is taken back is drawn again."""
    model, probs = indifferent(family)
    out = jaxsink.generate(model, np.zeros((80, 4), int), sampler, seed=range(80))
    found = np.bincount(np.asarray(out.response).ravel(), minlength=8)
    assert found[7] == 0 and found.sum() == 80 * 32
    chi2 = ((found[:7] - 2560 * probs) ** 2 / (2560 * probs)).sum()
    assert chi2 < 22.5  # 6 degrees of freedom: p = 0.001


@pytest.mark.slow
def test_as_many_masks_are_left_as_the_level_says() -> None:
    model, _ = indifferent("mdlm")
    out = jaxsink.generate(model, np.zeros((60, 1), int), AncestralSampler(40, 4), seed=range(60))
    left = [(out.canvas(step, 7)[:, 1:] == 7).mean() for step in range(5)]
    np.testing.assert_allclose(left, [1, 0.75, 0.5, 0.25, 0], atol=4 * np.sqrt(0.25 / 2400))
    model, _ = indifferent("mdlm", time_conditioning="constant")
    out = jaxsink.generate(model, np.zeros((60, 1), int), AncestralSampler(40), seed=range(60))
    mean = np.asarray(out.committed_at)[:, 1:].mean(axis=0)  # every position is as early as any other
    np.testing.assert_allclose(mean, 19.5, atol=4.5 * 11.5 / np.sqrt(60))


def test_a_gidd_model_takes_tokens_back() -> None:
    """With noise that is mostly tokens, positions are written more than once, and masks come back, but not at the end."""
    model, _ = indifferent("gidd")
    config = model.config.replace(uniform_noise=0.9)
    model = jax.tree.unflatten(jax.tree.structure(jaxsink.abstract(config)), jax.tree.leaves(model))
    out = jaxsink.generate(model, np.zeros((8, 3), int), GIDDSampler(16, 12), seed=range(8))
    commits = np.asarray(out.commits)
    assert commits.shape == (12, 8, 19) and (commits[..., :3] == -1).all()
    assert ((commits >= 0).sum(axis=0)[:, 3:] > 2).any() and (commits == 7).any()
    assert not (np.asarray(out.tokens) == 7).any()
    np.testing.assert_array_equal(out.canvas(12, 7), out.tokens)
    again = jaxsink.generate(model, np.zeros((8, 3), int), GIDDSampler(16, 12), seed=range(8), stream=5)
    np.testing.assert_array_equal(again.commits, commits)
    assert isinstance(out.on_host().commits, np.ndarray)


def test_seeds_decide() -> None:
    for family, sampler in (("bd3lm", AncestralSampler(8)), ("gidd", GIDDSampler(8, 6))):
        one, two, three = (jaxsink.generate(model_of(family), PROMPTS, sampler, seed=seed) for seed in (5, 5, 6))
        np.testing.assert_array_equal(one.tokens, two.tokens)
        np.testing.assert_array_equal(one.committed_at, two.committed_at)
        assert (np.asarray(one.tokens) != np.asarray(three.tokens)).any()


def test_gaps_are_filled_and_what_is_given_stays() -> None:
    """Masks in the prompt, which the window then covers, and tokens that GIDD would revise were they its own."""
    prompts = PROMPTS.copy()
    prompts[:, 2] = 80
    for family, sampler in (("bd3lm", AncestralSampler(6)), ("gidd", GIDDSampler(6, 6))):
        out = jaxsink.generate(model_of(family), prompts, sampler)
        tokens = np.asarray(out.tokens)
        np.testing.assert_array_equal(np.delete(tokens[:, :6], 2, axis=1), np.delete(PROMPTS, 2, axis=1))
        assert not (tokens == 80).any() and (np.asarray(out.committed_at)[:, 2] >= 0).all()


def test_tokens_within_p() -> None:
    logits = jnp.log(jnp.array([[0.5, 0.2, 0.2, 0.1], [0.9, 0.06, 0.03, 0.01]]))
    kept = np.asarray(keep_within_p(logits, 0.75) > -1e30)
    assert kept.tolist() == [[True, True, True, False], [True, False, False, False]]  # tied tokens stay together
    assert np.asarray(keep_within_p(logits, 0.97) > -1e30).tolist() == [
        [True, True, True, False],
        [True, True, False, False],
    ]


@pytest.mark.parametrize(
    ("family", "sampler", "words"),
    [
        ("bd3lm", AncestralSampler(0), "gen_length must be a whole number from 1"),
        ("mdlm", AncestralSampler(8, 0), "steps must be a whole number from 1"),
        ("mdlm", AncestralSampler(8, 4, eps=0), "eps"),
        ("bd3lm", AncestralSampler(8, 4), "one mask at a time; leave steps out"),
        ("mdlm", AncestralSampler(8), "told the noise level, so give steps"),
        ("mdlm", AncestralSampler(8, 4, top_p=0), "top_p"),
        ("mdlm", AncestralSampler(8, 4, temperature=-1), "temperature"),
        ("gidd", GIDDSampler(8, 0), "steps must be a whole number from 1"),
        ("gidd", GIDDSampler(8, 4, 0.5), "eps"),
        ("mdlm", GIDDSampler(8, 4), "uniform_noise"),
    ],
)
def test_settings_that_cannot_be(family: str, sampler: Any, words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        jaxsink.generate(model_of(family), PROMPTS, sampler)


@pytest.mark.parametrize("family", ["gidd", "mdlm", "bd3lm"])
def test_records_are_those_of_the_canvas_at_its_noise_level(family: str) -> None:
    sampler = GIDDSampler(6, 5) if family == "gidd" else AncestralSampler(6, 5 if family == "mdlm" else None)
    model, levels = model_of(family), np.linspace(1, 1e-5, 6)[:5]
    told = {
        "gidd": (1 - 2e-4) * (1 - np.arange(5) / 5) + 1e-4,
        "mdlm": -np.log(1 - 0.999 * levels),
        "bd3lm": np.zeros(9),
    }
    out = jaxsink.generate(model, PROMPTS, sampler, record=jaxsink.record.received())
    for step in range(len(out.recorded_steps)):
        time = np.full(2, told[family][step])
        there = out.real_at()[step]
        seen = jaxsink.forward(model, out.canvas(step, 80), there, time=time, record=jaxsink.record.received())
        np.testing.assert_allclose(out.record[step], seen.record, atol=1e-5)
