"""What an evaluation is of, written before anything is asked: results of two different ones never share a folder."""

from __future__ import annotations

import hashlib
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import Conditions
from jaxsink.evals.results import write_json
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.quantization import weights_dtype
from jaxsink.nn.transformer import Model
from jaxsink.tasks.exam import Exam
from jaxsink.version import __version__

LIBRARIES = ("jax", "jaxlib", "flax", "numpy", "tokenizers")
FILE = "manifest.json"
DECIDES = {  # what must be the same for a run to go on; the rest of a manifest is for the reader
    "exam": "setting",
    "model": "model",
    "conditions": "conditions",
    "eps": "ε for sinks",
    "seed": "seed",
}


def manifest(model: Model, exam: Exam, conditions: Conditions, eps: float | None, seed: int) -> dict[str, Any]:
    """Plain data, equal for equal evaluations on any number of devices."""
    leaves = jax.tree.leaves(model)
    return {
        "exam": {"name": exam.name, **exam.facts, "questions": len(exam.questions), "prompts_sha256": exam.digest},
        "model": {
            "fingerprint": fingerprint(model),
            "dtype": weights_dtype(model),
            "family": model.config.family,
            "parameters": sum(leaf.size for leaf in leaves),
        },
        "conditions": {label: repr(policy) for label, policy in conditions.items()},
        "eps": eps,
        "seed": seed,
        "reported": exam.reported,
        "jaxsink": __version__,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}},
        "device": str(jax.devices()[0].device_kind),
    }


def claim(folder: Path, wanted: dict[str, Any]) -> None:
    """Write the manifest into a new folder, or see that the folder's own is of the same evaluation."""
    if not (folder / FILE).is_file():
        write_json(folder / FILE, wanted)
    found, plain = read_manifest(folder), json.loads(json.dumps(wanted))
    for key, name in DECIDES.items():
        if found[key] != plain[key]:
            raise JaxsinkError(
                f"{folder} holds an evaluation with another {name}{_difference(found[key], plain[key])}; choose another "
                "--out, or repeat the command that began it."
            )


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not set(DECIDES) <= set(found):
            raise ValueError("parts are missing")
    except FileNotFoundError as error:
        raise JaxsinkError(f"{folder} holds no evaluation; begin one there first.") from error
    except (OSError, ValueError) as error:
        raise JaxsinkError(f"{path} is not the manifest of an evaluation ({error}); choose another --out.") from error
    return found


def _difference(found: Any, wanted: Any) -> str:
    """Where two parts of manifests differ, in a few words."""
    if not (isinstance(found, dict) and isinstance(wanted, dict)):
        return f" ({found}, not {wanted})"
    for key in (*wanted, *found):
        mine, theirs = wanted.get(key), found.get(key)
        if mine != theirs:
            short = max(len(str(mine)), len(str(theirs))) <= 40
            return f" ({key} {theirs}, not {mine})" if short else f" ({key} differs)"
    return ""


def fingerprint(model: Model) -> str:
    """A hash of configuration and weights. Integer sums represent the weights, so a large model stays on its
    devices, and however it is cut over them the hash is the same."""
    digest = hashlib.sha256(repr(model.config).encode())
    for name, leaf in named_leaves(model)[0]:
        digest.update(f"{name} {leaf.dtype} {leaf.shape} {int(_checksum(leaf))}".encode())
    return digest.hexdigest()


@jax.jit
def _checksum(x: Array) -> Array:
    """uint32[]: the sum of all elements' bits, each mixed with its index."""
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}")).astype(jnp.uint32)
    strides = np.cumprod([1, *x.shape[:0:-1]])[::-1]
    mixed = bits
    for axis, stride in enumerate(strides[: x.ndim]):
        index = lax.broadcasted_iota(jnp.uint32, x.shape, axis)
        mixed = mixed + index * jnp.uint32(int(stride) * 0x9E3779B1 % 2**32)
    mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
    return (mixed ^ (mixed >> 16)).sum(dtype=jnp.uint32)
