"""One style for all figures: colours that colour-blind readers can tell apart, no ink that says nothing, equal files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from cycler import cycler

from jaxsink.atomic import new_file
from jaxsink.study.values import figure_values

mpl.use("Agg")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
HEAT = "magma"
STYLE: dict[Any, Any] = {
    "figure.dpi": 120, "savefig.dpi": 160, "figure.constrained_layout.use": True, "font.size": 10,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 11, "axes.titlelocation": "left",
    "axes.prop_cycle": cycler(color=COLOURS), "legend.frameon": False, "svg.hashsalt": "jaxsink", "svg.fonttype": "path",
}  # fmt: skip


def styled() -> Any:
    """A context in which everything that is drawn has the style; a user's own settings come back after it."""
    return mpl.rc_context(STYLE)


def canvas(rows: int = 1, columns: int = 1, width: float = 7.0, height: float = 3.2, **options: Any) -> tuple[Any, Any]:
    """(figure, axes) in the style."""
    with styled():
        return plt.subplots(rows, columns, figsize=(width, height), squeeze=False, **options)


def save(figure: Any, folder: Path, name: str) -> str:
    """`NAME.svg`, `NAME.png` and their values as `NAME.json`, without dates or versions: equal results give equal files."""
    with styled():
        for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
            with new_file(folder / f"{name}.{kind}") as partial:
                figure.savefig(partial, format=kind, metadata=metadata)
        with new_file(folder / f"{name}.json") as partial:
            partial.write_text(json.dumps(figure_values(figure), separators=(",", ":")) + "\n", encoding="utf-8")
    plt.close(figure)
    return f"{name}.svg"
