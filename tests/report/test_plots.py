"""Plots of a generation: what is drawn where, from records of every kind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from support.configs import FAMILIES
from support.made_generation import MOVING, PATH, PROMPT, B, H, L, Letters, S, T, made_generation
from support.models import lively

import jaxsink
from jaxsink.errors import JaxsinkError
from jaxsink.recording.reductions import head_mean, top
from jaxsink.report import plots
from jaxsink.sampling.leaves import Kept
from jaxsink.sinks import Threshold, track

pytestmark = pytest.mark.usefixtures("quick_compilation", "clean_figures")


@pytest.fixture
def clean_figures() -> Iterator[None]:
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


def picture(axes: Any) -> np.ndarray:
    return np.ma.filled(axes.images[0].get_array().astype(float), np.nan)


def line(axes: Any) -> Any:
    """The line of the chosen head; those of the others are grey."""
    (found,) = [x for x in axes.get_lines() if x.get_color() != plots.OTHERS and len(x.get_xdata()) > 2]
    return found


def test_received_shows_the_head_whose_sink_moves_most() -> None:
    out = made_generation()
    axes = out.plot_received()
    np.testing.assert_allclose(picture(axes), out.record[:, 1, 0, 2, 1:].T)  # the padded position is left out
    assert axes.get_title() == "layer 1, head 2"
    assert axes.get_xlabel() == "step" and axes.get_ylabel() == "token position"
    assert axes.get_xlim() == (-0.5, T - 0.5) and axes.get_ylim() == (S - 1.5, -0.5)  # steps right, positions down
    assert axes.images[0].colorbar.ax.get_ylabel() == "attention received (column sum)"
    assert all(float(tick).is_integer() for tick in [*axes.get_xticks(), *axes.get_yticks()])


def test_chosen_layers_heads_and_sequences() -> None:
    out = made_generation()
    stopped = plots.plot_received(out, layer=0, head=1, sequence=1, colorbar=False)
    np.testing.assert_allclose(picture(stopped), out.record[:4, 0, 1, 1].T)  # the steps that it took
    assert stopped.images[0].colorbar is None
    for layer, head, wanted in (
        ("mean", "mean", out.record[:, :, 0].mean(axis=(1, 2))),
        (None, "mean", out.record[:, :, 0].mean(axis=(1, 2))),
        (0, "mean", out.record[:, 0, 0].mean(axis=1)),
        ("mean", 2, out.record[:, :, 0, 2].mean(axis=1)),
        (0, None, out.record[:, 0, 0, 1]),  # nothing moves in this layer: the strongest
    ):
        axes = plots.plot_received(out, layer=layer, head=head)  # type: ignore[arg-type]
        np.testing.assert_allclose(picture(axes), wanted[:, 1:].T, rtol=1e-6)


def test_marks_where_tokens_are_filled_in() -> None:
    axes = made_generation().plot_received()
    (marks,) = [x for x in axes.collections if x.get_label() == "filled in"]
    drawn = {(segment[0][0], (segment[0][1] + segment[1][1]) / 2) for segment in marks.get_segments()}
    assert drawn == {(0.5, 3), (2.5, 4), (1.5, 5), (5.5, 6), (4.5, 7)}  # after its step, at its token position
    (begins,) = [x for x in axes.get_lines() if x.get_label() == "response begins"]
    assert begins.get_ydata()[0] == PROMPT - 1 - 0.5


def test_trajectory_follows_the_planted_sink() -> None:
    axes = made_generation().plot_trajectory(color="red")
    assert line(axes).get_ydata().tolist() == [position - 1 for position in PATH]
    assert line(axes).get_xdata().tolist() == list(range(T)) and line(axes).get_color() == "red"
    assert axes.get_title() == "layer 1, head 2" and axes.get_ylabel() == "largest sink (token position)"
    assert axes.get_ylim() == (S - 1.5, -0.5)
    grey = [x for x in axes.get_lines() if x.get_color() == plots.OTHERS]
    assert len(grey) == L * H - 1 and [x.get_label() for x in grey].count("other heads") == 1
    alone = made_generation().plot_trajectory(layer=0, head=1, others=False)
    assert not [x for x in alone.get_lines() if x.get_color() == plots.OTHERS]
    assert line(alone).get_ydata().tolist() == [0] * T
    none = made_generation().plot_trajectory(rule=Threshold(8.0))  # another rule: only the strong sink is one
    assert none.get_title() == "layer 0, head 1"


def test_layers_are_means_over_the_steps_of_each_sequence() -> None:
    out = made_generation()
    axes = out.plot_layers()
    wanted = np.zeros((L, H))
    wanted[0, 1], wanted[MOVING] = 9, 7
    np.testing.assert_allclose(picture(axes), wanted)  # sequence 1 took fewer steps, and still counts fully
    np.testing.assert_allclose(picture(out.plot_layers(sequence=1)), wanted)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("head", "layer")
    assert axes.images[0].colorbar.ax.get_ylabel() == "largest sink (column sum)"


def test_records_and_tracks_are_sources_too() -> None:
    out = made_generation()
    tracks = track(out.record, Threshold(), out.mask)
    for axes in (tracks.plot_trajectory(), plots.plot_trajectory(out.record)):
        assert line(axes).get_ydata().tolist() == list(PATH) and axes.get_ylabel() == "largest sink (position)"
    assert picture(tracks.plot_layers(sequence=0))[MOVING] == pytest.approx(7)
    np.testing.assert_allclose(picture(plots.plot_received(out.record)), out.record[:, 1, 0, 2].T)
    with pytest.raises(JaxsinkError, match="tracks hold no attention scores"):
        plots.plot_received(tracks)


def test_tokens_stand_on_the_axis_where_there_is_room() -> None:
    axes = made_generation(Letters()).plot_received()
    labels = axes.get_yticklabels()
    assert [label.get_text() for label in labels[:6]] == ["0  b", "1  c", "2  d", "3  e", "4  $^$", "5  □"]
    axes.figure.draw_without_rendering()  # a formula or a missing letter would warn or fail
    assert len({label.get_window_extent().y0 for label in labels}) == S - 1
    small = mpl.figure.Figure(figsize=(3, 0.5)).subplots()
    assert "b" not in "".join(
        x.get_text() for x in made_generation(Letters()).plot_received(ax=small).get_yticklabels()
    )
    named = made_generation().plot_trajectory(tokenizer=Letters())
    assert named.get_yticklabels()[0].get_text() == "0  b"


def test_given_axes_are_used_and_left_without_a_legend() -> None:
    axes = mpl.figure.Figure().subplots()
    assert made_generation().plot_received(ax=axes, vmax=3, cmap="viridis") is axes
    assert axes.images[0].get_clim() == (0, 3) and axes.images[0].get_cmap().name == "viridis"
    assert not axes.figure.legends and made_generation().plot_received().figure.legends


def test_layers_that_were_chosen_keep_their_numbers() -> None:
    out = made_generation(recorders=Kept("received", layers=(3, 17), heads=(4, 5, 9)))
    assert out.plot_received().get_title() == "layer 17, head 9"
    assert out.plot_trajectory(layer=3, head=5).get_title() == "layer 3, head 5"
    axes = out.plot_layers()
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["3", "17"]
    with pytest.raises(JaxsinkError, match="layer 1 was not recorded; there is 3, 17"):
        out.plot_received(layer=1)


def test_every_nth_step_stands_at_its_step() -> None:
    out = made_generation(recorded_steps=np.arange(0, 4 * T, 4), steps=np.array([4 * T, 4 * T]))
    axes = out.plot_trajectory()
    assert line(axes).get_xdata().tolist() == [0, 4, 8, 12, 16, 20] and axes.get_xlim() == (-2, 22)
    assert out.plot_received().images[0].get_extent()[:2] == [-2, 22]


def generated(family: str, sampler: Any, record: Any, **options: Any) -> jaxsink.Generation:
    return jaxsink.generate(lively(FAMILIES[family]), [[5, 6, 7], [8, 9, 10, 11]], sampler, record=record, **options)


def test_reduced_and_streamed_records_of_a_real_generation() -> None:
    received = jaxsink.record.received()
    wanted = {"all": received, "top": received.then(top(2)), "heads": received.then(head_mean()).at([2, 1])}
    out = generated("llada", jaxsink.LLaDASampler(8, 8, 8), wanted, stream=2, every=2)
    assert isinstance(out.record["all"], np.ndarray)
    full = plots.plot_received(out, record="all", layer="mean", head="mean", sequence=1)
    np.testing.assert_allclose(picture(full), out.record["all"][:, :, 1].mean(axis=(1, 2)).T, rtol=1e-5)
    mean = plots.plot_received(out, record="heads", layer=1, sequence=1)
    np.testing.assert_allclose(picture(mean), out.record["all"][:, 1, 1].mean(axis=1).T, rtol=1e-5)
    largest = plots.plot_trajectory(out, record="top", layer=2, head=5, sequence=1, others=False)
    assert line(largest).get_ydata().tolist() == out.record["all"][:, 2, 1, 5].argmax(axis=-1).tolist()
    assert largest.get_ylabel() == "largest key (token position)"
    np.testing.assert_allclose(
        picture(plots.plot_layers(out, record="top", sequence=1)),
        out.record["all"][:, :, 1].max(axis=-1).mean(axis=0),
        rtol=1e-5,
    )
    with pytest.raises(JaxsinkError, match="a mean over heads"):
        out.plot_trajectory(record="heads")
    with pytest.raises(JaxsinkError, match="head 1: only the mean over heads was recorded"):
        out.plot_received(record="heads", head=1)


def test_an_autoregressive_models_tokens_appear_one_by_one() -> None:
    out = generated("qwen2", jaxsink.ARSampler(5, whole_map=True, stop_at_eos=False), jaxsink.record.received())
    shown = picture(plots.plot_received(out, layer=0, head=0))
    assert shown.shape == (3 + 5, 5)  # sequence 0: three tokens and five new ones
    np.testing.assert_array_equal(np.isnan(shown), np.arange(8)[:, None] > 2 + np.arange(5))
    np.testing.assert_allclose(np.nan_to_num(shown), np.asarray(out.record)[:, 0, 0, 0, 1:].T)


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({"record": None, "recorders": None}, {}, "this generation has no record"),
        ({}, {"sequence": B}, "sequence 2 does not exist; there are 2"),
        ({}, {"layer": L}, "layer 2 was not recorded; there is 0, 1"),
        ({}, {"head": 7}, "head 7 was not recorded; there is 0, 1, 2"),
        ({}, {"record": "mine"}, "nothing was recorded as 'mine'; there is received"),
        (
            {"record": {"a": np.ones((T, L, B, H, S)), "b": np.ones((T, L, B, H, S))}, "recorders": None},
            {},
            "several records; choose one with record=: a, b",
        ),
        ({"record": np.ones((T, L, B, H))}, {}, r"no record has a value per position.*received \(step 6, layer 2"),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], options: dict[str, Any], words: str) -> None:
    out = made_generation(**changes)
    for plot in (out.plot_received, out.plot_trajectory):
        with pytest.raises(JaxsinkError, match=words):
            plot(**options)


def test_other_mistakes_are_named() -> None:
    with pytest.raises(JaxsinkError, match=r"a record of \[step, layer, sequence, head, position\], not \[2, 3\]"):
        plots.plot_received(np.ones((2, 3)))
    with pytest.raises(JaxsinkError, match="head must be a whole number"):
        made_generation().plot_trajectory(head="mean")
    with pytest.raises(JaxsinkError, match="layer must be a whole number or one of mean or None, not 'first'"):
        made_generation().plot_received(layer="first", head=0)


@pytest.mark.slow
def test_importing_jaxsink_does_not_import_matplotlib() -> None:
    code = "import sys, jaxsink; jaxsink.Generation, jaxsink.sinks.track; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys, jaxsink.study.plots, jaxsink.report.plots; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)  # the window system is the user's choice
