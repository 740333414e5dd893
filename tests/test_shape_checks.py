"""Shapes in signatures are checked in the tests, and nowhere else."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from jaxtyping import TypeCheckError
from support.shape_checks import CHECKED, no_shape_checks

from jaxsink import JaxsinkError, sinks
from jaxsink.sinks import rules, unmasking


def test_a_wrong_shape_is_caught() -> None:
    position, block = np.zeros((3, 2, 4, 5), np.int32), np.zeros((3, 4), np.int32)
    unmasking._drift_per_block(position, block, 1)
    with pytest.raises(TypeCheckError, match="block"):
        unmasking._drift_per_block(position, block.T, 1)
    with no_shape_checks(), pytest.raises((TypeError, ValueError)):  # found later, and said less clearly
        unmasking._drift_per_block(position, block.T, 1)


def test_at_the_public_door_it_is_a_sentence() -> None:
    position, block = np.zeros((3, 2, 4, 5), np.int32), np.zeros((3, 4), np.int32)
    with pytest.raises(JaxsinkError, match="block has 4 along its axis T, and position has 3"):
        sinks.drift_per_block(position, block.T)
    with pytest.raises(JaxsinkError, match=r"committed_at must be an array of whole numbers \[B,S\], not of float32"):
        sinks.fresh(block.astype(np.float32), np.arange(3))


def test_nothing_is_checked_outside_of_tests() -> None:
    names = ", ".join(f"'{name}'" for name in CHECKED)
    code = (
        f"import importlib, sys, jaxsink; [importlib.import_module(name) for name in ({names})];"
        "jaxsink.generate, jaxsink.forward, jaxsink.load;"
        "assert 'beartype' not in sys.modules;"
        "assert not hasattr(jaxsink.sinks.rules.largest, '__wrapped__')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert hasattr(rules.largest, "__wrapped__")
