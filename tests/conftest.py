"""Eight simulated CPU devices for every test, and the golden outputs of the PyTorch models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support import shape_checks

shape_checks.install()  # before jaxsink is imported
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_platforms", "cpu")

GOLDEN = Path(__file__).parent / "golden"
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


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Any:
    """A process that keeps the programs of a thousand tests runs out of memory mappings, and the compiler crashes."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def quick_compilation() -> Any:
    """For modules with many tiny programs: compile them without most optimisations."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def llada() -> Golden:
    return golden("llada_tiny")


@pytest.fixture
def dream() -> Golden:
    return golden("dream_tiny")


@pytest.fixture
def llama() -> Golden:
    return golden("llama_tiny")
