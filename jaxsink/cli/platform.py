"""Which kind of device a command runs on, where the extra `tpu` or `cuda` is installed for `plan` only.

JAX would ask libtpu or CUDA, which print their own errors before JAX takes the CPU. Only the command line decides this,
before JAX is imported; the library never touches the environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jaxsink.extras import is_installed

DEVICES = ("accel*", "vfio/[0-9]*", "nvidia[0-9]*", "nvidiactl", "dxg", "kfd")  # in /dev: TPUs and GPUs
GOOGLE = "0x1ae0"
SET_BY_JAX = {"TPU_SKIP_MDS_QUERY", "TPU_LIBRARY_PATH"}  # TPU or not; a notebook hands them on to us
NO_TPU = ("0x001f", "0x0042")  # Google's disks and network cards


def use_cpu_if_alone() -> None:
    """Set JAX_PLATFORMS=cpu where nothing else can run; what the user has set stays."""
    named = [name for name in os.environ if name.startswith(("JAX_PLATFORM", "JAX_FORCE_TPU", "TPU_"))]
    decided = "jax" in sys.modules or set(named) - SET_BY_JAX
    if not decided and (is_installed("tpu") or is_installed("cuda")) and not has_accelerator():
        os.environ["JAX_PLATFORMS"] = "cpu"


def has_accelerator(root: Path = Path("/")) -> bool:
    """Any sign of a TPU or a GPU: a device file, or a PCI card of Google's that is neither disk nor network."""
    if any(next((root / "dev").glob(pattern), None) for pattern in DEVICES):
        return True
    cards = (root / "sys/bus/pci/devices").glob("*")
    return any(read(card / "vendor") == GOOGLE and read(card / "device") not in NO_TPU for card in cards)


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
