"""A run's directory: who may go on with it, and what is kept in it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxsink.errors import JaxsinkError
from jaxsink.runs import arrays
from jaxsink.runs.atomic import new_file, write_json
from jaxsink.runs.lines import encoded, read_lines
from jaxsink.runs.run import Run, read_manifest

IDENTITY = {"model": {"name": "mini", "size": 3}, "seed": 0}


def test_a_directory_holds_one_run(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with Run.open(out, "test", IDENTITY, {"note": "for the reader"}) as run, run.lines("results") as results:
        results.append([{"index": 1}, {"index": 2}])
    manifest = read_manifest(out, "test")
    assert manifest["seed"] == 0 and manifest["note"] == "for the reader" and "jax" in manifest["versions"]
    with Run.open(out, "test", IDENTITY, {"note": "other facts do not matter"}) as run, run.lines("results") as results:
        results.append([{"index": 3}])
    assert [line.value["index"] for line in read_lines(out, "results")] == [1, 2, 3]
    assert read_manifest(out, "test") == manifest
    for identity, said in (
        ({**IDENTITY, "seed": 1}, "seed is 0, not 1"),
        ({**IDENTITY, "model": {"name": "mini", "size": 4}}, "model size is 3, not 4"),
        ({**IDENTITY, "more": "x" * 50}, "more differs"),
    ):
        with pytest.raises(JaxsinkError, match=f"holds another test: {said}"), Run.open(out, "test", identity):
            pytest.fail("was opened")
    with pytest.raises(JaxsinkError, match=r"another kind \(test, not study\)"), Run.open(out, "study", IDENTITY):
        pytest.fail("was opened")


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(JaxsinkError, match=r"holds note\.txt and no manifest\.json"), Run.open(tmp_path, "test", {}):
        pytest.fail("was opened")
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]
    with pytest.raises(JaxsinkError, match="Not a directory"), Run.open(tmp_path / "note.txt" / "out", "test", {}):
        pytest.fail("was opened")
    for text in ("{", "[]", "{}", "7"):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(JaxsinkError, match="not the manifest of a run"), Run.open(tmp_path, "test", {}):
            pytest.fail("was opened")
    (tmp_path / "manifest.json").write_text(json.dumps({"kind": "test", "format": 1}))
    with pytest.raises(JaxsinkError, match="has format 1, where this jaxsink"), Run.open(tmp_path, "test", {}):
        pytest.fail("was opened")
    with pytest.raises(JaxsinkError, match="holds no test; begin one there first"):
        read_manifest(tmp_path / "nowhere", "test")


def test_one_process_writes_and_each_part_has_its_own(tmp_path: Path) -> None:
    with Run.open(tmp_path, "test", {}) as run, run.lines("results") as results:
        with (
            pytest.raises(JaxsinkError, match=f"process {os.getpid()} on .* is writing"),
            Run.open(tmp_path, "test", {}),
        ):
            pytest.fail("was opened twice")
        with Run.open(tmp_path, "test", {}, part=2) as other, other.lines("results") as others:
            others.append([{"index": 2}])
        results.append([{"index": 1}])
    assert [(line.value["index"], line.file.name) for line in read_lines(tmp_path, "results")] == [
        (1, "results-0001.jsonl"),
        (2, "results-0002.jsonl"),
    ]
    with Run.open(tmp_path, "test", {}):  # free again
        pass


def test_lines_hold_what_was_written(tmp_path: Path) -> None:
    values = [{"text": 'a "quoted", "crc32": "00000000"} line\n'}, {"ä": [1.5, None, {"x": "\u2028"}]}, {"n": 10**20}]
    with Run.open(tmp_path, "test", {}) as run, run.lines("results") as results:
        results.append(values)
    found = list(read_lines(tmp_path, "results"))
    assert [line.value for line in found] == values
    assert str(found[1]) == f"line 2 of {tmp_path / 'results-0001.jsonl'}"
    assert encoded(values[2]).decode().startswith('{"n": 100000000000000000000, "crc32": "')


def test_arrays_are_written_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "run" / "a.npz"
    assert arrays.keep(path, lambda: {"x": jnp.arange(3), "y": np.float32(2)})
    assert not arrays.keep(path, lambda: pytest.fail("computed twice"))
    np.testing.assert_array_equal(arrays.read(path)["x"], [0, 1, 2])

    def fails() -> dict[str, int]:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        arrays.keep(tmp_path / "run" / "b.npz", fails)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["a.npz"]
    with pytest.raises(JaxsinkError, match="not computed yet"):
        arrays.read(tmp_path / "run" / "b.npz")
    arrays.keep(tmp_path / "other.npz", lambda: {"y": np.float32(2), "x": np.arange(3, dtype=np.int32)})
    assert arrays.read(tmp_path / "other.npz").keys() == {"x", "y"}
    changed = {**dict(np.load(path)), "x": np.array([0, 1, 3])}
    np.savez_compressed(path, allow_pickle=False, **changed)
    with pytest.raises(JaxsinkError, match="was changed after it was written"):
        arrays.read(path)
    path.write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(JaxsinkError, match="is damaged"):
        arrays.read(path)


def test_files_of_dead_processes_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with new_file(path) as mine:
        mine.write_text("1")
        dead, living = (mine.with_name(mine.name.replace(str(os.getpid()), str(n))) for n in (2**22 + 1, os.getppid()))
        dead.write_text("")
        living.write_text("")
    write_json(path, {"ä": 1})
    assert path.read_text(encoding="utf-8") == '{\n  "ä": 1\n}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a.json", living.name])
