"""The values behind a figure, which the page shows under the pointer, are those that were drawn, where they were drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jaxsink.study import plots


def test_values_are_kept_beside_the_figure(tmp_path: Path) -> None:
    figure, ((lines, bars, picture),) = plots.canvas(1, 3, width=9)
    lines.errorbar([0, 1, 2], [1.0, 10.0, np.nan], ([0.5, 1, 1], [1, 1, 1]), marker="o", capsize=2, label="top")
    lines.plot([0, 2], [2.0, 3.0], label="random")
    lines.scatter([1.5], [4.0], label="one")
    lines.axhline(5)
    lines.set(yscale="log", xlabel="step", ylabel="received")
    bars.bar(["word", "digit"], [1.0, 3.0], label="share")
    bars.hist([0.2, 0.4, 0.4], [0, 0.5, 1], histtype="step", label="outline")
    image = picture.imshow(np.array([[1.0, 2.0], [3.0, 4.0]]), origin="lower", aspect="auto")
    figure.colorbar(image, ax=picture)
    plots.save(figure, tmp_path, "made")

    first, second, third = json.loads((tmp_path / "made.json").read_text())  # the colour bar is not among them
    assert first["x"]["label"] == "step" and first["y"]["log"] and not first["x"]["log"]
    assert first["points"] == [
        {"label": "top", "x": [0, 1, 2], "y": [1, 10, None]},
        {"label": "random", "x": [0, 2], "y": [2, 3]},
        {"label": "one", "x": [1.5], "y": [4]},
    ]
    assert second["x"]["names"] == {"0": "word", "1": "digit"}
    assert second["bars"] == [{"label": "share", "boxes": [[-0.4, 0, 0.8, 1], [0.6, 0, 0.8, 3]]}]
    assert second["points"][0]["label"] == "outline" and max(second["points"][0]["y"]) == 3
    assert third["images"] == [{"extent": [-0.5, 1.5, -0.5, 1.5], "rows": [[3, 4], [1, 2]]}]
    for values, axes in zip((first, second, third), (lines, bars, picture), strict=True):
        left, top, right, bottom = values["box"]
        box = axes.get_position()
        assert (left, right) == pytest.approx((box.x0, box.x1), abs=1e-3)
        assert (top, bottom) == pytest.approx((1 - box.y1, 1 - box.y0), abs=1e-3)
