"""Which optional parts are installed, without importing them: asked before JAX starts."""

from __future__ import annotations

from importlib.util import find_spec

PACKAGES = {  # any of them
    "tpu": ("libtpu",),
    "cuda": ("jax_cuda13_plugin", "jax_cuda12_plugin"),
    "convert": ("torch",),
    "eval": ("lm_eval",),
    "pandas": ("pandas",),
    "tensorboard": ("tensorboardX",),
}


def is_installed(extra: str) -> bool:
    return any(find_spec(package) is not None for package in PACKAGES[extra])
