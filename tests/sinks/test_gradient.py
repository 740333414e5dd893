"""Gradients with respect to attention, against finite differences of whole passes in float64 steps."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from scipy.special import log_softmax
from support.configs import FAMILIES
from support.models import lively, sequences

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.sinks import attention_gradient, nats_of

pytestmark = pytest.mark.usefixtures("quick_compilation")
CASES = ("llada", "dream", "llama3.1", "qwen2_window")


def asked(family: str) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """(config, tokens, mask, targets): a few tokens of each sequence, none of them padded or the first."""
    config = FAMILIES[family]
    tokens, mask = sequences(config)
    targets = np.full(tokens.shape, -1)
    targets[0, 5:8], targets[1, [2, 8]], targets[2, 12] = [1, 2, 3], 7, 11
    return config, tokens, mask, targets


@pytest.mark.parametrize("family", CASES)
def test_the_usual_loss_by_hand(family: str) -> None:
    config, tokens, mask, targets = asked(family)
    logits: Any = jaxsink.forward(lively(config), tokens, mask).logits
    expected = np.zeros(len(tokens))
    for row, position in zip(*np.nonzero(targets >= 0), strict=True):
        query = position - (config.shift_logits or not config.is_diffusion)
        expected[row] -= log_softmax(np.asarray(logits[row, query], np.float64))[targets[row, position]]
    np.testing.assert_allclose(nats_of(config, targets)(logits), expected, rtol=1e-5)


@pytest.mark.parametrize("family", CASES)
def test_against_finite_differences(family: str) -> None:
    config, tokens, mask, targets = asked(family)
    model, loss = lively(config), nats_of(config, targets)
    found = np.asarray(attention_gradient(model, tokens, loss, mask))
    assert found.shape == (config.layers, 3, config.heads, 13) and (found[:, ~mask[:, None].repeat(6, 1)] == 0).all()
    largest = np.argsort(-np.abs(found).ravel())
    step = 1e-2
    for index in (*largest[:4], *largest[[len(largest) // 8, len(largest) // 4]]):
        at = np.unravel_index(index, found.shape)
        losses = []
        for sign in (1, -1):
            scale = np.ones(found.shape, np.float32)
            scale[at] = np.exp(sign * step)  # the derivative at 1 is that by the logarithm
            logits: Any = jaxsink.forward(model, tokens, mask, scale=scale).logits
            losses.append(np.asarray(loss(logits), np.float64).sum())
        slope = (losses[0] - losses[1]) / (2 * step)
        assert found[at] == pytest.approx(slope, rel=2e-2, abs=2e-3), at


def test_what_every_query_sees_alike_sums_to_nothing() -> None:
    """All keys louder by the same factor are as loud as before."""
    config, tokens, mask, targets = asked("llada")
    found = np.asarray(attention_gradient(lively(config), tokens, nats_of(config, targets), mask))
    np.testing.assert_allclose(found.sum(axis=-1), 0, atol=1e-4 * np.abs(found).max())
    assert np.abs(found).max() > 0.1


def test_neither_batch_nor_padding_nor_layout_changes_it() -> None:
    config, tokens, mask, targets = asked("dream")
    model, loss = lively(config), nats_of(config, targets)
    plain = np.asarray(attention_gradient(model, tokens, loss, mask))
    alone = attention_gradient(model, tokens[:1, 3:], nats_of(config, targets[:1, 3:]))
    np.testing.assert_allclose(alone[:, 0], plain[:, 0, :, 3:], rtol=1e-3, atol=1e-5)
    unrolled = attention_gradient(model.unrolled(), tokens, loss, mask)
    np.testing.assert_allclose(unrolled, plain, rtol=1e-3, atol=1e-5)
    compiled = jax.jit(lambda m: attention_gradient(m, tokens, loss, mask))(model)
    np.testing.assert_allclose(compiled, plain, rtol=1e-3, atol=1e-5)


def test_queries_that_are_not_named_have_no_part_in_it() -> None:
    """Factors that act on no query, or only on padded ones, change nothing."""
    config, tokens, mask, targets = asked("llada")
    model, loss = lively(config), nats_of(config, targets)
    some = np.zeros(mask.shape, bool)
    assert not np.asarray(attention_gradient(model, tokens, loss, mask, hidden_from=some)).any()
    some[:, 4:7] = True
    parts = [attention_gradient(model, tokens, loss, mask, hidden_from=one) for one in (some, ~some)]
    whole = attention_gradient(model, tokens, loss, mask)
    np.testing.assert_allclose(parts[0] + parts[1], whole, rtol=1e-3, atol=1e-4)


def test_wrong_calls_are_refused() -> None:
    config, tokens, mask, targets = asked("dream")
    targets[0, 0] = 4
    with pytest.raises(JaxsinkError, match="nothing predicts the first token"):
        nats_of(config, targets)
    with pytest.raises(JaxsinkError, match="one number per sequence"):
        attention_gradient(lively(config), tokens, lambda logits: logits.sum(), mask)  # pyright: ignore
    targets[0, 0] = 89
    with pytest.raises(JaxsinkError, match="outside the model's vocabulary"):
        nats_of(FAMILIES["llada"], targets)
