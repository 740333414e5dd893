"""The golden outputs of the PyTorch models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from support.paths import GOLDEN

REFUSED = {"diffusion_gemma_tiny"}  # not a model that jaxsink runs, see tests/converters/test_diffusion_gemma.py
MASK_IDS = dict.fromkeys(("llada_moe_tiny", "llada2_moe_gen_tiny", "llada21_moe_tiny"), 500)  # their files name none
MODELS = sorted({path.parent.name for path in GOLDEN.glob("*/expected.npz")} - REFUSED)


@dataclass(frozen=True)
class Golden:
    """One tiny model and what the PyTorch code made of it."""

    name: str
    folder: Path
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]

    def case(self, case: str) -> dict[str, np.ndarray]:
        return {key.split(".", 1)[1]: value for key, value in self.arrays.items() if key.split(".")[0] == case}

    @property
    def model(self) -> Any:
        return load_golden(self.name)


def noisy_and_clean(length: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """(positions [S], visible [S,S]) of BD3LM's training input, a noisy copy of `length` tokens and then a clean one.

    A noisy token sees its own noisy block and the clean blocks before it; a clean one clean blocks up to its own.
    """
    positions = np.tile(np.arange(length), 2)
    visible = np.zeros((2 * length, 2 * length), bool)
    for query in range(2 * length):
        for key in range(2 * length):
            before = positions[key] // block - positions[query] // block
            if query < length:
                visible[query, key] = before == 0 if key < length else before < 0
            else:
                visible[query, key] = key >= length and before <= 0
    return positions, visible


@cache
def load_golden(name: str) -> Any:
    import jaxsink

    return jaxsink.load(GOLDEN / name, mask_id=MASK_IDS.get(name, golden(name).meta.get("mask_token_id")))


@cache
def golden(name: str) -> Golden:
    folder = GOLDEN / name
    with np.load(folder / "expected.npz") as arrays:
        return Golden(name, folder, dict(arrays), json.loads((folder / "meta.json").read_text()))
