"""The loss curve as a CSV file that an interrupted run continues where its last saved state is."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxsink.training.step import Metrics

COLUMNS = ("step", "loss", "gradient_norm", "learning_rate")


@dataclass
class Curve:
    """Rows of (steps done, mean loss and gradient norm since the row before, learning rate)."""

    path: Path
    rows: list[tuple[str, ...]]

    @classmethod
    def resume(cls, path: Path, step: int) -> Curve:
        """The rows up to a step; later ones belong to steps that will be taken again."""
        rows: list[tuple[str, ...]] = []
        if path.is_file():
            with open(path, encoding="utf-8", newline="") as file:
                rows = [tuple(row) for row in list(csv.reader(file))[1:] if int(row[0]) <= step]
        return cls(path, rows)

    def add(self, step: int, metrics: list[Metrics]) -> float:
        """Average the metrics of the last steps, write the file anew, and return the mean loss."""
        loss, gradient, rate = (np.array(values, np.float64) for values in zip(*metrics, strict=True))
        self.rows.append((str(step), f"{loss.mean():.6g}", f"{gradient.mean():.6g}", f"{rate[-1]:.6g}"))
        partial = self.path.with_name(f".{self.path.name}.partial")
        with open(partial, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *self.rows])
        os.replace(partial, self.path)
        return float(loss.mean())

    def at(self, count: int) -> list[tuple[int, float]]:
        """About `count` points (step, loss) of the whole curve, the last one included."""
        if not self.rows:
            return []
        places = np.unique(np.linspace(0, len(self.rows) - 1, count).round().astype(int))
        return [(int(self.rows[n][0]), float(self.rows[n][1])) for n in places]
