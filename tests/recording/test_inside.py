"""Channels of the residual stream, and attention among masks: by plain loops, from the vectors and the maps themselves."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.recording import recorders as record
from jaxsink.recording import reductions as reduce
from jaxsink.recording.among_masks import among_masks
from jaxsink.recording.named import NAMED, Shape, named_recorders, step_bytes

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONFIG = FAMILIES["dream"]
WANTED = {
    "channels": record.channels(),
    "top": record.channels().then(reduce.top_channels(5)),
    "among": among_masks(),
    "inside": among_masks(4, 9),
}


def canvas(length: int = 13) -> tuple[np.ndarray, np.ndarray]:
    tokens, mask = sequences(CONFIG, length=length)
    tokens[:, 3:length:2] = CONFIG.mask_id
    tokens[:, 6] = CONFIG.mask_id
    return tokens, mask


@pytest.fixture(scope="module")
def seen() -> Any:
    tokens, mask = canvas()
    wanted = {**WANTED, "residual": record.residual(), "maps": record.maps()}
    return tokens, mask, jaxsink.forward(lively(CONFIG), tokens, mask, record=wanted).record


def test_channels_against_loops(seen: Any) -> None:
    _, mask, out = seen
    for layer, row in np.ndindex(CONFIG.layers, len(mask)):
        size = np.abs(np.asarray(out["residual"][layer, row], np.float64))[mask[row]]
        first = [np.mean([one.argmax() == channel for one in size]) for channel in range(CONFIG.width)]
        for name, expected in (("mean", size.mean(axis=0)), ("max", size.max(axis=0)), ("first", first)):
            np.testing.assert_allclose(out["channels"][name][layer, row], expected, rtol=1e-5, atol=1e-7)
        order = np.argsort(-size.mean(axis=0), kind="stable")[:5]
        np.testing.assert_array_equal(out["top"]["channel"][layer, row], order)
        np.testing.assert_allclose(out["top"]["max"][layer, row], size.max(axis=0)[order], rtol=1e-5)
        assert out["top"]["median"][layer, row] == pytest.approx(np.median(size.mean(axis=0)), rel=1e-5)
    assert out["channels"]["first"].sum(axis=-1) == pytest.approx(np.ones((CONFIG.layers, 3)))


def slow_importance(probs: np.ndarray, at: list[int]) -> np.ndarray:
    """One head [Q,S]: each masked query's attention to masked keys, the strongest of three neighbours, normalised."""
    received = np.zeros(probs.shape[-1])
    for query in at:
        paid = [probs[query, key] for key in at]
        pooled = [max(paid[max(0, n - 1) : n + 2]) for n in range(len(at))]
        received[at] += np.array(pooled) / sum(pooled)
    return received


@pytest.mark.parametrize(("name", "first", "last"), [("among", 0, 12), ("inside", 4, 9)])
def test_attention_among_masks_against_loops(seen: Any, name: str, first: int, last: int) -> None:
    tokens, mask, out = seen
    for layer, row, head in np.ndindex(*out[name].shape[:3]):
        masked = np.flatnonzero(mask[row] & (tokens[row] == CONFIG.mask_id))
        at = [int(position) for position in masked if first <= position <= last]
        assert len(at) >= 2
        expected = slow_importance(np.asarray(out["maps"][layer, row, head], np.float64), at)
        np.testing.assert_allclose(out[name][layer, row, head], expected, rtol=1e-4, atol=1e-6)


def test_neither_batch_nor_padding_nor_backend_nor_layout_changes_them() -> None:
    model, (tokens, mask) = lively(CONFIG), canvas(length=140)  # more than one block of queries
    plain = jaxsink.forward(model, tokens, mask, record=WANTED, backend="naive").record
    other = jaxsink.forward(model.unrolled(), tokens, mask, record=WANTED, backend="blocked").record
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-4), plain, other)
    alone = jaxsink.forward(model, tokens[:1, 3:], record={**WANTED, "inside": among_masks(1, 6)}).record
    for name in ("channels", "top"):
        for ours, theirs in zip(jax.tree.leaves(alone[name]), jax.tree.leaves(plain[name]), strict=True):
            np.testing.assert_allclose(ours[:, 0], theirs[:, 0], rtol=1e-3, atol=1e-5)
    for name in ("among", "inside"):
        np.testing.assert_allclose(alone[name][:, 0], plain[name][:, 0, :, 3:], rtol=1e-3, atol=1e-5)


def test_a_canvas_without_masks_has_none_to_attend() -> None:
    tokens, mask = sequences(CONFIG)
    tokens[tokens == CONFIG.mask_id] = 1
    assert not np.asarray(jaxsink.forward(lively(CONFIG), tokens, mask, record=among_masks()).record).any()


def test_each_step_of_a_run_has_its_channels() -> None:
    """In the loop as in a pass over what the step saw; a sequence that has ended has none."""
    sampler = jaxsink.DreamSampler(max_new_tokens=4, steps=4)
    model, prompts = lively(CONFIG), [[5, 6, 7], [8, 9, 10, 11]]
    out = jaxsink.generate(model, prompts, sampler, record={"c": record.channels(), "a": among_masks()}).on_host()
    canvases = jaxsink.sinks.canvases(out.tokens, out.committed_at, out.recorded_steps, CONFIG.mask_id)
    for step, tokens in enumerate(np.asarray(canvases)):
        again = jaxsink.forward(model, tokens, out.mask, record={"c": record.channels(), "a": among_masks()}).record
        np.testing.assert_allclose(out.record["c"]["mean"][step], again["c"]["mean"], rtol=1e-4)
        np.testing.assert_allclose(out.record["a"][step], again["a"], rtol=1e-3, atol=1e-5)


def test_wrong_calls_are_refused() -> None:
    with pytest.raises(JaxsinkError, match="top_channels: k must be a positive whole number, not 0"):
        reduce.top_channels(0)
    with pytest.raises(JaxsinkError, match="there are 48 channels, fewer than 49"):
        jaxsink.forward(lively(CONFIG), canvas()[0], record=record.channels().then(reduce.top_channels(49)))
    with pytest.raises(JaxsinkError, match="among_masks: first must be a whole number"):
        among_masks(-1)


@pytest.mark.parametrize("name", NAMED)
def test_by_name_each_keeps_as_much_as_it_says(name: str) -> None:
    tokens, mask = canvas()
    shape = Shape(CONFIG, 1, 13, 13)
    out = jaxsink.forward(lively(CONFIG), tokens, mask, record=named_recorders("x", name, shape)).record
    kept = sum(leaf.size for leaf in jax.tree.leaves(out))
    layers = 1 if NAMED[name].of_pass else CONFIG.layers
    assert kept == layers * len(tokens) * NAMED[name].numbers(shape)
    assert step_bytes([name], shape) == 4 * kept / len(tokens)
