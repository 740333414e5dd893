"""Broken shards, indexes and PyTorch files, hostile ones among them; see test_broken_checkpoints.py."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import config_of, save_torch, write
from support.damage import FILE, NORM, Break, check

SHARDS: dict[str, Break] = {}
TORCH: dict[str, Break] = {}


def kind(function: Break) -> Break:
    (TORCH if function.__name__.startswith("torch") else SHARDS)[function.__name__.replace("_", " ")] = function
    return function


def reshard(source: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Three shards in place of the single file, and an edited index."""
    values = load_file(source / FILE)
    (source / FILE).unlink()
    write(source, config_of("llama"), values, shards=3)
    index = source / f"{FILE}.index.json"
    listed = json.loads(index.read_text())
    edit(listed["weight_map"])
    index.write_text(json.dumps(listed))


def as_torch(source: Path) -> Path:
    values = load_file(source / FILE)
    (source / FILE).unlink()
    save_torch(values, source / "pytorch_model.bin")
    return source / "pytorch_model.bin"


# ---- shards and their index


@kind
def missing_shard(source: Path) -> tuple[str, ...]:
    reshard(source, lambda places: None)
    (source / "model-00002-of-00003.safetensors").unlink()
    return ("model-00002-of-00003.safetensors is missing",)


@kind
def tensor_not_in_the_index(source: Path) -> tuple[str, ...]:
    reshard(source, lambda places: places.pop(NORM))
    return (NORM, "index")


@kind
def index_names_a_tensor_that_is_nowhere(source: Path) -> tuple[str, ...]:
    reshard(source, lambda places: places.update(extra="model-00001-of-00003.safetensors"))
    return ("'extra'", "model-00001-of-00003.safetensors", "index")


@kind
def index_names_a_file_that_cannot_be(source: Path) -> tuple[str, ...]:
    reshard(source, lambda places: places.update({NORM: "x" * 5000}))
    return ("which is not a file of this directory", NORM)


@kind
def index_names_the_wrong_shard(source: Path) -> tuple[str, ...]:
    def edit(places: dict[str, str]) -> None:
        places[NORM] = next(file for file in places.values() if file != places[NORM])

    reshard(source, edit)
    return (NORM, "index")


@kind
def tensor_in_two_shards(source: Path) -> tuple[str, ...]:
    reshard(source, lambda places: None)
    for number in (1, 2, 3):
        file = source / f"model-0000{number}-of-00003.safetensors"
        save_file(load_file(file) | {NORM: np.ones(24, np.float32)}, file)
    return (NORM, "model-00001-of-00003", "again in", "model-00002-of-00003")


@kind
def index_leads_out_of_the_folder(source: Path) -> tuple[str, ...]:
    reshard(source, lambda places: places.update({NORM: "../../etc/passwd"}))
    return (NORM, "../../etc/passwd")


@kind
def index_is_not_json(source: Path) -> tuple[str, ...]:
    reshard(source, lambda places: None)
    (source / f"{FILE}.index.json").write_text('{"weight_map": {')
    return (f"{FILE}.index.json", "not valid JSON")


@kind
def index_without_a_map(source: Path) -> tuple[str, ...]:
    reshard(source, lambda places: places.clear())
    return (f"{FILE}.index.json", "weight_map")


@kind
def index_with_numbers_for_files(source: Path) -> tuple[str, ...]:
    reshard(source, lambda places: places.update({NORM: 3}))
    return (f"{FILE}.index.json", NORM)


@kind
def whole_file_and_index_at_once(source: Path) -> tuple[str, ...]:
    content = (source / FILE).read_bytes()
    reshard(source, lambda places: None)
    (source / FILE).write_bytes(content)
    return (FILE, "index.json", "out of date")


# ---- PyTorch files


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@kind
def torch_pickle_bomb(source: Path) -> tuple[str, ...]:
    import torch

    torch.save({NORM: Bomb(f"touch {source.parent}/exploded")}, as_torch(source))
    return ("pytorch_model.bin", "would call posix.system", "was not loaded")


@kind
def torch_plain_pickle_bomb(source: Path) -> tuple[str, ...]:
    file = as_torch(source)
    file.write_bytes(pickle.dumps({NORM: Bomb(f"touch {source.parent}/exploded")}, protocol=2))
    return ("pytorch_model.bin",)


@kind
def torch_random_bytes(source: Path) -> tuple[str, ...]:
    as_torch(source).write_bytes(np.random.default_rng(0).bytes(5000))
    return ("pytorch_model.bin", "damaged")


@kind
def torch_truncated(source: Path) -> tuple[str, ...]:
    file = as_torch(source)
    os.truncate(file, file.stat().st_size // 2)
    return ("pytorch_model.bin", "damaged")


@kind
def torch_without_tensors(source: Path) -> tuple[str, ...]:
    import torch

    torch.save({NORM: [1.0, 2.0]}, as_torch(source))
    return ("pytorch_model.bin", "plain tensors")


@kind
def torch_training_state(source: Path) -> tuple[str, ...]:
    import torch

    file = as_torch(source)
    torch.save({"state_dict": torch.load(file, weights_only=True), "step": 3}, file)
    return ("pytorch_model.bin", "plain tensors")


@kind
def torch_sparse(source: Path) -> tuple[str, ...]:
    import torch

    torch.save({NORM: torch.eye(3).to_sparse()}, as_torch(source))
    return ("pytorch_model.bin", "plain tensors")


@pytest.mark.parametrize("name", SHARDS)
def test_broken_shards(name: str, tmp_path: Path, capsys: Any) -> None:
    check(SHARDS[name], tmp_path, capsys)


@pytest.mark.parametrize("name", TORCH)
def test_broken_torch_files(name: str, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("torch")
    check(TORCH[name], tmp_path, capsys)  # which finds what a bomb would leave
