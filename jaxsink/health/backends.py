"""Every attention backend against float64, in seconds: outputs, and what keys receive."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import jax
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.health.reference import Layer, make_layer
from jaxsink.nn.attention import BACKENDS, Backend
from jaxsink.nn.backends import Unreduced
from jaxsink.nn.batch import KINDS
from jaxsink.nn.kernels.arrays import arrays_of
from jaxsink.nn.kernels.backend import kinds_wanted
from jaxsink.nn.kernels.gpu import on_gpu_device
from jaxsink.nn.recorder import Recorder, look
from jaxsink.nn.sharding import has_tensor_cores, on_tpu
from jaxsink.nn.taps import ReceivedTap, Tap
from jaxsink.recording.attention import received_by_query

LENGTHS = {"cpu": (72,), "tpu": (72, 600), "gpu": (72, 600)}
TOLERANCES = {"float32": (1e-5, 1e-5), "bfloat16": (2e-2, 1e-3)}  # outputs and sums, of the largest


@dataclass(frozen=True)
class Check:
    """outputs, sums: the largest error, relative to the largest number; None where nothing came of it. why: it failed."""

    backend: str
    dtype: str
    length: int
    outputs: float | None = None
    sums: float | None = None
    why: str | None = None
    ran: bool = True

    @property
    def passed(self) -> bool:
        return self.ran and self.why is None

    @property
    def verdict(self) -> str:
        if not self.ran:
            return "not run: time was over"
        return "right" if self.why is None else f"WRONG: {self.why}"

    def to_dict(self) -> JsonObject:
        return {**asdict(self), "passed": self.passed}


def check_backends(budget: float) -> Iterator[Check]:
    """As they are done; the first of every backend is always run, others are begun while `budget` seconds last."""
    begun, first, backends = time.perf_counter(), True, backends_here()
    for length in LENGTHS.get(jax.default_backend(), (72,)):
        for dtype in TOLERANCES:
            layer = make_layer(dtype, length)
            for backend in backends:
                if first or time.perf_counter() - begun <= budget:
                    yield check_backend(backend, dtype, layer)
                else:
                    yield Check(backend, dtype, length, ran=False)
            first = False


def backends_here() -> dict[str, Backend]:
    """All of them; "pallas" interprets the TPU's kernel where there is no accelerator, and the GPU's stands beside it."""
    accelerated = on_tpu(None) or has_tensor_cores(None)
    return {**BACKENDS} if accelerated else {**BACKENDS, **INTERPRETED}


def on_gpu_kernel(tap: Tap, recorders: tuple[Recorder, ...]) -> tuple[Float[Array, "B Q H D"], Unreduced]:
    """The GPU's kernel, interpreted; recorders are of what keys receive."""
    out, columns = on_gpu_device(arrays_of(tap), kinds_wanted(recorders), interpret=True)
    assert columns is not None  # recorders ask for them
    return out, tuple(look(recorder, ReceivedTap(tap.context, columns)) for recorder in recorders)


INTERPRETED: dict[str, Backend] = {"pallas-gpu": on_gpu_kernel}


def check_backend(backend: str, dtype: str, layer: Layer) -> Check:
    length = layer.tap.q.shape[1]
    try:
        attend = backends_here()[backend]
        outputs, (sums,) = jax.jit(lambda tap: attend(tap, (received_by_query(),)))(layer.tap)
        outputs, sums = np.asarray(outputs, np.float64), np.stack([np.asarray(sums[kind]) for kind in KINDS], axis=2)
    except Exception as error:  # whatever a device or its compiler says: it belongs into the report
        line = (str(error).strip().splitlines() or [""])[0][:200]
        return Check(backend, dtype, length, why=f"{type(error).__name__}: {line}")
    real = np.asarray(layer.tap.query_mask)
    errors = (worst(outputs[real], layer.outputs[real]), worst(sums, layer.received))
    right = all(error <= most for error, most in zip(errors, TOLERANCES[dtype], strict=True))
    return Check(backend, dtype, length, *errors, why=None if right else "too far from float64")


def worst(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest number; inf where something is not finite."""
    difference = float(np.abs(found - expected).max() / np.abs(expected).max())
    return difference if np.isfinite(difference) else float("inf")


def kernel_in_use() -> str:
    """What "pallas" is on this device."""
    if has_tensor_cores(None):
        return "the GPU kernel"
    return "the TPU kernel" if on_tpu(None) else "the TPU kernel, interpreted"
