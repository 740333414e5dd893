"""Ctrl-C in the middle of training costs nothing: the same command goes on, to the result of a run that nobody stopped."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from support.interrupts import Interrupt, newest_state, tiny
from support.listening import listen

import jaxsink

STEPS = 300


@pytest.mark.slow
def test_ctrl_c_between_steps_loses_nothing(tmp_path: Path) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    moment = Interrupt("step").moment(stopped / "run")
    said = listen(tiny(stopped, STEPS), stopped, is_terminal=True, interrupt_at=moment)
    assert said.code == 130 and "Traceback" not in said.text
    made = newest_state(stopped / "run")
    assert made is not None and 10 <= made < STEPS and not (stopped / "run" / "model").exists()
    for folder in (stopped, whole):
        assert listen(tiny(folder, STEPS), folder, is_terminal=False).code == 0
    for name in ("loss.csv", "sinks.csv"):
        assert (stopped / "run" / name).read_text() == (whole / "run" / name).read_text()
    models = [jax.tree.leaves(jaxsink.load(folder / "run" / "model")) for folder in (stopped, whole)]
    for one, other in zip(*models, strict=True):
        np.testing.assert_array_equal(one, other)
