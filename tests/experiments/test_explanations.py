"""The statistics of the paper's explanations where the answer is known: made by hand, or planted."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jaxsink_experiments import (
    canvases,
    dependence,
    displaced,
    explain_frequency,
    explain_past,
    explain_paths,
    explain_takeover,
    explain_token,
    orders,
)
from jaxsink_experiments.masking import PLAIN
from scipy.stats import spearmanr
from support.made_gallery import MASK, made_gallery, places
from support.miniatures import random_subject
from support.planted import MASK as PLANTED_MASK
from support.planted import VOCAB, planted_model

import jaxsink
from jaxsink import DreamSampler, LLaDASampler
from jaxsink.recording.rerouted import takeover
from jaxsink.sinks.tokens import KINDS
from jaxsink.study import Gallery, Measured, Subject
from jaxsink.study.verdicts import decide

pytestmark = pytest.mark.usefixtures("quick_compilation")
NOTHING = float("nan")


class Diffusion:
    """All that some statistics ask of a subject."""

    is_diffusion = True


DIFFUSION: Any = Diffusion()


def subject_of(model: Any) -> Subject:
    return Subject("planted", model, None, LLaDASampler(8, 8, 8), chats=False)  # type: ignore[arg-type]


def planted() -> tuple[Subject, Gallery]:
    """Two layers of two heads; token 2 is a sink everywhere, token 4 somewhat of one. Six texts of 24 tokens."""
    strength = np.zeros((2, 2, VOCAB), np.float32)
    strength[..., 2], strength[..., 4] = 4.0, 2.0
    draw = np.random.default_rng(0)
    tokens = draw.integers(5, PLANTED_MASK, (6, 24))
    tokens[:, 3], tokens[:, 10], tokens[:, 16:] = 2, 4, PLANTED_MASK
    scores = np.ones((2, 2, 6, 2, 24), np.float32)
    gallery = made_gallery(scores, canvas=np.stack([tokens, tokens]), tokens=tokens, mask_id=PLANTED_MASK)
    return subject_of(planted_model(strength)), gallery


@pytest.mark.parametrize("parts", [1, 2])
def test_a_pass_in_pieces_is_the_whole_pass(parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sequences at a time, or three pairs, which stay together."""
    subject, draw = random_subject("mini-llada"), np.random.default_rng(0)
    tokens, there = draw.integers(5, 50, (14, 12)), np.ones((14, 12), bool)
    options: Any = {"drop": draw.random((2, 14, 2, 12)) < 0.2, "visible": draw.random((14, 12, 12)) < 0.8}
    options |= {"record": jaxsink.record.received() if parts == 1 else takeover(), "parts": parts}
    seen = []

    def read(logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
        seen.append(rows.tolist())
        return canvases.at(logits, tokens[rows])

    whole = canvases.pass_over(subject, tokens, there, read=read, **options)
    monkeypatch.setattr(canvases, "LOGITS", 3 * parts * 4 * 12 * subject.model.config.vocab)
    pieces = canvases.pass_over(subject, tokens, there, read=read, **options)
    assert seen[1] == ([0, 1, 2] if parts == 1 else [0, 1, 2, 7, 8, 9])
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), pieces.record, whole.record)
    np.testing.assert_allclose(pieces.values, whole.values[np.concatenate(seen[1:])], atol=1e-5)


def test_of_planted_sinks_all_that_is_hidden_is_shared_in_proportion() -> None:
    """Every query has the same logits whatever is hidden; token 4 has e² of the weight that is left."""
    subject, gallery = planted()
    found, proportional = explain_paths.shares(subject, gallery)
    np.testing.assert_allclose(found, proportional, atol=1e-5)
    left = np.e**2 + 22
    np.testing.assert_allclose(found[:, 0], np.e**2 / left, rtol=1e-4)
    own = (np.e**2 + 22 * 1) / left / 24  # each of the other queries gets its own part; the sink's own is gone
    paid = np.e**4 / (np.e**4 + left)
    lost = paid / 24 / paid  # what the sink paid to itself, of what all pay to it
    np.testing.assert_allclose(found[:, 1], own - lost, atol=1e-5)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    np.testing.assert_allclose(explain_paths.beyond_proportion(subject, gallery), 0, atol=1e-5)


def test_heads_without_a_sink_and_the_first_layer_do_not_count() -> None:
    subject, gallery = planted()
    nothing = replace(gallery, eps=30.0)
    assert np.isnan(explain_paths.shares(subject, nothing).found).all()
    strength = np.zeros((2, 2, VOCAB), np.float32)
    strength[0, :, 2] = 4.0
    first = subject_of(planted_model(strength))
    assert np.isnan(explain_paths.shares(first, gallery).found).all()


@pytest.mark.parametrize("change", ["swap", "shift"])
def test_planted_sinks_go_with_their_tokens(change: str) -> None:
    """So do other keys: what the weaker token 4 has more than the rest belongs to it."""
    subject, gallery = planted()
    found = displaced.displacement(subject, gallery, change)
    np.testing.assert_allclose(found.sinks, 1, atol=0.02)  # a longer text has a little more of everything
    there = ~np.isnan(found.others)
    np.testing.assert_allclose(found.others[there], 1, atol=0.02)
    assert there.all() == (change == "shift")  # all tokens are moved, or two of them


@pytest.mark.parametrize("change", ["swap", "shift"])
@pytest.mark.parametrize("part", [0.0, 0.3, 1.0, 1.2])
def test_parts_of_token_and_position_are_told_apart(change: str, part: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What keys receive is made up: a part by token, the rest by position, counted from the first token."""
    subject, gallery = planted()
    mask = np.ones((6, 24), bool)
    mask[0, :2] = False  # padding on the left
    canvas = gallery.canvas.copy()
    canvas[:, 1, 3], canvas[:, 1, 23] = 5, 2  # at the end, where the text goes on when it is moved
    gallery = replace(gallery, mask=mask, canvas=canvas)
    place = np.array([1, 23, 3, 3, 3, 3])[:, None]

    def received(_: Subject, tokens: np.ndarray, there: np.ndarray) -> np.ndarray:
        position = np.cumsum(there, axis=1) - 1
        by_token = np.where(tokens == 2, 9.0, 1.0)
        by_position = np.where(position == place, 9.0, 1.0)
        scores = np.where(there, part * by_token + (1 - part) * by_position, 0.0)
        return np.broadcast_to(scores[None, :, None], (2, len(tokens), 2, tokens.shape[1])).astype(np.float32)

    monkeypatch.setattr(displaced, "received", received)
    found = displaced.displacement(subject, gallery, change)
    np.testing.assert_allclose(found.sinks, min(part, 1.0), atol=1e-5)


def test_the_main_sink_is_that_of_most_heads() -> None:
    scores = places([[3], [3], [5], [-1]], [[6], [1], [1], [6]], [[-1], [-1], [-1], [-1]])[0]
    key, heads = displaced.main_sink(scores, scores > 5)
    assert key[:2].tolist() == [3, 1]  # of equally many the first
    assert heads[0].tolist() == [[True, True, False, False], [False, True, True, False], [False] * 4]


def test_a_shift_puts_tokens_of_the_text_before_it() -> None:
    tokens = np.array([[0, 7, 5, 6, 8, 9]])
    there = np.array([[False, True, True, True, True, True]])
    canvas = canvases.Canvas(0, tokens, there)
    made = next(displaced.shifted(canvas, np.array([2]), there, np.random.default_rng(0)))
    text = tokens[0, made.source[0]]
    assert text[1 + displaced.SHIFT :].tolist() == [7, 5, 6, 8, 9]
    assert set(text[1 : 1 + displaced.SHIFT]) <= {5, 6, 7, 8, 9}
    assert made.goes_to[0].tolist() == [4, 5, 6, 7, 8, 9]


def test_a_swap_is_of_different_tokens_and_then_of_two_that_are_no_sinks() -> None:
    tokens = np.array([[5, 5, 6, 7, 5, 8]])
    there, plain = np.ones((1, 6), bool), np.array([[False, True, True, True, True, True]])
    canvas = canvases.Canvas(0, tokens, there)
    made = list(displaced.swapped(canvas, np.array([0]), plain, np.random.default_rng(0)))
    assert len(made) == 2 * displaced.DRAWS
    for number, one in enumerate(made):
        moved = np.flatnonzero(one.source[0] != np.arange(6))
        assert len(moved) == 2 and tokens[0, moved[0]] != tokens[0, moved[1]]
        assert (0 in moved) == (number < displaced.DRAWS)
        assert (one.source == one.goes_to).all() and one.source[0, moved].tolist() == moved[::-1].tolist()


def test_semantic_and_positional_are_opposite_predictions_about_different_models() -> None:
    by_name = {one.name: one for one in explain_token.token_or_position.predictions}
    config = SimpleNamespace(shift_logits=False)
    llada: Any = SimpleNamespace(is_diffusion=True, model=SimpleNamespace(config=config))
    dream: Any = SimpleNamespace(is_diffusion=True, model=SimpleNamespace(config=SimpleNamespace(shift_logits=True)))
    llama: Any = SimpleNamespace(is_diffusion=False, model=SimpleNamespace(config=config))
    for change in ("swap", "shift"):
        token, position = by_name[f"{change}-token"], by_name[f"{change}-position"]
        assert (token.expected, token.least, token.most) == ("greater", 0.5, None)
        assert (position.expected, position.least, position.most) == ("less", None, 0.5)
        assert [token.about(one) for one in (llada, dream, llama)] == [True, False, False]
        assert [position.about(one) for one in (llada, dream, llama)] == [False, True, True]


def test_what_a_new_sink_takes_is_counted_at_jumps_and_at_steps_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps, two pairs: head 0 jumps and stays, head 1 jumps twice, the first time for next to nothing."""
    gallery = made_gallery(places([[3, 5, 5], [2, 4, 6]], [[3, 3, 3], [-1, 4, -1]]))
    made = [
        {"gain": [[4.0, 0.1], [2.0, 9.0]], "from_self": [[1.0, 9.0], [0.2, 9.0]]},
        {"gain": [[5.0, 1.0], [3.0, 9.0]], "from_self": [[-1.0, 0.5], [0.3, 9.0]]},
    ]
    shown = []

    def passes(subject: Any, tokens: np.ndarray, there: np.ndarray, record: Any, parts: int) -> Any:
        assert parts == 2
        number = len(shown)
        shown.append(len(tokens))
        values = {name: np.array(x)[None] for name, x in made[number].items()}
        more = {"in_proportion": values["gain"] * 0.1, "before": values["gain"] * 0 + 0.2, "after": values["gain"] * 0}
        return SimpleNamespace(record=values | more)

    monkeypatch.setattr(explain_takeover, "pass_over", passes)
    np.testing.assert_allclose(explain_takeover.from_self(DIFFUSION, gallery), [(1 + 0.5) / (4 + 1), NOTHING])
    assert shown == [4, 4]  # both steps at once
    np.testing.assert_allclose(explain_takeover.in_proportion(DIFFUSION, gallery), [0.1, NOTHING])
    np.testing.assert_allclose(explain_takeover.beyond_proportion(DIFFUSION, gallery), [0.3 - 0.1, NOTHING])
    np.testing.assert_allclose(explain_takeover.while_it_stays(DIFFUSION, gallery), [-0.2 - 0.1, 0.1 - 0.1])
    assert explain_takeover.turning(DIFFUSION, gallery)["number"].tolist() == [[2, 0], [1, 2]]


def test_frequency_is_that_of_sinks_over_that_of_all_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = np.full(10, KINDS.index("word"))
    kinds[2], kinds[MASK] = KINDS.index("newline"), KINDS.index("mask")
    frequency = np.array([0.0, 1, 5, 3, 0, 0, 0, 0, 0, 100])
    monkeypatch.setattr(explain_frequency, "log_frequency", lambda subject: frequency)
    canvas = np.array([[[1, 1, 3, 2, MASK, MASK]] * 2, [[1, 1, 3, 2, 1, MASK]] * 2])  # two steps, two sequences
    scores = places([[2, 2], [3, 5], [-1, 3]], [[-1, -1], [4, 5], [-1, -1]], length=6)
    gallery = made_gallery(scores, canvas=canvas)
    subject: Any = SimpleNamespace(kinds=kinds)
    maps = 2 * 3  # steps and heads
    mean = np.mean([1, 1, 3, 5, 1, 1, 3, 5, 1])  # masks do not count, nor sinks on them
    found = explain_frequency.of_all(subject, gallery)
    np.testing.assert_allclose(found, [sum(x - mean for x in (3, 3, 5, 5)) / maps, 0])
    words = np.mean([1, 1, 3, 1, 1, 3, 1])
    np.testing.assert_allclose(explain_frequency.of_words(subject, gallery), [2 * (3 - words) / maps, 0])
    np.testing.assert_allclose(explain_frequency.of_formatting(subject, gallery), [(2 - 4 * 2 / 9) / maps, 0])
    early = explain_frequency.of_all(subject, replace(gallery, taken=np.array([1, 1])))
    np.testing.assert_allclose(early, [sum(x - 2.5 for x in (3, 5)) / 3, 0])


def test_the_oldest_tokens_are_the_first_of_a_part_that_has_twice_as_many() -> None:
    part = np.array([[0, 0, *[1] * 9, 0, *[1] * 10], [0, 0, *[1] * 15, 0, 0, 0, 0, 0]], bool)
    old = explain_past.first_of(part)
    assert np.flatnonzero(old[0]).tolist() == list(range(2, 10)) and not old[1].any()
    drawn = [explain_past.others_of(part, old, np.random.default_rng(seed)) for seed in (0, 1)]
    for others in drawn:
        assert others[0].sum() == 8 and not others[1].any() and not (others & (old | ~part)).any()
    assert (drawn[0] != drawn[1]).any()
    for others in explain_past.OTHERS.values():
        assert others.policy is not None and others.policy.positions is not None
        assert len(set(others.policy.positions)) == explain_past.COUNT <= min(others.policy.positions)


def test_what_is_lost_is_the_loss_of_what_was_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hidden key costs its position in hundredths of a nat; asked are the tokens that are still masks."""
    committed = np.broadcast_to(np.array([-1] * 20 + list(range(24))), (2, 44))
    gallery = made_gallery(np.ones((25, 1, 2, 1, 44), np.float32), committed_at=committed)
    seen = []

    def nats(subject: Any, canvas: Any, tokens: np.ndarray, asked: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        seen.append((canvas.step, asked[0].sum(), hidden[0].sum()))
        lost = 1.0 + (hidden * np.arange(44)).sum(axis=1) / 100
        return np.where(asked.any(axis=1), lost, np.nan)

    monkeypatch.setattr(explain_past, "nats", nats)
    found = explain_past.nats_lost(DIFFUSION, gallery, "question")
    np.testing.assert_allclose(found[0], sum(range(8)) / 100)
    assert (found[1] > found[0]).all() and (found[1] < sum(range(12, 20)) / 100).all()
    assert {step: count for step, count, _ in seen} == {0: 24, 8: 16, 16: 8, 24: 0}
    seen.clear()
    found = explain_past.nats_lost(DIFFUSION, gallery, "answer")
    np.testing.assert_allclose(found, [[sum(range(20, 28)) / 100] * 2, [sum(range(28, 36)) / 100] * 2])
    assert [hidden for step, _, hidden in seen if step == 16] == [8, 8, 8, 0]
    assert {hidden for step, _, hidden in seen if step < 16} == {0}  # too few are written


def test_confidence_is_the_log_odds_of_the_best_token_at_its_own_position() -> None:
    logits = np.log(np.array([[[0.1, 0.6, 0.1, 0.2], [0.25, 0.25, 0.25, 0.25], [0.05, 0.05, 0.1, 0.8]]]))
    config: Any = SimpleNamespace(mask_id=3, predicts_next=False)
    expected = np.log([0.6 / 0.2, 0.25 / 0.5, 0.1 / 0.1])
    np.testing.assert_allclose(dependence.sure(config, logits), [expected])
    shifted: Any = SimpleNamespace(mask_id=3, predicts_next=True)
    np.testing.assert_allclose(dependence.sure(shifted, logits), [expected[[0, 0, 1]]])
    np.testing.assert_array_equal(canvases.of_their_queries(shifted, np.array([[1, 2, 3]])), [[1, 1, 2]])


def test_falls_are_compared_between_masks_above_and_below_the_median() -> None:
    attention = np.array([[9.0, 0.1, 0.2, 0.3, 0.4, 0.9], [1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6]])
    fall = np.array([[100.0, 1, 1, 2, 5, 9]] * 3)
    masked = np.array([[False, True, True, True, True, True]] * 2 + [[False, False, False, True, True, True]])
    found = dependence.upper_less_lower(attention, fall, masked)
    np.testing.assert_allclose(found, [7 - 4 / 3, NOTHING, NOTHING])


def test_delays_are_correlated_with_the_attention_of_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_at = np.array([[-1, -1, 0, 1, 2, 3, 4], [-1, -1, 0, 1, 2, 3, 4]])
    hidden_at = np.array([[-1, -1, 4, 3, 2, 1, 0], [-1, -1, 0, 1, 2, 3, 4]])
    attention = np.array([[9.0, 9, 0.5, 0.1, 0.3, 0.25, 0.2]] * 2)
    scores = np.ones((5, 1, 2, 1, 7), np.float32)
    plain, hidden = (made_gallery(scores, committed_at=at) for at in (plain_at, hidden_at))

    def of_masks(subject: Any, canvas: Any) -> np.ndarray:
        return np.where(plain_at >= canvas.step, attention, np.nan)

    monkeypatch.setattr(dependence, "attention_of_masks", of_masks)
    expected = spearmanr(attention[0, 2:], [4, 2, 0, -2, -4]).statistic
    np.testing.assert_allclose(dependence.delays(DIFFUSION, plain, hidden), [expected, NOTHING])  # nothing is later


def test_where_all_masks_attend_alike_nothing_can_be_compared() -> None:
    subject, gallery = planted()
    assert np.isnan(dependence.fallen(subject, gallery)).all()


def measured(**solved: tuple[int, int, int]) -> Measured:
    """Of 40 problems, so many are solved with nothing, the top keys and partners hidden; by order."""
    conditions = (PLAIN, orders.TOP, orders.PARTNER)
    scores = {
        order: {one: np.arange(40) < count for one, count in zip(conditions, counts, strict=True)}
        for order, counts in solved.items()
    }
    subject: Any = SimpleNamespace(name="m", is_diffusion=True)
    return Measured(subject, {}, scores.pop("usual"), {}, {}, [f"problem {n}" for n in range(40)], written=scores)


def test_robustness_is_gone_where_more_is_lost_than_in_the_usual_order_and_than_with_other_keys() -> None:
    gone = orders.where_it_cannot_wait(measured(usual=(40, 36, 40), random=(36, 6, 32)), "random")
    assert gone.value == pytest.approx(30 / 40) and decide([gone])[0].verdict == "supported"
    assert {one.null: one.null_value for one in gone.comparisons} == pytest.approx(
        {"the usual order": 4 / 40, "partner keys": 4 / 40}
    )
    for other in ((40, 10, 40), (40, 36, 40)):  # as much is lost in the usual order; or with partners
        partners = 32 if other[1] == 10 else 6
        same = orders.where_it_cannot_wait(measured(usual=other, random=(36, 6, partners)), "random")
        assert decide([same])[0].verdict == "undecided"
    nothing = orders.where_it_cannot_wait(measured(usual=(40, 36, 40), random=(4, 0, 4)), "random")
    assert not nothing.comparisons and "solves 10%" in nothing.why


def test_samplers_that_cannot_wait_are_those_of_llada() -> None:
    def made(sampler: Any) -> list[Any]:
        return list(orders.other_orders(SimpleNamespace(sampler=sampler)).values())  # type: ignore[arg-type]

    blocks = LLaDASampler(32, 16, 8, threshold=0.9)
    assert made(blocks) == [
        LLaDASampler(32, 16, 8, remasking="random"),
        LLaDASampler(32, 16, 8, remasking="left_to_right"),
    ]
    assert made(DreamSampler(24, 12)) == [
        LLaDASampler(24, 12, 24, remasking="random"),
        LLaDASampler(24, 12, 24, remasking="left_to_right"),
    ]
