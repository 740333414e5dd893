"""Eight simulated CPU devices for every test, and the golden outputs of the PyTorch models."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from support import compilation, shape_checks
from support.golden import Golden, golden

shape_checks.install()  # before jaxsink is imported
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_platforms", "cpu")
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore Ctrl-C …
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # … and what nohup starts the end of a terminal


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Any:
    """A process that keeps the programs of a thousand tests runs out of memory mappings, and the compiler crashes."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="module")
def quick_compilation() -> Iterator[None]:
    """For modules that compare nothing to the last bit with what users get."""
    with compilation.quick():
        yield


@pytest.fixture
def llada() -> Golden:
    return golden("llada_tiny")


@pytest.fixture
def dream() -> Golden:
    return golden("dream_tiny")


@pytest.fixture
def llama() -> Golden:
    return golden("llama_tiny")
