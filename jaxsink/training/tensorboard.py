"""Figures of a run for TensorBoard, with the extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from jaxsink.errors import JaxsinkError, install_hint

Board = Callable[[int, Mapping[str, float]], None]
"""Takes (step, figures by name)."""


def no_board(step: int, figures: Mapping[str, float]) -> None:
    """Keeps nothing."""


@contextmanager
def board_in(folder: Path) -> Iterator[Board]:
    """Writes event files into the folder."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise JaxsinkError(f"--tensorboard needs an extra; {install_hint('tensorboard')}.") from error
    with ExitStack() as stack:
        made: list[SummaryWriter] = []

        def keep(step: int, figures: Mapping[str, float]) -> None:
            if not made:  # the directory must be the run's before anything is in it
                made.append(stack.enter_context(SummaryWriter(str(folder))))
            for name, value in figures.items():
                made[0].add_scalar(name, value, step)

        yield keep
