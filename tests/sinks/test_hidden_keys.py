"""What was hidden, and ε calibrated to K: against loops, and on stories with known answers."""

from __future__ import annotations

import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively
from support.shape_checks import no_shape_checks

import jaxsink
from jaxsink import JaxsinkError, record
from jaxsink.sinks import MaskSinks, Threshold, calibrate_eps, detect, hidden_keys

pytestmark = pytest.mark.usefixtures("quick_compilation")


def by_loops(received, dropped, real, steps, eps):
    """One dictionary per sequence."""
    _, layers, batch, heads, length = received.shape
    found = []
    for row in range(batch):
        number, share, mass, sinks, hidden_total, duties = [], [], [], 0, 0, []
        for layer, head in np.ndindex(layers, heads):
            times, possible = np.zeros(length), np.zeros(length)
            for step in range(1, int(steps[row])):
                there = real[step - 1, row]
                scores = np.where(there, received[step - 1, layer, row, head], 0.0).astype(np.float64)
                hidden = dropped[step, layer, row, head] & there
                number.append(hidden.sum())
                share.append(hidden.sum() / there.sum())
                mass.append(scores[hidden].sum() / scores.sum())
                others = (scores.sum() - scores) / (there.sum() - 1)
                sinks += (hidden & (scores - others > eps)).sum()
                hidden_total += hidden.sum()
                times, possible = times + hidden, possible + there
            duties += [times[j] / possible[j] for j in range(length) if times[j]]
        found.append(
            {
                "number": np.mean(number),
                "share": np.mean(share),
                "duty": np.mean(duties),
                "are_sinks": sinks / hidden_total,
                "mass": np.mean(mass),
            }
        )
    return found


@pytest.mark.parametrize(
    ("family", "policy", "eps"),
    [
        ("llada", MaskSinks(2), 0.5),
        ("llada", MaskSinks(1, "bottom"), 0.5),
        ("llama3.1", MaskSinks(2), 0.2),
        ("llama3.1", MaskSinks(rule="threshold", eps=1.0, rows="all"), 0.9),
    ],
)
def test_the_same_as_loops(family: str, policy: MaskSinks, eps: float) -> None:
    model = lively(FAMILIES[family])
    sampler = jaxsink.LLaDASampler(8, 8, 4) if family == "llada" else jaxsink.ARSampler(8)
    end = model.config.eos_ids[0]
    force = None if family == "llada" else [[7] * 8, [7, 8, 9, end]]
    out = jaxsink.generate(
        model,
        [[5, 6, 7, 8, 9], [11, 12, 13]],
        sampler,
        record={"received": record.received(), "dropped": record.dropped()},
        intervene=policy,
        force=force,
    ).on_host()
    steps, real = out.recorded_of(), out.real_at()
    assert family == "llada" or steps.tolist() == [8, 4]
    found = hidden_keys(**out.record, mask=real, steps=steps, eps=eps, policy=policy)
    expected = by_loops(out.record["received"], out.record["dropped"], real, steps, eps)
    for row, values in enumerate(expected):
        for name, value in values.items():
            assert getattr(found, name)[row] == pytest.approx(value, rel=1e-5), name
    if policy.rule is None:
        np.testing.assert_allclose(found.number, policy.k)
    assert np.isnan(found.short).all()


def test_a_sink_that_comes_back_every_other_step() -> None:
    received = np.full((5, 1, 1, 1, 4), 0.5, np.float32)
    dropped = np.zeros(received.shape, bool)
    received[::2, ..., 0] = 9.0
    received[1::2, ..., 0] = 0.0
    received[1::2, ..., 1] = 8.0
    dropped[1::2, ..., 0] = dropped[2::2, ..., 1] = True
    found = hidden_keys(received, dropped, np.ones((1, 4), bool))
    assert found.number[0] == 1 and found.share[0] == 0.25 and found.duty[0] == 0.5 and found.are_sinks[0] == 1
    assert found.mass[0] == pytest.approx((9 / 10.5 + 8 / 9) / 2)
    nothing = hidden_keys(received, np.zeros_like(dropped), np.ones((1, 4), bool))
    assert nothing.number[0] == 0 and np.isnan(nothing.duty[0]) and np.isnan(nothing.are_sinks[0])
    clean = hidden_keys(received, dropped, np.ones((1, 4), bool), policy=MaskSinks(1, rank_on="clean"))
    assert clean.number[0] == 1 and np.isnan(clean.mass[0]) and np.isnan(clean.are_sinks[0])
    with (
        no_shape_checks(),
        pytest.raises(JaxsinkError, match=r"must be an array of numbers \[T,L,B,H,S\]"),
    ):
        hidden_keys(received[0], dropped[0], np.ones((1, 4), bool))


def test_dropped_is_what_forward_was_told() -> None:
    model = lively(FAMILIES["dream"])
    tokens, mask = np.arange(24).reshape(2, 12) + 4, np.ones((2, 12), bool)
    mask[0, :3] = False
    drop = np.random.default_rng(0).random((3, 2, 6, 12)) < 0.2
    for backend in ("naive", "blocked", "pallas"):
        out = jaxsink.forward(model, tokens, mask, drop=drop, record=record.dropped(), backend=backend)
        np.testing.assert_array_equal(out.record, drop & mask[None, :, None, :])
    assert not jaxsink.forward(model, tokens, mask, record=record.dropped()).record.any()
    scale = np.where(drop, 0.0, 0.5)
    np.testing.assert_array_equal(
        jaxsink.forward(model, tokens, mask, scale=scale, record=record.dropped()).record, drop & mask[None, :, None, :]
    )


@pytest.mark.parametrize("k", [0.3, 1, 2, 5])
def test_calibrated_eps_lets_k_keys_pass_on_average(k: float) -> None:
    rng = np.random.default_rng(0)
    scores = rng.gamma(0.3, 3.0, (4, 2, 3, 5, 20)).astype(np.float32)
    mask = np.ones((4, 3, 20), bool)
    mask[:, 1, :7] = False
    mask[2:, 2, 15:] = False
    eps = calibrate_eps(scores, k, mask)
    found = np.asarray(detect(scores, Threshold(eps), mask))
    assert found.sum() == round(k * 4 * 2 * 3 * 5)
    scores[3, :, 0] = 0.0  # a sequence that had finished
    eps = calibrate_eps(scores, k, mask)
    assert np.asarray(detect(scores, Threshold(eps), mask))[scores.any(-1)].sum() == round(k * (120 - 10))
    policy = MaskSinks.calibrated(scores, k, mask, select="partner")
    assert policy == MaskSinks(select="partner", rule="threshold", eps=eps)


def test_calibration_that_is_impossible() -> None:
    for k in (0, 20, 25):
        with pytest.raises(JaxsinkError, match="cannot be singled out"):
            calibrate_eps(np.ones((3, 20)), k)
