"""Broken weights: one sentence that names the file or the tensor, exit code 2, no traceback, nothing left behind.

Shards and PyTorch files are in test_broken_shards.py, settings in test_broken_settings.py, places (missing, unreadable,
full …) in test_broken_places.py, GGUF files in test_gguf.py.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import (
    assert_refused,
    config_of,
    random_model,
    run,
    tensors_of,
    tokenizer_files,
    write,
)
from support.damage import FILE, NORM, UP, Break, check

KINDS: dict[str, Break] = {}


def kind(function: Break) -> Break:
    KINDS[function.__name__.replace("_", " ")] = function
    return function


def settings(source: Path, **changes: Any) -> None:
    (source / "config.json").write_text(json.dumps(config_of("llama", **changes)))


def tensors(source: Path, edit: Callable[[dict[str, np.ndarray]], Any]) -> None:
    values = {name: value.copy() for name, value in load_file(source / FILE).items()}
    edit(values)
    save_file(values, source / FILE)


def header(source: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Rewrite the JSON header of the weights and leave the data alone."""
    content = (source / FILE).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    listed = json.loads(content[8 : 8 + length])
    edit(listed)
    text = json.dumps(listed).encode()
    (source / FILE).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


# ---- the weights file


@kind
def truncated(source: Path) -> tuple[str, ...]:
    os.truncate(source / FILE, (source / FILE).stat().st_size - 100)
    return (FILE, "not a whole safetensors file")


@kind
def cut_within_the_header(source: Path) -> tuple[str, ...]:
    os.truncate(source / FILE, 100)
    return (FILE, "not a whole safetensors file")


@kind
def zero_length(source: Path) -> tuple[str, ...]:
    (source / FILE).write_bytes(b"")
    return (FILE, "empty")


@kind
def random_bytes(source: Path) -> tuple[str, ...]:
    (source / FILE).write_bytes(np.random.default_rng(0).bytes(5000))
    return (FILE, "not a whole safetensors file")


@kind
def an_html_page(source: Path) -> tuple[str, ...]:
    (source / FILE).write_text("<!doctype html><title>404: this model needs you to log in</title>")
    return (FILE, "not a whole safetensors file")


@kind
def a_pointer_of_git_lfs(source: Path) -> tuple[str, ...]:
    (source / FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n")
    return (FILE, "not a whole safetensors file")


@kind
def header_length_lies(source: Path) -> tuple[str, ...]:
    content = (source / FILE).read_bytes()
    (source / FILE).write_bytes(struct.pack("<Q", 1 << 62) + content[8:])
    return (FILE, "not a whole safetensors file")


@kind
def header_is_not_json(source: Path) -> tuple[str, ...]:
    content = bytearray((source / FILE).read_bytes())
    content[8:12] = b"}{}{"
    (source / FILE).write_bytes(content)
    return (FILE, "not a whole safetensors file")


@kind
def offsets_overlap(source: Path) -> tuple[str, ...]:
    def edit(listed: dict[str, Any]) -> None:
        for entry in listed.values():
            if "data_offsets" in entry:
                entry["data_offsets"] = [0, entry["data_offsets"][1] - entry["data_offsets"][0]]

    header(source, edit)
    return (FILE, "not a whole safetensors file")


@kind
def offsets_beyond_the_file(source: Path) -> tuple[str, ...]:
    header(source, lambda listed: listed[NORM].update(data_offsets=[1 << 40, (1 << 40) + 96]))
    return (FILE, "not a whole safetensors file")


@kind
def shape_and_offsets_disagree(source: Path) -> tuple[str, ...]:
    header(source, lambda listed: listed[NORM].update(shape=[25]))
    return (FILE, "not a whole safetensors file")


# ---- the tensors


@kind
def extra_tensor(source: Path) -> tuple[str, ...]:
    tensors(source, lambda values: values.update({"model.layers.0.self_attn.sinks": np.zeros(4, np.float32)}))
    return ("model.layers.0.self_attn.sinks", "no parameter of a llama model")


@kind
def missing_tensor(source: Path) -> tuple[str, ...]:
    tensors(source, lambda values: values.pop(UP))
    return (UP, "missing")


@kind
def missing_layer(source: Path) -> tuple[str, ...]:
    def edit(values: dict[str, np.ndarray]) -> None:
        for name in [name for name in values if ".layers.1." in name]:
            del values[name]

    tensors(source, edit)
    return ("model.layers.1.", "missing", "and 8 more")


@kind
def one_layer_too_many(source: Path) -> tuple[str, ...]:
    settings(source, num_hidden_layers=1)
    return ("model.layers.1.", "no parameter of", "and 8 more")


@kind
def swapped_shapes(source: Path) -> tuple[str, ...]:
    def edit(values: dict[str, np.ndarray]) -> None:
        values[UP], values["lm_head.weight"] = values["lm_head.weight"], values[UP]

    tensors(source, edit)
    return ("lm_head.weight", "[36, 24]", "[50, 24]")


@kind
def transposed(source: Path) -> tuple[str, ...]:
    tensors(source, lambda values: values.update({UP: np.ascontiguousarray(values[UP].T)}))
    return (UP, "[24, 36]", "[36, 24]")


@kind
def one_axis_too_many(source: Path) -> tuple[str, ...]:
    tensors(source, lambda values: values.update({NORM: values[NORM][None]}))
    return (NORM, "[1, 24]", "[24]")


def retype(dtype: Any) -> Break:
    def change(source: Path) -> tuple[str, ...]:
        tensors(source, lambda values: values.update({UP: values[UP].astype(dtype)}))
        return (UP, "type", "bfloat16")

    return change


KINDS["whole numbers"] = retype(np.int32)
KINDS["eight bits"] = retype(np.int8)
KINDS["fp8"] = retype(ml_dtypes.float8_e4m3fn)
KINDS["float64"] = retype(np.float64)


def poison(number: float, dtype: Any = np.float32) -> Break:
    def change(source: Path) -> tuple[str, ...]:
        def edit(values: dict[str, np.ndarray]) -> None:
            for name in values:
                values[name] = values[name].astype(dtype)
            values[UP][-1, -1] = number

        tensors(source, edit)
        return (UP, "NaN or infinite")

    return change


KINDS["NaN"] = poison(np.nan)
KINDS["negative infinity"] = poison(-np.inf)
KINDS["NaN in bfloat16"] = poison(np.nan, ml_dtypes.bfloat16)
KINDS["infinity in float16"] = poison(np.inf, np.float16)


@kind
def tied_head_that_differs(source: Path) -> tuple[str, ...]:
    settings(source, tie_word_embeddings=True)
    return ("lm_head.weight", "differs from the embedding")


@pytest.mark.parametrize("name", KINDS)
def test_broken_weights(name: str, tmp_path: Path, capsys: Any) -> None:
    check(KINDS[name], tmp_path, capsys)


def test_broken_moe(tmp_path: Path, capsys: Any) -> None:
    """An expert is missing in the middle."""
    config = config_of("llada_moe")
    values = tensors_of(random_model(config))
    del values["model.layers.1.mlp.experts.1.up_proj.weight"]
    source = write(tmp_path / "source", config, values)
    tokenizer_files(source, mask=40)
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", "model.layers.1.mlp.experts.1.up_proj.weight", "missing")
