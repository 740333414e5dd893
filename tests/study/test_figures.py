"""The study's figures: every axis says what it shows, nothing is cut off, and there are files for page, slides and print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxsink_experiments import ORDER
from matplotlib.figure import Figure
from matplotlib.text import Text
from support.miniatures import random_subject

from jaxsink import Sampler
from jaxsink.evals.conditions import Condition
from jaxsink.study import Scores, Study, Subject, plots
from jaxsink.study.experiments import experiment_of

pytestmark = pytest.mark.usefixtures("quick_compilation")
WITHOUT = {"table2_tokens", "beyond_values", "beyond_clean_ranking", "beyond_sensitivity", "beyond_extra_sink"}
WITHOUT |= {"beyond_readings", "beyond_gate", "inside_outlier"}
"""Tables only."""


def made_up(
    study: Study,
    subject: Subject,
    conditions: Sequence[Condition],
    gold: bool = False,
    count: int | None = None,
    sampler: Sampler | None = None,
) -> Scores:
    """Answers that nobody gave, right or wrong, and how likely published ones are; in place of hours of masking."""
    noise = np.random.default_rng(len(subject.name))
    if gold:
        return {label: noise.random(study.problems) + number / 4 for number, label in enumerate(conditions)}
    return {label: noise.random(study.problems) < 1 / (1 + number / 4) for number, label in enumerate(conditions)}


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Figure]:
    """Every figure, drawn from three random models and answers that were made up."""
    subjects = [random_subject(name) for name in ("mini-llada", "mini-dream", "mini-llama")]
    folder = tmp_path_factory.mktemp("figures")
    study = Study(subjects, folder, problems=20, generations=2, eps=0.5, runs=Path("runs"), untrained=0)
    kept: dict[str, Figure] = {}

    def keep(self: Study, name: str, figure: Figure) -> str:
        kept[name] = figure
        return f"{name}.svg"

    def along_the_way(runs: Path, name: str) -> list[Subject]:
        (subject,) = (s for s in subjects if s.name == name)
        return [replace(subject, name=f"{name}@{step}") for step in (100, 1000)]

    with pytest.MonkeyPatch.context() as patch, plots.styled():
        patch.setattr(Study, "figure", keep)
        patch.setattr(Study, "scores", made_up)
        patch.setattr(Study, "hidden", lambda self, subject, conditions: {})
        patch.setattr(import_module("jaxsink_experiments.beyond_training"), "along_the_way", along_the_way)
        for name in ORDER:
            if name not in WITHOUT:
                experiment_of(import_module(f"jaxsink_experiments.{name}")).run(study)
    return kept


def pictures(figure: Figure) -> list[Any]:
    """The axes without colour bars."""
    return [axis for axis in figure.axes if axis.get_label() != "<colorbar>"]


def bars(figure: Figure) -> list[Any]:
    return [axis for axis in figure.axes if axis.get_label() == "<colorbar>"]


@pytest.mark.slow
def test_every_experiment_with_a_figure_is_here(figures: dict[str, Figure]) -> None:
    assert len(figures) == len(ORDER) - len(WITHOUT)


def test_every_axis_has_a_label(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        for axis in pictures(figure):
            row = [axis, *axis.get_shared_y_axes().get_siblings(axis)]
            assert axis.get_xlabel(), name
            assert any(other.get_ylabel() for other in row) or name == "origin", name  # there: the models' names
        assert all(bar.get_ylabel() for bar in bars(figure)), name


@pytest.mark.slow
def test_nothing_is_cut_off_and_no_text_is_too_small(figures: dict[str, Figure]) -> None:
    for name, figure in figures.items():
        width, height = figure.get_size_inches()
        assert width <= plots.PAGE, name
        with plots.styled():
            figure.draw_without_rendering()
            box = figure.get_tightbbox()  # inches, of all that is drawn
        assert box.x0 > -0.01 and box.y0 > -0.01 and box.x1 < width + 0.01 and box.y1 < height + 0.01, (name, box)
        assert all(text.get_fontsize() >= 6 for text in figure.findobj(Text) if text.get_text()), name


def whole(axis: Any) -> bool:
    limits = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_ticklocs() if limits[0] <= tick <= limits[1]]
    return len(ticks) > 1 and all(float(tick).is_integer() for tick in ticks)


def test_layers_heads_steps_and_positions_are_whole_numbers(figures: dict[str, Figure]) -> None:
    for name, x, y in (
        ("fig1", 1, 1),
        ("fig2", 1, 1),
        ("fig5", 1, 1),
        ("fig6", 1, 0),
        ("fig7", 1, 1),
        ("fig8", 1, 0),
        ("depth", 1, 0),
    ):
        for axis in pictures(figures[name]):
            assert not x or whole(axis.xaxis), name
            assert not y or whole(axis.yaxis), name
    assert [tick.get_text() for tick in pictures(figures["fig5"])[0].get_yticklabels()] == ["0", "1"]


def test_steps_go_right_and_positions_down(figures: dict[str, Figure]) -> None:
    for name in ("fig1", "fig2", "fig7", "fig8"):
        for axis in pictures(figures[name]):
            assert axis.get_xlabel() == "step" and axis.yaxis.get_inverted() and not axis.xaxis.get_inverted(), name
            assert "position" in axis.get_ylabel(), name


def test_heat_maps_have_colour_bars(figures: dict[str, Figure]) -> None:
    assert len(bars(figures["fig1"])) == 6 and len(bars(figures["fig5"])) == 3
    assert [bar.get_ylabel() for bar in bars(figures["fig4"])] == ["attention (probability)"] * 2
    for name in ("fig1", "fig4", "fig5"):
        assert all(len(axis.images) == 1 for axis in pictures(figures[name])), name


def test_figure_4_marks_where_the_sink_jumps(figures: dict[str, Figure]) -> None:
    before, after = pictures(figures["fig4"])[:2]
    frames = [int(axis.patches[0].get_x() + 0.5) for axis in (before, after)]
    assert frames[0] != frames[1]
    for axis, sink in zip((before, after), frames, strict=True):
        picture = np.asarray(axis.images[0].get_array())
        marks = {int(line.get_xdata()[0]): line.get_markerfacecolor() for line in axis.get_lines()}
        assert marks == {sink: "black", sum(frames) - sink: "white"}
        assert f"{picture[:, sink].sum():.1f}" in [text.get_text() for text in axis.texts]
        assert picture[:, sink].sum() == pytest.approx(picture.sum(axis=0).max())
    (arrow,) = [text for text in after.texts if text.arrow_patch is not None]
    assert arrow.xy[0] == frames[1] and arrow.xyann[0] == frames[0]


def test_the_title_says_whether_the_head_was_chosen_because_its_sink_moves() -> None:
    for moves, title in (
        (True, "x\nmoves most: layer 1, head 2"),
        (False, "x: no sink moves\nstrongest: layer 1, head 2"),
    ):
        with plots.styled():
            axis = plots.canvas()[1][0, 0]
            axis.set_title("layer 1, head 2")
            plots.title_of_head(axis, "x", moves)
            assert axis.get_title() == "" and axis.get_title(loc="left") == title


def test_pdf_svg_and_png_are_written_and_equal_figures_give_equal_files(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        figure, axes = plots.canvas()
        axes[0, 0].plot([1, 2], label="a line")
        plots.label_lines(axes[0, 0])
        assert plots.save(figure, tmp_path / folder, "x") == "x.svg"
    for kind, start in (("pdf", b"%PDF"), ("png", b"\x89PNG"), ("svg", b"<?xml")):
        one, two = ((tmp_path / folder / f"x.{kind}").read_bytes() for folder in ("one", "two"))
        assert one == two and one.startswith(start)
    assert b"/Type3" not in (tmp_path / "one" / "x.pdf").read_bytes()  # journals refuse its fonts


def test_labels_beside_lines_stand_apart() -> None:
    spread = plots.spread_out(np.array([0.1, 0.5, 0.51, 0.52, 0.9]), 0.1)
    np.testing.assert_allclose(spread, [0.1, 0.41, 0.51, 0.61, 0.9])
    axes = plots.canvas()[1]
    for number, label in enumerate(("low", "high", "nothing")):
        axes[0, 0].plot([number + 13, number + 13.001] if label != "nothing" else [np.nan] * 2, label=label)
    plots.label_lines(axes[0, 0])
    low, high = axes[0, 0].texts
    assert (low.get_text(), high.get_text()) == ("low", "high") and 0 < low.xy[1] < high.xy[1] < 1
    assert low.get_color() == plots.COLOURS[0]
