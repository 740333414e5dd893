"""The lens in the player: what is packed is what was recorded, at the positions that it speaks of."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.browser import SLIDE, Browser

import jaxsink
from jaxsink.report import lensed
from jaxsink.report.generations import played_generations
from jaxsink.report.own import read_records
from jaxsink.sampling.generation import Generation
from jaxsink.sampling.record_file import RecordFile
from jaxsink.text.token_texts import token_texts

STEPS, LAYERS, LENGTH, TOP = 3, 2, 6, 4


def words(ids: Sequence[int]) -> list[str]:
    return [f"w{token}" for token in ids]


@pytest.fixture
def generation() -> Generation:
    """One sequence with a padded first position, whose queries speak of the position to the right."""
    rng, shape = np.random.default_rng(0), (STEPS, LAYERS, 1, LENGTH)
    about = np.where(np.arange(LENGTH) > 0, np.arange(LENGTH) + 1, -1)
    lens = {
        "token": rng.integers(0, 40, (*shape, TOP)),
        "log_prob": -rng.random((*shape, TOP)),
        "entropy": rng.random(shape),
        "kl": rng.random(shape),
        "position": np.broadcast_to(about, shape),
    }
    return Generation(
        tokens=np.array([[0, 7, 8, 9, 10, 11]]),
        committed_at=np.array([[-1, -1, -1, 0, 2, 1]]),
        record={"received": rng.random((STEPS, LAYERS, 1, 2, LENGTH)), "lens": lens},
        mask=np.arange(LENGTH)[None] > 0,
        steps=np.array([STEPS]),
        prompt_length=3,
        recorded_steps=np.arange(STEPS),
    )


def test_guesses_stand_at_the_position_that_they_are_about(generation: Generation) -> None:
    (run,) = played_generations(generation, [words([0, 7, 8, 9, 10, 11])], "r", "m", words=words)
    lens, kept = run.lens, generation.record["lens"]
    queries = [1, 2, 3, 4]  # the first is padding, and the last one speaks of what is not there
    assert lens is not None and lens.guess.shape == (STEPS, LAYERS, len(queries), lensed.SHOWN)
    assert [lens.words[number] for number in lens.final] == ["w7", "w8", "w9", "w10", "w11"]
    assert lens.place.tolist() == [[1, 2, 3, 4]] * STEPS  # nothing speaks of the first token
    for slot, query in enumerate(queries):
        named = np.array(lens.words)[lens.guess[:, :, slot]]
        assert (named == np.array([f"w{n}" for n in range(40)])[kept["token"][:, :, 0, query, : lensed.SHOWN]]).all()
        share = np.exp(kept["log_prob"][:, :, 0, query, : lensed.SHOWN])
        np.testing.assert_allclose(lens.share[:, :, slot] / 255, share, atol=1 / 255)
    data = base64.b64decode(lens.blob())
    assert len(data) == 3 * lens.guess.size and data[: 2 * lens.guess.size] == lens.guess.astype("<u2").tobytes()
    assert lens.note == "" and lens.about()["place"] == [[1, 2, 3, 4]]


def large(steps: int, layers: int, length: int, queries: int) -> Generation:
    """Of each step the lens kept some queries, which speak of a block that moves to the right; token = step + layer."""
    shape = (steps, layers, 1, queries)
    begin = np.arange(steps) * (length - queries) // max(1, steps - 1)
    about = np.broadcast_to(begin[:, None, None, None] + np.arange(queries), shape)
    token = np.broadcast_to((np.arange(steps)[:, None] + np.arange(layers))[..., None, None, None], (*shape, TOP))
    lens = {"token": token, "log_prob": np.full((*shape, TOP), -0.5), "position": about}
    return Generation(
        tokens=np.zeros((1, length), int),
        committed_at=np.zeros((1, length), int),
        record={"received": np.ones((steps, layers, 1, 1, length), np.float16), "lens": lens},
        mask=np.ones((1, length), bool),
        steps=np.array([steps]),
        prompt_length=0,
        recorded_steps=np.arange(steps),
    )


@pytest.mark.parametrize(
    ("shape", "limit", "kept", "note"),
    [
        ((8, 4, 30, 5), 480, (8, 4, 5, 3), ""),  # not 8 x 4 x 30, which would not fit
        ((8, 4, 30, 5), 479, (8, 4, 5, 1), "the best token only"),
        ((8, 32, 30, 5), 1279, (8, 31, 5, 1), "31 of 32 layers, the best token only"),
        ((8, 32, 30, 5), 640, (8, 16, 5, 1), "16 of 32 layers, the best token only"),
        ((8, 32, 30, 5), 240, (4, 12, 5, 1), "12 of 32 layers, 4 of 8 steps, the best token only"),
        ((256, 32, 400, 400), 2_000_000, (256, 19, 400, 1), "19 of 32 layers, the best token only"),
    ],
)
def test_too_much_of_it_is_thinned_and_said(shape: Any, limit: int, kept: Any, note: str, monkeypatch: Any) -> None:
    """Queries that were not kept take no room; then best tokens, layers and steps have to go."""
    monkeypatch.setattr(lensed, "LIMIT", limit)
    generation = large(*shape)
    lens = lensed.played_lens(generation, 0, np.arange(shape[2]), shape[0], words)
    assert lens is not None and lens.guess.shape == kept and lens.guess.size <= limit and lens.note == note
    assert lens.layers[-1] == shape[1] - 1 and lens.frames[0] == 0 and len(set(lens.layers.tolist())) == kept[1]
    named = np.array([int(word[1:]) for word in lens.words])[lens.guess[..., 0]]
    np.testing.assert_array_equal(named, np.broadcast_to((lens.frames[:, None] + lens.layers)[..., None], named.shape))
    position = generation.record["lens"]["position"][:, -1, 0]
    np.testing.assert_array_equal(lens.place, position[lens.frames])
    half = lens.every(2)
    assert half.frames.tolist() == list(range(0, -(-shape[0] // 2), max(1, int(np.diff(lens.frames)[0]) // 2)))
    np.testing.assert_array_equal(half.guess, lens.guess[lens.frames % 2 == 0])


def test_rare_words_give_way_where_a_page_cannot_number_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lensed, "WORDS", 4)
    ids, number = lensed.numbered(np.array([5, 5, 6, 7, 7, 7, 8, 9, 9]), np.array([1, 1]))
    assert ids == [1, 5, 7, 9] and number(np.array([1, 7, 8, -1])).tolist() == [0, 2, lensed.NONE, lensed.NONE]


def test_no_lens_is_no_lens(generation: Generation) -> None:
    bare = replace(generation, record=generation.record["received"])
    texts = [words([0, 7, 8, 9, 10, 11])]
    assert played_generations(bare, texts, "r", "m", words=words)[0].lens is None


def test_a_recorded_file_keeps_the_words(generation: Generation, tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "run.npz", {}, 1, 0, 0)
    file.write(generation, {"model": "m"}, None)
    study = read_records([file.path])
    (run,), (facts,) = study.generations, study.manifest.values()
    assert run.lens is not None and "words" not in facts
    page = jaxsink.report(file.path, out=tmp_path / "run.html")
    text = Path(page.path).read_text()
    data = re.search(r'id="study">(.*?)</script>', text, re.S)
    assert data and json.loads(data[1])["generations"][0]["lens"]["words"] == run.lens.words
    assert run.lens.blob() in text


def test_the_page_shows_what_each_layer_would_write(generation: Generation, tmp_path: Path, browser: Browser) -> None:
    """The tip over a mask, and a track with a mark for each step and layer that reads what stands there in the end."""
    place = 3  # of the real tokens: filled in by the last step, and its query is the slot `place`
    lens = generation.record["lens"]
    lens["token"][:, :, 0, place, 0] = [[20, 21], [22, 10], [10, 10]]  # w10 stands there in the end
    lens["token"][0, :, 0, place + 1] = lens["token"][0, :1, 0, place + 1]
    file = RecordFile(tmp_path / "run.npz", {}, 1, 0, 0)
    file.write(generation, {"model": "m"}, None)
    study = read_records([file.path])
    assert study.generations[0].lens is not None
    page = jaxsink.report(file.path, out=tmp_path / "run.html")
    browser.events.clear()
    browser.open(Path(page.path))
    for step in (0, 1):
        browser.run(SLIDE.format(step))
        browser.mouse(f".pane .token[data-position='{place}']")
        tip = str(browser.run("document.getElementById('tip').textContent"))
        for layer in range(LAYERS):
            share = np.exp(lens["log_prob"][step, layer, 0, place])
            (best,) = token_texts(None, [int(lens["token"][step, layer, 0, place, 0])])
            assert f"layer {layer}: {best} {100 * share[0]:.0f} %" in tip
    browser.run(SLIDE.format(0))
    browser.mouse(f".pane .token[data-position='{place + 1}']")  # all layers read the same there
    tip = str(browser.run("document.getElementById('tip').textContent"))
    assert "layers 0–1: " in tip and "layer 0:" not in tip
    browser.mouse(f".pane .token[data-position='{place}']", click=True)
    title = str(browser.run("document.querySelector('[data-part=readable-title]').textContent"))
    assert f"Position {place}: where the lens reads" in title
    assert browser.run("document.querySelectorAll('.pane:first-child rect.read').length") == 3
    assert browser.problems() == []
