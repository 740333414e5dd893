"""The loss curve as a CSV file that an interrupted run continues where its last saved state is."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.runs.atomic import new_file
from jaxsink.training.step import Metrics

COLUMNS = ("step", "loss", "gradient_norm", "learning_rate")


@dataclass
class Curve:
    """Lines of (steps done, mean loss and gradient norm since the line before, learning rate)."""

    path: Path
    lines: list[tuple[str, ...]]

    @classmethod
    def resume(cls, path: Path, step: int) -> Curve:
        """The lines up to a step; later ones belong to steps that will be taken again."""
        lines: list[tuple[str, ...]] = []
        if path.is_file():
            try:
                with open(path, encoding="utf-8", newline="") as file:
                    heading, *lines = (tuple(line) for line in csv.reader(file))
                numbers = [[float(cell) for cell in line] for line in lines]
                if heading != COLUMNS or any(len(line) != len(COLUMNS) for line in numbers):
                    raise ValueError("columns are missing")
            except (ValueError, csv.Error) as error:
                raise JaxsinkError(
                    f"{path} is damaged ({error}); remove it to go on without the curve so far."
                ) from error
            lines = [line for line in lines if int(line[0]) <= step]
        return cls(path, lines)

    def add(self, step: int, metrics: Sequence[Metrics]) -> float:
        """Average the metrics of the last steps, write the file anew, and return the mean loss."""
        check_finite(step, metrics)
        loss, gradient, rate = (np.array(values, np.float64) for values in zip(*metrics, strict=True))
        self.lines.append((str(step), f"{loss.mean():.6g}", f"{gradient.mean():.6g}", f"{rate[-1]:.6g}"))
        with new_file(self.path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *self.lines])
        return float(loss.mean())

    def at(self, count: int) -> list[tuple[int, float]]:
        """About `count` points (step, loss) of the whole curve, the last one included."""
        if not self.lines:
            return []
        numbers = np.unique(np.linspace(0, len(self.lines) - 1, count).round().astype(int))
        return [(int(self.lines[n][0]), float(self.lines[n][1])) for n in numbers]


def check_finite(step: int, metrics: Sequence[Metrics]) -> None:
    """Were the last steps, up to this one, taken with numbers? What follows from others is not kept."""
    for number, (loss, gradient, _) in enumerate(metrics, step - len(metrics) + 1):
        if not np.isfinite([float(loss), float(gradient)]).all():
            raise JaxsinkError(
                f"training: in step {number} the loss was {float(loss):g} and its gradient's norm {float(gradient):g}, so "
                "there is nothing to learn from; nothing was saved since. Lower the learning rate or the clip, or look at "
                "the data."
            )
