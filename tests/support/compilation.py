"""Programs that compile four times as fast and run slower, for tests whose models are tiny.

XLA on a CPU then compiles without optimising, and writes loops by its plain emitters instead of through MLIR. The numbers of
such a program may differ from a user's in their last bits: tests of exactly those bits compile as users do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from jax._src import compiler

OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# The same for a process of its own.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": " ".join(f"--{name}={str(value).lower()}" for name, value in OPTIONS.items()),
}


@contextmanager
def quick() -> Iterator[None]:
    """What is compiled for a CPU inside gets `OPTIONS`; `jax.jit` takes them per function only, so JAX's own are wrapped."""
    original = compiler.get_compile_options

    def with_options(*args: Any, env_options_overrides: dict[str, Any] | None = None, **more: Any) -> Any:
        backend = more.get("backend")
        options = OPTIONS if backend is None or backend.platform == "cpu" else {}
        return original(*args, env_options_overrides={**options, **(env_options_overrides or {})}, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", with_options)
        yield
