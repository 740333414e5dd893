"""Where compiled programs are kept, and the clock of compiling."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import jax

from jaxsink.runs.caches import cache_directory
from jaxsink.runs.compile_cache import VARIABLE, CompileClock, enable_compilation_cache


def test_the_cache_is_where_users_expect_it(monkeypatch, tmp_path):
    monkeypatch.delenv("JAXSINK_COMPILE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory("xla", VARIABLE) == tmp_path / "jaxsink" / "xla"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory("xla", VARIABLE) == tmp_path / ".cache" / "jaxsink" / "xla"
    monkeypatch.setenv("JAXSINK_COMPILE_CACHE", str(tmp_path / "mine"))
    assert cache_directory("xla", VARIABLE) == tmp_path / "mine"
    for off in ("off", "0", ""):
        monkeypatch.setenv("JAXSINK_COMPILE_CACHE", off)
        assert cache_directory("xla", VARIABLE) is None


def test_the_cache_is_switched_on_and_off_and_never_fatal(monkeypatch, tmp_path):
    updates = {}
    fake = SimpleNamespace(jax_compilation_cache_dir=None, update=updates.__setitem__)
    monkeypatch.setattr(jax, "config", fake)
    place = tmp_path / "a" / "b"
    monkeypatch.setenv("JAXSINK_COMPILE_CACHE", str(place))
    assert enable_compilation_cache() == place and place.is_dir()
    assert updates == {"jax_compilation_cache_dir": str(place), "jax_persistent_cache_min_compile_time_secs": 0.5}
    updates.clear()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXSINK_COMPILE_CACHE", str(tmp_path / "file" / "x"))
    assert enable_compilation_cache() is None and updates == {}
    assert enable_compilation_cache(False) is None and updates == {"jax_compilation_cache_dir": None}
    fake.jax_compilation_cache_dir = "/own"
    assert enable_compilation_cache() == Path("/own")


def test_the_compile_clock_counts_overlapping_spans_once():
    now = 0.0
    clock = CompileClock(lambda: now)
    with clock:
        for now, event, seconds in (  # noqa: B007 - the clock reads it
            (2.0, "/jax/core/compile/jaxpr_trace_duration", 1.0),  # inside the next
            (3.0, "/jax/core/compile/jaxpr_trace_duration", 2.5),
            (6.0, "/jax/core/compile/backend_compile_duration", 2.0),
            (6.0, "/jax/compilation_cache/compile_time_saved_sec", 50.0),
        ):
            jax.monitoring.record_event_duration_secs(event, seconds)
        assert clock.compiling == 4.5
        now = 10.0
        assert clock.running == 5.5
    jax.monitoring.record_event_duration_secs("/jax/core/compile/backend_compile_duration", 1.0)
    assert clock.compiling == 4.5
