"""Files of tuned lenses: what `jaxsink train --lens` writes, and `record.lens(tuned=…)` reads."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.nn.pass_end import TunedLens


def save_lens(lens: TunedLens, path: str | os.PathLike[str]) -> None:
    """As a safetensors file."""
    from safetensors.numpy import save_file  # few need it

    save_file({name: np.asarray(values, np.float32) for name, values in lens._asdict().items()}, path)


def load_lens(path: str | os.PathLike[str]) -> TunedLens:
    """What `save_lens` wrote. Recorders that read the same file share its arrays."""
    found = Path(path)
    if not found.is_file():
        raise JaxsinkError(f"{path} is not a file; give the lens.safetensors that `jaxsink train --lens` wrote.")
    now = found.stat()
    return _read(found.absolute(), now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=1)
def _read(path: Path, changed: int, size: int) -> TunedLens:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        found = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise JaxsinkError(f"{path} is not a readable safetensors file: {error}.") from error
    shapes = {name: values.shape for name, values in found.items()}
    if set(found) != set(TunedLens._fields) or shapes["change"] != (*shapes["bias"], shapes["bias"][-1]):
        raise JaxsinkError(f"{path} is no tuned lens: it holds {', '.join(found) or 'nothing'}.")
    return TunedLens(**{name: jnp.asarray(values) for name, values in found.items()})
