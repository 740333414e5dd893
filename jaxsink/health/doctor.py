"""`jaxsink.doctor`: what this machine is, and whether every attention backend computes on it what it should.

found = jaxsink.doctor()
found.passed, found.line                                # the line is for an issue
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.extras import PACKAGES, is_installed
from jaxsink.health.backends import Check, check_backends, kernel_in_use
from jaxsink.nn.attention import choose_backend
from jaxsink.version import __version__

SECONDS = 30.0
LIBRARIES = (
    *("jax", "jaxlib", "flax", "numpy", "libtpu", "jax-cuda13-plugin", "jax-cuda12-plugin", "nvidia-cudnn-cu13"),
    *("nvidia-cudnn-cu12", "nvidia-cuda-nvcc"),
)
LONG = 4096


@dataclass(frozen=True)
class Device:
    """memory: bytes that programs may use, where the device says so."""

    kind: str
    platform: str
    capability: str | None
    memory: int | None

    def __str__(self) -> str:
        facts = [] if self.capability is None else [f"sm_{self.capability.replace('.', '')}"]
        facts += [] if self.memory is None else [f"{self.memory / (1 << 30):.1f} GiB"]
        return f"{self.kind} ({', '.join(facts)})" if facts else self.kind


@dataclass(frozen=True)
class Health:
    """What was found; notes are sentences about what keeps an accelerator from being used.

    Examples:
        >>> found = jaxsink.doctor(seconds=0)
        >>> found.versions["jaxsink"] == jaxsink.__version__
        True
        >>> found.passed, found.to_dict()["passed"]
        (True, True)
        >>> found.line.startswith("jaxsink doctor: all right | ")
        True
    """

    versions: dict[str, str]
    system: str
    devices: tuple[Device, ...]
    extras: tuple[str, ...]
    kernel: str
    chosen: str  # backend for long sequences
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks if check.ran)

    @property
    def line(self) -> str:
        """Everything that a maintainer asks first, in one line."""
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        kinds = [str(device) for device in self.devices]
        devices = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
        checks = ", ".join(in_short(check) for check in self.checks if check.ran)
        verdict = "all right" if self.passed else "NOT RIGHT"
        extras = "+".join(self.extras) or "none"
        pallas = f"pallas is {self.kernel}, chosen {self.chosen}"
        parts = (versions, self.system, devices, f"extras {extras}", pallas, checks, f"{self.seconds:.0f} s")
        return " | ".join((f"jaxsink doctor: {verdict}", *parts))

    def to_dict(self) -> JsonObject:
        return {
            "passed": self.passed,
            "versions": self.versions,
            "system": self.system,
            "devices": [dict(vars(device)) for device in self.devices],
            "extras": list(self.extras),
            "pallas": self.kernel,
            "backend_of_long_sequences": self.chosen,
            "checks": [check.to_dict() for check in self.checks],
            "notes": list(self.notes),
            "seconds": self.seconds,
            "line": self.line,
        }


def in_short(check: Check) -> str:
    errors = "-" if check.outputs is None else f"{check.outputs:.0e}/{check.sums:.0e}"
    failed = "" if check.passed else f" FAILED ({check.why})"
    return f"{check.backend} {check.dtype} {check.length}: {errors}{failed}"


@checked(seconds=at_least(0))
def doctor(seconds: float = SECONDS, say: Callable[[str], None] = lambda text: None) -> Health:
    """This machine's devices and versions, and every attention backend against float64 NumPy.

    Args:
        seconds: after which no further check is begun, beside one of every backend
        say: is told what is being done

    Examples:
        >>> found = jaxsink.doctor(seconds=0)
        >>> len(found.devices) == len(jax.devices()), len(found.checks) > 0
        (True, True)
    """
    begun = time.perf_counter()
    devices = find_devices()
    checks = []
    for check in check_backends(seconds):
        checks.append(check)
        say(f"{check.backend}, {check.dtype}, {check.length} tokens: {check.verdict}")
    return Health(
        versions={"jaxsink": __version__, "python": platform.python_version(), **find_versions()},
        system=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        devices=devices,
        extras=tuple(extra for extra in PACKAGES if is_installed(extra)),
        kernel=kernel_in_use(),
        chosen=choose_backend(None, LONG, LONG),
        checks=tuple(checks),
        notes=tuple(notes_on(devices)),
        seconds=time.perf_counter() - begun,
    )


def find_devices() -> tuple[Device, ...]:
    try:
        found = jax.local_devices()
    except RuntimeError as error:
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise JaxsinkError(f"JAX finds no device to run on ({reason}); JAX_PLATFORMS=cpu takes the CPU.") from error
    return tuple(Device(d.device_kind, d.platform, getattr(d, "compute_capability", None), memory_of(d)) for d in found)


def memory_of(device: Any) -> int | None:
    return (device.memory_stats() or {}).get("bytes_limit")


def find_versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def notes_on(devices: tuple[Device, ...]) -> list[str]:
    """Why an accelerator may be idle."""
    kinds = {device.platform for device in devices}
    used = " and ".join(sorted(kinds))
    notes = [
        f"the extra `{extra}` is installed, and JAX runs on {used}: there is no {name}, or JAX cannot use it "
        f"(JAX_PLATFORMS={asked} shows why)."
        for extra, name, wanted, asked in (("tpu", "TPU", "tpu", "tpu"), ("cuda", "GPU", "gpu", "cuda"))
        if is_installed(extra) and wanted not in kinds
    ]
    old = [d for d in devices if d.platform == "gpu" and choose_backend(None, LONG, LONG) != "pallas"]
    if old:
        notes.append(f"{old[0]}: the GPU kernel needs compute capability 8.0 or more; long sequences run on 'blocked'.")
    return notes
