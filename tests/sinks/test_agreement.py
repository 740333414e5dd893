"""Agreement of layers, by sets."""

from __future__ import annotations

import numpy as np
import pytest
from support.shape_checks import no_shape_checks

from jaxsink import JaxsinkError
from jaxsink.sinks import Threshold, TopK, agreement

STEPS, LAYERS, BATCH, HEADS, LENGTH = 2, 4, 3, 2, 20


def scores(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    received = np.random.default_rng(seed).gamma(0.3, size=(STEPS, LAYERS, BATCH, HEADS, LENGTH)).astype(np.float32)
    mask = np.ones((BATCH, LENGTH), bool)
    mask[0, :4] = False
    return received, mask


def slow_sinks(scores: np.ndarray, real: np.ndarray, rule: object) -> set[int]:
    keys = np.flatnonzero(real).tolist()
    if isinstance(rule, TopK):
        return set(sorted(keys, key=lambda key: -scores[key])[: rule.k])
    return {key for key in keys if scores[key] - np.mean([scores[k] for k in keys if k != key]) > 0.6}


@pytest.mark.parametrize("rule", [TopK(3), Threshold(0.6)])
def test_against_sets(rule: TopK | Threshold) -> None:
    received, mask = scores()
    found = agreement(received, rule, mask)
    for step, row in np.ndindex(STEPS, BATCH):
        sets = [slow_sinks(received[step, layer, row].mean(axis=0), mask[row], rule) for layer in range(LAYERS)]
        pairs = []
        for i, j in np.ndindex(LAYERS, LAYERS):
            expected = len(sets[i] & sets[j]) / len(sets[j]) if sets[j] else np.nan
            chance = len(sets[i]) / mask[row].sum() if sets[j] else np.nan
            assert found.overlap[step, i, j, row] == pytest.approx(expected, nan_ok=True)
            assert found.chance[step, i, j, row] == pytest.approx(chance, nan_ok=True)
            pairs += [expected] if i != j else []
        assert found.between_layers()[step, row] == pytest.approx(np.nanmean(pairs), rel=1e-5)


def test_layers_that_agree_and_layers_that_are_shuffled() -> None:
    received, mask = scores()
    same = np.broadcast_to(received[:, :1], received.shape)
    np.testing.assert_allclose(agreement(same, TopK(3), mask).between_layers(), 1)
    chance = [agreement(scores(seed)[0], TopK(3)).between_layers() for seed in range(40)]
    assert np.mean(chance) == pytest.approx(3 / LENGTH, abs=0.02)
    assert float(agreement(received, TopK(3)).chance.mean()) == pytest.approx(3 / LENGTH)


def test_scores_without_layers_are_refused() -> None:
    received, mask = scores()
    with no_shape_checks(), pytest.raises(JaxsinkError, match=r"received must be an array of numbers \[...,L,B,H,S\]"):
        agreement(received[0, 0], TopK(3), mask)


def test_other_shapes_and_what_is_refused() -> None:
    received, mask = scores()
    one = agreement(received[0], TopK(3), mask)
    np.testing.assert_array_equal(one.overlap, agreement(received, TopK(3), mask).overlap[0])
    padded = np.pad(received, [(0, 0)] * 4 + [(3, 0)], constant_values=9.0)
    with_padding = agreement(padded, TopK(3), np.pad(mask, ((0, 0), (3, 0))))
    np.testing.assert_array_equal(with_padding.overlap, agreement(received, TopK(3), mask).overlap)
    assert np.isnan(agreement(received[0, :1], TopK(3), mask).between_layers()).all()
    with pytest.raises(JaxsinkError, match="rule must be a Rule"):
        agreement(received, 3, mask)  # pyright: ignore
