"""The golden outputs of the PyTorch models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from support.paths import GOLDEN

MODELS = sorted(path.parent.name for path in GOLDEN.glob("*/expected.npz"))


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


@cache
def load_golden(name: str) -> Any:
    import jaxsink

    return jaxsink.load(GOLDEN / name)


@cache
def golden(name: str) -> Golden:
    folder = GOLDEN / name
    with np.load(folder / "expected.npz") as arrays:
        return Golden(name, folder, dict(arrays), json.loads((folder / "meta.json").read_text()))
