"""Models by their hub id: fetched and converted once per commit, by one process at a time; and without any network."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import jax
import numpy as np
import pytest
from support.paths import GOLDEN

import jaxsink
from jaxsink import JaxsinkError, ModelConfig, Tokenizer
from jaxsink.checkpoints import hub
from jaxsink.cli.main import main

pytestmark = pytest.mark.usefixtures("quick_compilation")

ID = "Dream-org/Dream-v0-Instruct-7B"


class Stand:
    """A stand-in for the hub: a golden model at some commit, and a count of what is downloaded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.commit, self.online = folder, "c0ffee" * 6, True
        self.downloads: list[list[str]] = []

    def model_info(self, repository: str, revision: str | None = None, timeout: float | None = None) -> Any:
        if not self.online:
            raise ConnectionError("name resolution failed")
        assert repository == ID and revision in (None, self.commit) and timeout
        return SimpleNamespace(sha=self.commit, siblings=[SimpleNamespace(rfilename="model.safetensors")])

    def snapshot_download(self, repository: str, revision: str, allow_patterns: list[str]) -> str:
        self.downloads.append(allow_patterns)
        if "model*.safetensors" in allow_patterns:
            return str(self.folder)
        only = self.folder.with_name("settings")
        shutil.copytree(self.folder, only, ignore=shutil.ignore_patterns("*.safetensors", "*.npz"), dirs_exist_ok=True)
        return str(only)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    found = Stand(tmp_path / "snapshot")
    shutil.copytree(GOLDEN / "dream_tiny", found.folder)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: found)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", found.snapshot_download)
    monkeypatch.setenv("JAXSINK_CHECKPOINTS", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    hub._commit.cache_clear()
    return found


def test_a_model_is_converted_once(stand: Stand, tmp_path: Path) -> None:
    model = jaxsink.load(ID)
    place = tmp_path / "kept" / "Dream-org--Dream-v0-Instruct-7B-c0ffeec0ffee"
    assert model.origin.place == str(place)
    source = json.loads((place / "jaxsink.json").read_text())["source"]
    assert (source["path"], source["revision"]) == (ID, stand.commit)
    direct = jaxsink.load(GOLDEN / "dream_tiny")
    for ours, theirs in zip(jax.tree.leaves(model), jax.tree.leaves(direct), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert jaxsink.sampler_for(model).temperature == 0.1  # as published for this name
    jaxsink.load(ID)
    assert len(stand.downloads) == 1


def test_a_new_commit_is_fetched_and_the_newest_copy_serves_offline(stand: Stand) -> None:
    first = jaxsink.load(ID).origin.place
    stand.commit = "decade" * 6
    hub._commit.cache_clear()
    second = jaxsink.load(ID).origin.place
    assert first != second and len(stand.downloads) == 2
    stand.online = False
    hub._commit.cache_clear()
    assert jaxsink.load(ID).origin.place == second


def test_without_network_it_is_one_sentence(stand: Stand, tmp_path: Path, capsys: Any) -> None:
    stand.online = False
    for command in (["generate", ID, "Hello"], ["inspect", ID]):
        assert main(command) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and "cannot be fetched from the hub (name resolution failed)" in err
    assert not (tmp_path / "kept").exists()


def test_tokenizer_and_settings_need_no_weights(stand: Stand, tmp_path: Path, capsys: Any) -> None:
    shutil.copy(Path(jaxsink.load("mini-dream").origin.place or "") / "tokenizer.json", stand.folder)
    assert Tokenizer.load(ID).decode(Tokenizer.load(ID).encode(" apples")) == " apples"
    assert main(["inspect", ID, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["dtype"] is None and facts["source"]["path"] == ID
    assert ModelConfig.from_dict(facts["config"]) == jaxsink.load(GOLDEN / "dream_tiny").config
    assert jaxsink.sampler_for(ID).temperature == 0.1
    assert not any("model*.safetensors" in patterns for patterns in stand.downloads)
    assert not (tmp_path / "kept").exists()


def test_the_command_line_takes_hub_ids(stand: Stand, capsys: Any) -> None:
    assert main(["generate", ID, "--ids", "5,17", "--tokens", "4", "--json", "--no-compile-cache"]) == 0
    assert len(json.loads(capsys.readouterr().out)["ids"]) == 4


def test_two_at_once_convert_once(stand: Stand) -> None:
    places: list[Path] = []
    threads = [threading.Thread(target=lambda: places.append(hub.fetch(ID))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(places)) == 1 and len(places) == 3 and len(stand.downloads) == 1


def test_a_process_waits_for_another_one(stand: Stand, tmp_path: Path) -> None:
    """While another process holds the lock nothing is converted; when it is killed, the lock is gone."""
    lock = tmp_path / "kept" / ".Dream-org--Dream-v0-Instruct-7B-c0ffeec0ffee.lock"
    lock.parent.mkdir()
    holds = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
    other = subprocess.Popen([sys.executable, "-c", holds, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdin is not None
    other.stdout.readline()
    waiting = threading.Thread(target=hub.fetch, args=(ID,))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive() and stand.downloads == []
    other.kill()
    waiting.join()
    assert len(stand.downloads) == 1
    other.wait()
    other.stdin.close()
    other.stdout.close()


def test_a_failed_conversion_leaves_no_copy(stand: Stand, tmp_path: Path) -> None:
    (stand.folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(JaxsinkError, match=r"model\.safetensors is empty"):
        jaxsink.load(ID)
    assert [path.name for path in (tmp_path / "kept").iterdir() if not path.name.endswith(".lock")] == []


def test_a_place_that_cannot_be_written(stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("JAXSINK_CHECKPOINTS", str(tmp_path / "file" / "kept"))
    with pytest.raises(JaxsinkError, match="set JAXSINK_CHECKPOINTS to another"):
        jaxsink.load(ID)


def test_what_a_hub_id_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "x").mkdir(parents=True)
    assert hub.is_hub_id(ID) and hub.is_hub_id("runs/y")
    assert not any(map(hub.is_hub_id, ("runs/x", "./a/b", "a/b/c", "mini-llada", "/a/b", "~/a")))
