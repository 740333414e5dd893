"""What a sink holds, whether its stream is needed, end-of-text as a scratchpad: against slow versions and known answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jaxsink_experiments import inside_holds, inside_residual, inside_scratchpad, inside_whole_runs
from jaxsink_experiments.conduct import choose_experiments
from jaxsink_experiments.inside_scratchpad import WHOSE
from scipy.special import log_softmax
from support.made_gallery import LITTLE, SINK
from support.miniatures import random_subject, written_by

import jaxsink
from jaxsink.nn import edits as edit
from jaxsink.nn.parameters import named_leaves
from jaxsink.recording import recorders as record
from jaxsink.recording.lens import lens_logits
from jaxsink.study import Gallery, Study, Subject
from jaxsink.study.finding import judge
from jaxsink.study.run import conduct
from jaxsink.study.subject import OWN_SEED, with_random_weights

pytestmark = pytest.mark.usefixtures("quick_compilation")
BOTH = pytest.mark.parametrize("name", ["mini-llada", "mini-dream"])
AT = 7  # of the planted sink


def canvases(subject: Subject, gallery: Gallery, count: int) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    """(step, row, tokens i64[S], their masks bool[S])."""
    for step in np.linspace(0, len(gallery.scores) - 1, count).astype(int):
        for row, there in enumerate(gallery.mask):
            tokens = gallery.canvas[step, row]
            yield int(step), row, tokens, there & (tokens == subject.mask_id)


def predictions(subject: Subject, gallery: Gallery, row: int, tokens: np.ndarray, edits: Any = None) -> np.ndarray:
    """f64[S,V]: of each position, log-probabilities; Dream's first has none."""
    more = {} if edits is None else {"edits": edits}
    out: Any = jaxsink.forward(subject.model, tokens[None], gallery.mask[row][None], **more)
    found = log_softmax(np.asarray(out.logits[0], np.float64), axis=-1)
    return np.roll(found, 1, axis=0) if subject.name == "mini-dream" else found


def without_mixing(subject: Subject) -> Subject:
    """No token learns of another one: attention adds nothing."""
    leaves, treedef = named_leaves(subject.model)
    made = [leaf * 0 if name.endswith("attention.o.weight") else leaf for name, leaf in leaves]
    return replace(subject, model=jax.tree.unflatten(treedef, made))


def with_a_sink(gallery: Gallery) -> Gallery:
    """In one head of the last layer, in all steps, at AT."""
    scores = np.full_like(gallery.scores, LITTLE)
    scores[:, -1, :, 1, AT] = SINK
    return replace(gallery, scores=scores)


def partner(gallery: Gallery, row: int, masked: np.ndarray) -> int:
    others = [n for n in np.flatnonzero(masked).tolist() if n != AT]
    when = gallery.committed_at[row]
    return min(others, key=lambda n: (abs(when[n] - when[AT]), abs(n - AT)))


@BOTH
def test_sinks_are_read_beside_the_mask_that_is_filled_in_next_to_them(name: str) -> None:
    subject = random_subject(name)
    gallery = with_a_sink(written_by(subject))
    tokens = gallery.tokens.copy()
    tokens[0, AT] = first_best(subject, gallery)[AT]  # so that something is readable
    gallery = replace(gallery, tokens=tokens)
    expected: list[list[tuple[np.ndarray, ...]]] = [[] for _ in gallery.tokens]
    for _, row, tokens, masked in canvases(subject, gallery, 8):
        if not masked[AT] or masked.sum() < 2:
            continue
        where = [AT, partner(gallery, row, masked)]
        out: Any = jaxsink.forward(subject.model, tokens[None], gallery.mask[row][None], record=lens_logits())
        logits = np.asarray(out.record, np.float64)[:, 0]
        first, last = log_softmax(np.roll(logits, 1, axis=1) if name == "mini-dream" else logits, axis=-1)[:, where]
        readable = first.argmax(axis=-1) == gallery.tokens[row, where]
        kl, entropy = (np.exp(last) * (last - first)).sum(axis=-1), -(np.exp(first) * first).sum(axis=-1)
        expected[row].append((readable, kl, entropy))
    found = inside_holds.pairs(subject, gallery)
    for made, wanted in zip(found, expected, strict=True):
        assert len(made) == len(wanted) > 0
        for pair, values in zip(made, wanted, strict=True):
            for one, value in zip(pair[:3], values, strict=True):
                np.testing.assert_allclose(one[:, 0], value, atol=2e-4)
    assert any(pair.readable[0] > pair.readable[1] for pair in found[0])


def first_best(subject: Subject, gallery: Gallery) -> np.ndarray:
    """i64[S]: what the first layer reads at the first canvas of the first text."""
    out: Any = jaxsink.forward(subject.model, gallery.canvas[0, :1], gallery.mask[:1], record=lens_logits())
    best = np.asarray(out.record)[0, 0].argmax(axis=-1)
    return np.roll(best, 1) if subject.name == "mini-dream" else best


def test_what_all_layers_say_of_a_mask_is_held_by_sinks_alone_if_it_stands_there_alone() -> None:
    subject = without_mixing(random_subject("mini-llada"))  # all masks are read alike
    gallery = with_a_sink(written_by(subject))
    tokens = np.tile(first_best(subject, gallery)[AT], gallery.tokens.shape) + 1
    tokens[:, AT] -= 1
    gallery = replace(gallery, tokens=tokens)
    np.testing.assert_array_equal(inside_holds.readable_at_sinks(subject, gallery), 1)
    np.testing.assert_array_equal(inside_holds.readable_at_others(subject, gallery), 0)


def sink_of(subject: Subject, gallery: Gallery, row: int, tokens: np.ndarray, layer: int) -> tuple[int, np.ndarray]:
    """(the position that receives most there, its stream)."""
    wanted = {"received": record.received(), "residual": record.residual()}
    seen = jaxsink.forward(subject.model, tokens[None], gallery.mask[row][None], record=wanted).record
    at = int(np.asarray(seen["received"])[layer, 0].sum(axis=0).argmax())
    return at, np.asarray(seen["residual"])[layer, 0, at]


@BOTH
def test_a_sink_without_its_stream_against_one_canvas_at_a_time(name: str) -> None:
    subject = random_subject(name)
    gallery = written_by(subject)
    found = inside_residual.changes(subject, gallery)
    steps = np.linspace(0, 7, inside_residual.COUNT).astype(int).tolist()
    for step, row, tokens, masked in canvases(subject, gallery, inside_residual.COUNT):
        plain = predictions(subject, gallery, row, tokens)
        for layer in range(2):
            at, _ = sink_of(subject, gallery, row, tokens, layer)
            next_row = (row + 1) % len(gallery.tokens)
            _, stream = sink_of(subject, gallery, next_row, gallery.canvas[step, next_row], layer)
            here = np.arange(len(masked)) == at
            asked = masked & ~here
            asked[at + 1 : at + 2] &= name != "mini-dream"  # the sink predicts it
            for change, made in (
                ("zero", edit.zero("residual", layers=[layer], at=here[None])),
                ("patch", edit.patch(np.tile(stream, (1, 1, len(tokens), 1)), layers=[layer], at=here[None])),
            ):
                after = predictions(subject, gallery, row, tokens, made)
                kl = (np.exp(plain) * (plain - after)).sum(axis=-1)[asked]
                expected = kl.mean() if asked.any() else np.nan
                value = found[change, "sink"][row, steps.index(step), layer]
                np.testing.assert_allclose(value, expected, atol=1e-5, rtol=1e-3)
    assert (inside_residual.nats(subject, gallery, "zero", "sink") > 1e-4).all()


@pytest.mark.slow
@BOTH
def test_whole_runs_with_a_sink_edited_against_one_run_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = random_subject(name)
    gallery = written_by(subject)
    monkeypatch.setattr(inside_whole_runs, "grades", lambda *given: lambda texts: [text[0] % 2 == 0 for text in texts])
    one: Any = SimpleNamespace(subject=subject, gallery=gallery)
    study: Any = SimpleNamespace(rows=2)
    plain, *lines = inside_whole_runs.whole_runs(one, study, inside_residual.streams_of)
    assert plain["other tokens"] == 0 and len(lines) == 2 * 3 * 2 * 2
    assert plain["solved"] == np.mean(gallery.tokens[:, gallery.prompt_length] % 2 == 0)
    layer, steps, at = 1, range(4, 8), int(np.linspace(0, 7, 4)[2])
    written = []
    for row, there in enumerate(gallery.mask):
        other = (row + 1) % len(gallery.tokens)
        _, stream = sink_of(subject, gallery, other, gallery.canvas[at, other], layer)
        made = edit.patch(np.tile(stream, (1, 1, len(there), 1)), layers=[layer], at="sink", steps=steps)
        prompt = slice(gallery.prompt_length)
        given = gallery.tokens[row, prompt][None], subject.sampler, there[prompt][None]
        written.append(np.asarray(jaxsink.generate(subject.model, *given, intervene=made).response)[0])
    differ = np.array(written) != gallery.tokens[:, gallery.prompt_length :]
    known = {"change": "patch", "at": "sink", "layer": "1", "steps": "second half"}
    (found,) = (line for line in lines if known.items() <= line.items())
    assert found["other tokens"] == differ.mean() and found["other texts"] == differ.any(axis=1).mean()
    assert any(line["other tokens"] != 0 for line in lines)


def test_the_last_layer_is_read_by_the_steps_that_are_left() -> None:
    """All pairs of a generation, each once; what is written in this very step is read already."""
    subject = random_subject("mini-llada")
    gallery = with_a_sink(written_by(subject))
    lines = inside_holds.by_wait(SimpleNamespace(subject=subject, gallery=gallery))  # pyright: ignore
    assert [line["steps until it is written"] for line in lines] == ["0", "1", "2 to 3", "4 to 7"]
    count = sum(map(len, inside_holds.pairs(subject, gallery)))
    assert sum(float(line["masks: sinks"]) for line in lines) == count > 0
    assert lines[0]["readable: sinks"] == 1.0


@BOTH
def test_no_stream_matters_to_others_without_attention(name: str) -> None:
    subject = without_mixing(ending(name))
    gallery = written_by(ending(name))
    for change in inside_residual.CHANGES:
        for place in inside_residual.PLACES:
            values = inside_residual.nats(subject, gallery, change, place)
            np.testing.assert_allclose(values, 0, atol=1e-6)
    for region in inside_scratchpad.REGIONS:
        values = inside_scratchpad.rise(subject, gallery, region, WHOSE[2])
        assert not np.isnan(values).all()
        np.testing.assert_allclose(values[~np.isnan(values)], 0, atol=1e-5)


def ending(name: str) -> Subject:
    """With the token that it writes last in the first text as its end of text."""
    return random_subject(name, eos_ids=(int(written_by(random_subject(name)).tokens[0, -1]),))


def test_regions_are_what_ends_the_text_and_as_much_of_the_prompt() -> None:
    subject = ending("mini-llada")
    (end,), gallery = subject.model.config.eos_ids, written_by(subject)
    tokens = np.full_like(gallery.tokens, (end + 1) % subject.model.config.vocab)
    tokens[0, [4, 10, 12]] = tokens[1, 6:] = end  # 4 is of the prompt, which has five tokens
    there = np.ones_like(gallery.mask)
    there[0, 3] = there[0, 12] = False
    found = inside_scratchpad.regions(subject, replace(gallery, tokens=tokens), there)
    assert [np.flatnonzero(row).tolist() for row in found["end-of-text"]] == [[10], [6, 7, 8, 9, 10, 11, 12], []]
    assert [np.flatnonzero(row).tolist() for row in found["prompt"]] == [[4], [0, 1, 2, 3, 4], []]


@BOTH
def test_patched_ends_against_one_canvas_at_a_time(name: str) -> None:
    subject = ending(name)
    gallery = written_by(subject)
    ends = np.isin(gallery.tokens, subject.model.config.eos_ids) & (np.arange(13) >= 5) & gallery.mask
    said = gallery.tokens.copy()
    said[2, ends[2]] = (said[2, ends[2]] + 1) % 9  # the third has none
    ends[2], gallery = False, replace(gallery, tokens=said)
    steps = np.linspace(0, 7, inside_scratchpad.COUNT).astype(int).tolist()
    count = 0
    for step, row, tokens, masked in canvases(subject, gallery, inside_scratchpad.COUNT):
        other, third = ((row + by) % 3 for by in (1, 2))
        where = ends[row] & gallery.mask[other]
        donor = gallery.canvas[step, other][None], gallery.mask[other][None]
        streams = jaxsink.forward(subject.model, *donor, record=record.residual()).record
        made = edit.patch(streams, at=where[None]) if where.any() else None
        rise = predictions(subject, gallery, row, tokens, made) - predictions(subject, gallery, row, tokens)
        asked = masked & ~ends[row] & where.any()
        if name == "mini-dream":
            asked[1:] &= ~where[:-1]
        for whose, of in zip(WHOSE, (other, third, row), strict=True):
            differs = asked & ((of == row) | ((said[of] != said[row]) & (said[other] != said[third])))
            at = np.flatnonzero(differs)
            expected = rise[at, said[of, at]].mean() if len(at) else np.nan
            value = inside_scratchpad.moved(subject, gallery)["end-of-text", whose][row, steps.index(step)]
            np.testing.assert_allclose(value, expected, atol=2e-4, rtol=1e-3)
            count += len(at) > 0 and abs(expected) > 1e-3
    assert count > 3 and np.isnan(inside_scratchpad.rise(subject, gallery, "end-of-text", WHOSE[0])[2])


@pytest.mark.slow
def test_a_study_of_random_weights_supports_nothing(tmp_path: Path) -> None:
    subject = with_random_weights(ending("mini-llada"), OWN_SEED, "untrained")
    study = Study([subject], tmp_path, problems=6, generations=6, untrained=4)
    found = conduct(study, choose_experiments(["holds", "residual", "scratchpad"]))
    tests = [test for finding in judge(found) for test in finding.tests]
    assert len(tests) == 4 and not any(test.verdict == "supported" for test in tests)
    against = {null.null for test in tests for null in test.comparisons}
    assert "untrained weights, beyond chance" in against, [(test.why, test.comparisons) for test in tests]
    assert [len(finding.tables) for finding in found] == [2, 2, 1]
