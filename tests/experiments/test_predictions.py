"""Every statistic of the experiments on galleries whose answer is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jaxsink_experiments import (
    beyond_sensitivity,
    beyond_values,
    fig1_scores_over_steps,
    fig3_histogram,
    fig4_a_jump,
    fig5_layers_and_heads,
    fig6_queries_and_short_lives,
    fig7_trajectories,
    fig8_drift,
    fig10_epsilon,
    table2_tokens,
)
from jaxsink_experiments.canvases import fair_scores
from scipy.stats import spearmanr
from support.configs import FAMILIES
from support.made_gallery import LITTLE, MASK, SINK, made_gallery, places

from jaxsink.sinks.tokens import KINDS

ANY: Any = SimpleNamespace()  # statistics that do not look at the subject
NOTHING = float("nan")
FEW = 6.0  # a sink, weaker than SINK


def test_moves_are_jumps_that_leave_one_place_and_find_a_new_one() -> None:
    scores = places([[1, 4]], [[1, 4]], [[1, 4]], [[1, 4]], [[3, 3]], [[1, 4]], [[1, -1]], [[-1, 4]])
    scores[:, 0, 1, 0, [1, 4]] = [[SINK, FEW], [FEW, SINK]]  # two lasting sinks swap ranks
    scores[1, 0, 2, 0, 1] = FEW  # the old one stays a sink
    scores[0, 0, 3, 0, 4] = FEW  # the new one was a sink before
    gallery = made_gallery(scores, taken=np.array([2, 2, 2, 2, 2, 1, 2, 2]))
    found = fig4_a_jump.moves(ANY, gallery)
    np.testing.assert_array_equal(found, [1, 0, 0, 0, *[NOTHING] * 4])  # no jump, not taken, not both


def test_moves_are_a_share_of_all_jumps_of_a_generation() -> None:
    scores = places([[1, 4, 6, 6], [2, 2, 2, 5]])
    scores[2, 0, 0, 0, 4] = FEW  # the second of three jumps leaves a sink behind
    assert fig4_a_jump.moves(ANY, made_gallery(scores)) == pytest.approx([2 / 3])


def test_stays_are_counted_in_steps_at_one_place() -> None:
    scores = places([[1, 1, 1, 4, 4, -1, 4]], [[2] * 7], [[-1] * 7], [[1, 2, 3, 4, 5, 5, 5]])
    gallery = made_gallery(scores, taken=np.array([7, 7, 7, 5]))
    np.testing.assert_array_equal(fig7_trajectories.stay(ANY, gallery), [6 / 3, 7, NOTHING, 1])
    two = made_gallery(places([[1, 1, 1, 1], [1, 2, 3, 4]]))  # the mean over stays, not over heads
    assert fig7_trajectories.stay(ANY, two) == pytest.approx([8 / 5])


def test_drift_is_the_rank_correlation_of_step_and_position() -> None:
    scores = places(
        [[0, 1, 2, 5, 7, 7]],
        [[7, 6, 4, 4, 3, 1]],
        [[3] * 6],
        [[-1] * 6],
        [[1, 2, 3, -1, -1, -1]],  # too few steps
        [[2, -1, 5, 1, -1, 4]],
    )
    found = fig8_drift.drift(ANY, made_gallery(scores))
    up, down = spearmanr(range(6), [0, 1, 2, 5, 7, 7]).statistic, spearmanr(range(6), [7, 6, 4, 4, 3, 1]).statistic
    gaps = spearmanr([0, 2, 3, 5], [2, 5, 1, 4]).statistic
    np.testing.assert_allclose(found, [up, down, 0, NOTHING, NOTHING, gaps])
    assert up > 0.9 and down < -0.9


def test_drift_is_the_mean_over_heads_that_have_one_and_over_steps_that_count() -> None:
    scores = places([[1, 2, 3, 4, 0, 0], [5] * 6, [-1] * 6])
    assert fig8_drift.drift(ANY, made_gallery(scores, taken=np.array([4]))) == pytest.approx([0.5])
    right, left = (one for one in fig8_drift.drift_per_step.predictions)
    assert (right.expected, left.expected) == ("greater", "less")


def test_slopes_leave_out_layers_without_sinks() -> None:
    values = np.array([[1.0, 2, 3, 4], [NOTHING, 2, NOTHING, 6], [NOTHING, NOTHING, 3, NOTHING], [NOTHING] * 4])
    np.testing.assert_allclose(fig5_layers_and_heads.slope(values), [1, 2, NOTHING, NOTHING])
    random = np.random.default_rng(0).normal(size=(5, 6))
    expected = [np.polyfit(range(6), line, 1)[0] for line in random]
    np.testing.assert_allclose(fig5_layers_and_heads.slope(random), expected)


def test_layers_have_their_number_of_sinks_and_the_score_of_the_largest() -> None:
    scores = np.full((3, 3, 1, 2, 40), LITTLE, np.float32)
    scores[:, 0, 0, 0, [4, 5, 6]] = [10, 8, 6]  # three sinks in one of two heads
    scores[:2, 1, 0, 1, 7] = 20, 30  # one sink, in two of three steps
    gallery = made_gallery(scores)
    count, strength = (
        f(gallery) for f in (fig5_layers_and_heads.sinks_by_layer, fig5_layers_and_heads.strength_by_layer)
    )
    np.testing.assert_allclose(count, [[3 / 2, 1 / 3, 0]])
    np.testing.assert_allclose(strength, [[10, 25, NOTHING]])
    early = made_gallery(scores, taken=np.array([1]))
    np.testing.assert_allclose(fig5_layers_and_heads.sinks_by_layer(early), [[3 / 2, 1 / 2, 0]])
    np.testing.assert_allclose(fig5_layers_and_heads.strength_by_layer(early), [[10, 20, NOTHING]])
    fewer, stronger = fig5_layers_and_heads.layers_and_heads.predictions
    assert (fewer.expected, stronger.expected) == ("less", "greater")
    np.testing.assert_allclose(fewer.of(ANY, gallery), [-0.75])
    np.testing.assert_allclose(stronger.of(ANY, gallery), [15])


def kinds_of_queries() -> Any:
    """Four steps: all masked, both kinds twice, none masked; in head 0 the tops of both kinds differ, in head 1 not."""
    scores = np.full((4, 1, 1, 2, 5), 0.2, np.float32)
    masked = np.full((4, 1, 1, 2, 5), 0.1, np.float32)
    masked[..., 0, 2], scores[..., 0, 2], scores[..., 0, 4] = 2, 2.1, 1.5  # others: 4
    masked[..., 1, 3], scores[..., 1, 3] = 6, 12  # a sink, of both
    canvas = np.array([[MASK] * 5, [1, 1, 1, MASK, MASK], [1, 1, 1, 1, MASK], [1] * 5])[:, None]
    return scores, masked, canvas


def test_tops_of_masked_and_other_queries_are_compared_where_there_are_both() -> None:
    scores, masked, canvas = kinds_of_queries()
    gallery = made_gallery(scores, masked=masked, canvas=canvas)
    np.testing.assert_array_equal(fig6_queries_and_short_lives.tops_differ(gallery)[:, 0, 0], [[True, False]] * 4)
    assert fig6_queries_and_short_lives.with_both_kinds(gallery).ravel().tolist() == [False, True, True, False]
    assert fig6_queries_and_short_lives.differ(ANY, gallery) == pytest.approx([1 / 2])
    assert fig6_queries_and_short_lives.differ_at_sinks(ANY, gallery) == pytest.approx([0])
    scores[2, 0, 0, 0, 4] = 9  # now a sink of the other queries
    masked[1, 0, 0, 0] = scores[1, 0, 0, 0] / 2  # and here no difference
    changed = made_gallery(scores, masked=masked, canvas=canvas)
    assert fig6_queries_and_short_lives.differ(ANY, changed) == pytest.approx([1 / 4])
    assert fig6_queries_and_short_lives.differ_at_sinks(ANY, changed) == pytest.approx([1 / 3])
    nothing = made_gallery(scores, masked=masked, canvas=canvas, taken=np.array([1]))
    assert np.isnan(fig6_queries_and_short_lives.differ(ANY, nothing)).all()


def test_padding_is_no_query() -> None:
    scores, masked, canvas = kinds_of_queries()
    mask = np.array([[False, True, True, True, True]])
    canvas[:, :, 0], canvas[1, :, 1:] = 1, MASK  # all that is real is masked
    both = fig6_queries_and_short_lives.with_both_kinds(made_gallery(scores, masked=masked, canvas=canvas, mask=mask))
    assert both.ravel().tolist() == [False, False, True, False]


def padded(scores: np.ndarray, left: int, **changes: Any) -> Any:
    mask = np.broadcast_to(np.arange(scores.shape[-1]) >= left, (scores.shape[2], scores.shape[-1]))
    return made_gallery(scores, mask=mask, real=np.broadcast_to(mask, (len(scores), *mask.shape)), **changes)


def test_share_of_sinks_is_of_the_tokens_that_exist() -> None:
    scores = places([[3, 3], [-1, 5]])
    scores[..., :2] = 0
    gallery = padded(scores, 2)
    assert fig10_epsilon.share_of_sinks(ANY, gallery) == pytest.approx([3 / 4 / 6])
    assert fig10_epsilon.share_of_sinks(ANY, padded(scores, 2, taken=np.array([1]))) == pytest.approx([1 / 2 / 6])
    loud = np.zeros_like(scores)
    loud[..., 7] = 8.0
    assert fig10_epsilon.share_of_sinks(ANY, padded(loud, 2, eps=9.0)) == pytest.approx([0])


def test_statistics_of_causal_maps_are_by_scores_that_do_not_favour_early_keys() -> None:
    """Uniform causal attention has a sink by column sums, and none by the mean over queries that see a key."""
    length = 40
    uniform = np.array([sum(1 / (query + 1) for query in range(key, length)) for key in range(length)], np.float32)
    gallery = made_gallery(np.broadcast_to(uniform, (2, 1, 1, 2, length)).copy(), mask_id=None)
    assert gallery.tracks.sinks[..., 0].all() and not gallery.fair_tracks.sinks.any()
    assert fig10_epsilon.share_of_sinks(ANY, gallery) == pytest.approx([0])
    one = uniform.copy()
    one[30] = 3.0  # from the 10 queries that see it; the first key has more, from 40
    fair = one * length / np.arange(length, 0, -1)
    assert one.argmax() == 0 and fair.argmax() == 30
    gallery = made_gallery(np.broadcast_to(one, (2, 1, 1, 2, length)).copy(), mask_id=None)
    assert gallery.fair_tracks.position[0, 0, 0, 0] == 30
    assert fig7_trajectories.on_first(ANY, gallery) == pytest.approx([0])
    assert fig1_scores_over_steps.share_of_the_strongest(ANY, gallery) == pytest.approx([fair[30] / fair.sum()])
    assert fig3_histogram.near_zero(ANY, gallery) == pytest.approx([(fair < 0.5).mean()])
    assert (fair < 0.5).mean() != (one < 0.5).mean()


def test_the_strongest_keys_have_their_share_of_all_attention() -> None:
    scores = np.full((2, 1, 1, 1, 87), 1.0, np.float32)
    scores[..., :3] = 0
    scores[0, 0, 0, 0, [5, 50, 80]] = 10, 4, 2
    scores[1, ..., 9] = 84
    total = (81 + 16, 83 + 84)  # 84 tokens: 3 % are two and a half, so three
    found = fig1_scores_over_steps.share_of_the_strongest(ANY, padded(scores, 3))
    assert found == pytest.approx([((16 / total[0]) + 86 / total[1]) / 2])
    few = fig1_scores_over_steps.share_of_the_strongest(ANY, made_gallery(places([[3, 4]])))  # at least one
    assert few == pytest.approx([SINK / (SINK + 7 * LITTLE)])


def test_keys_near_zero_receive_less_than_half_of_the_uniform() -> None:
    scores = np.array([0.0, 0.0, 0.1, 0.49, 0.5, 0.51, 3.0, 0.2], np.float32).reshape(1, 1, 1, 1, 8)
    assert fig3_histogram.near_zero(ANY, padded(scores, 2)) == pytest.approx([3 / 6])
    two = np.concatenate([scores, np.ones_like(scores)])
    assert fig3_histogram.near_zero(ANY, padded(two, 2)) == pytest.approx([3 / 12])
    assert fig3_histogram.near_zero(ANY, padded(two, 2, taken=np.array([1]))) == pytest.approx([3 / 6])


def test_the_strongest_key_is_the_first_real_token_or_not() -> None:
    scores = np.full((2, 1, 1, 2, 6), 0.1, np.float32)
    scores[..., 0] = 50.0  # padding
    scores[0, 0, 0, :, 1] = 5
    scores[1, 0, 0, 0, 1], scores[1, 0, 0, 1, 3] = 5, 5
    gallery = padded(scores, 1, mask_id=None)
    assert fig7_trajectories.on_first(ANY, gallery) == pytest.approx([3 / 4])


def test_structure_has_its_share_of_the_sinks() -> None:
    kinds = np.full(10, KINDS.index("word"))
    kinds[[0, 2, MASK]] = KINDS.index("bos"), KINDS.index("newline"), KINDS.index("mask")
    canvas = np.ones((3, 3, 8), int)
    canvas[0, 0, 3], canvas[1, 0, 3] = 2, MASK
    scores = places([[3, 3, 3], [5, -1, 5]], [[-1] * 3, [-1] * 3], [[0, 1, 1], [-1] * 3])
    canvas[:, 2, :2] = -1, 2  # not there yet, and a line break
    gallery = made_gallery(scores, canvas=canvas, taken=np.array([3, 3, 2]))
    found = table2_tokens.on_structure(SimpleNamespace(kinds=kinds), gallery)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, [2 / 5, NOTHING, 1 / 2])


def seen_at_sinks() -> dict[str, np.ndarray]:
    """Two steps, one layer, three sequences, two heads, four keys; the last sequence has no sink, one key is padding."""
    sinks = np.zeros((2, 1, 3, 2, 4), bool)
    sinks[0, 0, 0, 0, 1], sinks[1, 0, 1, 1, 2] = True, True
    value = np.full((2, 1, 3, 2, 4), 2.0)
    value[..., 0] = 100
    value[0, 0, 0, 0, 1], value[1, 0, 1, 1, 2] = 1.0, 8.0
    received = np.full_like(value, 0.5)
    received[0, 0, 0, 0] = [0, 3, 0.5, 0.5]
    received[1, 0, 1, 1] = [0, 1, 2, 1]
    handed = received.copy()
    handed[0, 0, 0, 0, 1] = 1.0
    handed[1, 0, 1, 1] = [0, 0, 3, 0]
    real = np.broadcast_to(np.array([False, True, True, True]), (2, 3, 4))
    return {"sinks": sinks, "value": value, "received": received, "handed": handed, "real": real}


def test_values_at_sinks_are_held_against_those_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beyond_values, "look", lambda subject, gallery: seen_at_sinks())
    np.testing.assert_allclose(beyond_values.value_ratio(ANY, ANY), [np.log(1 / 2), np.log(4), NOTHING], rtol=1e-6)


def test_what_sinks_hand_on_is_held_against_what_they_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beyond_values, "look", lambda subject, gallery: seen_at_sinks())
    found = beyond_values.handed_on(ANY, ANY)
    np.testing.assert_allclose(found, [np.log((1 / 2) / (3 / 4)), np.log(1 / (1 / 2)), NOTHING], rtol=1e-6)


def test_settings_change_the_number_of_sinks_by_a_share_of_the_usual() -> None:
    """More sinks in one of two generations: what is usual is the mean of both."""
    usual, found = np.array([2.0, 4.0]), np.array([3.5, 4.0])
    line = beyond_sensitivity.change(usual, found, ["a", "b"])
    assert line["change"] == pytest.approx(0.25) and line["change: low"] < 0 < line["change: high"]
    assert beyond_sensitivity.change(np.zeros(2), found, ["a", "b"]) == {}
    assert beyond_sensitivity.sinks_per_head(made_gallery(places([[3, 3], [-1, 5]]))) == pytest.approx([3 / 4])


def test_early_blocks_of_a_block_causal_model_are_not_favoured() -> None:
    """Every query gives the same to each key that it sees: the first block has more of it, and no larger score."""
    key, query = np.arange(12), np.arange(12)[:, None]
    received = (key // 4 <= query // 4).sum(axis=0).astype(np.float32)
    assert received[0] == 3 * received[-1]
    scores = np.broadcast_to(received, (2, 1, 1, 1, 12))
    blocks = made_gallery(scores, block_length=4)
    np.testing.assert_allclose(blocks.fair, 12.0)
    assert not blocks.fair_tracks.sinks.any()
    config = FAMILIES["sdar"]
    there = np.ones((1, 12), bool)
    np.testing.assert_allclose(fair_scores(config, scores[0], there), 12.0)
    np.testing.assert_allclose(fair_scores(FAMILIES["llada"], scores[0], there), scores[0])
