"""Shapes in signatures are checked in the tests, and nowhere else."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from jaxtyping import TypeCheckError
from support.shape_checks import CHECKED, no_shape_checks

from jaxsink import sinks


def test_a_wrong_shape_is_caught() -> None:
    position, block = np.zeros((3, 2, 4, 5), np.int32), np.zeros((3, 4), np.int32)
    sinks.drift_per_block(position, block)
    with pytest.raises(TypeCheckError, match="block"):
        sinks.drift_per_block(position, block.T)
    with pytest.raises(TypeCheckError, match="committed_at"):
        sinks.fresh(block.astype(np.float32), np.arange(3))
    with no_shape_checks(), pytest.raises((TypeError, ValueError)):  # found later, and said less clearly
        sinks.drift_per_block(position, block.T)


def test_nothing_is_checked_outside_of_tests() -> None:
    names = ", ".join(f"'{name}'" for name in CHECKED)
    code = (
        f"import importlib, sys, jaxsink; [importlib.import_module(name) for name in ({names})];"
        "jaxsink.generate, jaxsink.forward, jaxsink.load;"
        "assert 'beartype' not in sys.modules;"
        "assert not hasattr(jaxsink.sinks.track, '__wrapped__')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert hasattr(sinks.track, "__wrapped__")
