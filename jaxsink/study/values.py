"""The values that a matplotlib figure shows, for the page: where its axes are, and their lines, points, bars and images."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle

DIGITS = 4  # significant ones that a reader sees
CELLS = 20_000  # of an image; the values of a larger one would make the page heavy
CAPS = ("|", "_", 2, 3, "None", "")  # markers; 2 and 3 are matplotlib's caps


def figure_values(figure: Figure) -> list[dict[str, Any]]:
    """One object per axes, in the order drawn; call it after the figure was saved, when its layout is known."""
    return [axes_values(axes) for axes in figure.axes if axes.get_label() != "<colorbar>"]


def axes_values(axes: Axes) -> dict[str, Any]:
    box = axes.get_position()
    return {
        "box": numbers([box.x0, 1 - box.y1, box.x1, 1 - box.y0]),  # left, top, right, bottom; shares of the figure
        "x": axis_values(axes.xaxis, axes.get_xlim(), axes.get_xlabel()),
        "y": axis_values(axes.yaxis, axes.get_ylim(), axes.get_ylabel()),
        "title": axes.get_title("left") or axes.get_title(),
        "points": [*lines(axes), *clouds(axes)],
        "bars": bars(axes),
        "images": images(axes),
    }


def axis_values(axis: Any, limits: tuple[float, float], label: str) -> dict[str, Any]:
    """names: tick labels that are words, by position."""
    words = {float(at): text.get_text() for at, text in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)}
    named = {f"{at:g}": text for at, text in words.items() if text and not is_number(text)}
    return {"limits": numbers(limits), "log": axis.get_scale() == "log", "label": label, "names": named}


def is_number(text: str) -> bool:
    return not any(char.isalpha() for char in text.replace("mathdefault", ""))


def lines(axes: Axes) -> list[dict[str, Any]]:
    """Lines in data coordinates, without the caps of error bars; outlines of histograms."""
    labels = {id(part.lines[0]): name(part) for part in axes.containers if isinstance(part, ErrorbarContainer)}
    found = []
    for line in axes.lines:
        unseen = line.get_linestyle() in ("None", "") and line.get_marker() in CAPS
        if line.get_transform() != axes.transData or unseen or not line.get_visible():
            continue
        x, y = (np.asarray(part, float) for part in line.get_data())
        found.append({"label": name(line) or labels.get(id(line), ""), "x": numbers(x), "y": numbers(y)})
    for outline in axes.patches:
        if isinstance(outline, Polygon):
            x, y = np.asarray(outline.get_xy(), float).T
            found.append({"label": name(outline), "x": numbers(x), "y": numbers(y)})
    return found


def clouds(axes: Axes) -> list[dict[str, Any]]:
    """Scattered points."""
    found = []
    for cloud in axes.collections:
        if isinstance(cloud, PathCollection):
            x, y = np.ma.filled(cloud.get_offsets(), np.nan).T
            found.append({"label": name(cloud), "x": numbers(x), "y": numbers(y)})
    return found


def bars(axes: Axes) -> list[dict[str, Any]]:
    found = []
    for container in axes.containers:
        rectangles = [patch for patch in container if isinstance(patch, Rectangle)]
        boxes = [numbers([*patch.get_xy(), patch.get_width(), patch.get_height()]) for patch in rectangles]
        if boxes:
            found.append({"label": name(container), "boxes": boxes})
    return found


def images(axes: Axes) -> list[dict[str, Any]]:
    """Rows of values with the data coordinates of the picture's sides (left, right, bottom, top)."""
    found = []
    for image in axes.images:
        values = np.ma.filled(np.ma.asarray(image.get_array()), np.nan)
        if values.ndim == 2 and values.size <= CELLS:
            rows = values if image.origin == "upper" else values[::-1]  # the first row is the upper one
            found.append({"extent": numbers(image.get_extent()), "rows": [numbers(row) for row in rows]})
    return found


def name(artist: Any) -> str:
    """What the legend calls it; matplotlib's own names start with an underscore."""
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def numbers(values: Any) -> list[float | None]:
    """Rounded, for JSON, which knows neither NaN nor infinity."""
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in np.asarray(values, float)]
