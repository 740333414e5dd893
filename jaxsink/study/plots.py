"""One style for all figures of a study: sizes and type of a printed page, colours that colour-blind readers can tell
apart, labels beside the lines instead of legends, and equal files for equal results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxsink.runs.atomic import new_file
from jaxsink.study.values import figure_values

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # one per colour, for prints without colours
GUIDE = "0.45"  # grey of lines and words that explain
COLUMN, PAGE = 3.5, 7.1  # inches: one column of a paper, and both
NARROWEST = 2.3  # inches of one picture among several
STYLE: dict[Any, Any] = {
    "figure.dpi": 120,
    "savefig.dpi": 240,
    "figure.constrained_layout.use": True,
    "font.size": 8,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.prop_cycle": cycler(color=COLOURS),
    "legend.frameon": False,
    "svg.hashsalt": "jaxsink",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
}
FORMATS = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}  # without dates or versions


def styled() -> Any:
    """A context in which everything that is drawn has the style; a user's own settings come back after it."""
    return mpl.rc_context(STYLE)


def canvas(rows: int = 1, columns: int = 1, width: float | None = None, height: float = 2.6, **options: Any) -> Any:
    """(figure, axes [rows, columns]) in the style: a column wide for one picture, a page for several, unless told."""
    usual = COLUMN if columns == 1 else max(PAGE, NARROWEST * columns)
    with styled():
        figure = Figure(figsize=(width or usual, height))
        return figure, figure.subplots(rows, columns, squeeze=False, **options)


def save(figure: Figure, folder: Path, name: str) -> str:
    """`NAME.svg`, `NAME.png`, `NAME.pdf`, and the values they show as `NAME.json`: equal results give equal files."""
    with styled():
        for kind, metadata in FORMATS.items():
            with new_file(folder / f"{name}.{kind}") as partial:
                figure.savefig(partial, format=kind, metadata=metadata)
    with new_file(folder / f"{name}.json") as partial:
        partial.write_text(json.dumps(figure_values(figure), separators=(",", ":")) + "\n", encoding="utf-8")
    return f"{name}.svg"


def whole_ticks(axis: Axes, x: bool = True, y: bool = False) -> None:
    """Ticks at whole numbers only: of steps, layers, heads and positions there are no halves."""
    for wanted, side in ((x, axis.xaxis), (y, axis.yaxis)):
        if wanted:
            side.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def title_of_head(axis: Axes, model: str, moves: bool) -> None:
    """The model, and why this head is shown: `plot_received` and the like take the strongest sink where none moves."""
    why = f"{model}\nmoves most" if moves else f"{model}: no sink moves\nstrongest"
    axis.set_title(f"{why}: {axis.get_title(loc='left')}")


def shared_legend(figure: Figure, columns: int = 4) -> None:
    """One legend below all pictures of a figure, each label once."""
    entries: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns)


def label_lines(axis: Axes) -> None:
    """Write each line's label beside its right end, in its colour; labels that would touch are moved apart.

    Call it last: it needs the final limits of the axes.
    """
    axis.get_ylim()  # matplotlib fits limits to the data only when somebody asks
    ends = []
    for line in axis.get_lines():
        x, y = (np.asarray(values, float) for values in line.get_data())
        if not str(line.get_label()).startswith("_") and np.isfinite(y).any():
            last = int(np.flatnonzero(np.isfinite(y))[-1])
            ends.append((line, axis.transAxes.inverted().transform(axis.transData.transform((x[last], y[last])))[1]))
    ends.sort(key=lambda end: end[1])
    size = mpl.rcParams["font.size"]
    gap = 1.25 * size * axis.figure.dpi / 72 / axis.bbox.height
    heights = spread_out(np.array([height for _, height in ends]), gap)
    for (line, _), height in zip(ends, heights, strict=True):
        axis.annotate(
            line.get_label(),
            (1, height),
            (4, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            color=line.get_color(),
            va="center",
            fontsize=size,
            annotation_clip=False,
        )


def spread_out(values: np.ndarray, gap: float) -> np.ndarray:
    """Sorted values, moved as little as needed for neighbours to lie a gap apart."""
    groups: list[list[float]] = []  # [mean, count] of values that touch
    for value in values:
        groups.append([float(value), 1])
        while len(groups) > 1 and groups[-1][0] - groups[-2][0] < gap * (groups[-1][1] + groups[-2][1]) / 2:
            mean, count = groups.pop()
            groups[-1] = [
                (groups[-1][0] * groups[-1][1] + mean * count) / (groups[-1][1] + count),
                groups[-1][1] + count,
            ]
    spread = [mean + gap * (rank - (count - 1) / 2) for mean, count in groups for rank in range(int(count))]
    return np.array(spread)
