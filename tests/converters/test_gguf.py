"""GGUF files, written by the `gguf` package as llama.cpp's converter does: same weights as from safetensors."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from jaxsink_converters.gguf_file import read_gguf
from support.checkpoints import assert_refused, assert_same, config_of, converted, random_model, run, tensors_of, write
from support.damage import Edit, damage, edits

import jaxsink
from jaxsink.checkpoints.storage import MANIFEST
from jaxsink.errors import JaxsinkError
from jaxsink.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quick_compilation")

Quant = gguf.GGMLQuantizationType
LETTERS = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|endoftext|>", "<|im_start|>", *LETTERS, "he", "ll", "hell"]
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": len(TOKENS),
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 0,
}
SETTINGS = {
    "block_count": 2,
    "context_length": 64,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 500.0,
    "rope.dimension_count": 16,
    "vocab_size": len(TOKENS),
}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def native_name(name: str) -> str:
    """The name in GGUF files of a tensor with a Hugging Face name."""
    around = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in around:
        return around[name]
    _, _, layer, part = name.split(".", 3)
    stem, end = part.rsplit(".", 1)
    return f"blk.{layer}.{PARTS[stem]}.{end}"


def permuted(value: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's convert_hf_to_gguf.py stores q and k of Llama models."""
    return value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def write_gguf(
    path: Path,
    model: jaxsink.Model,
    quant: Quant = Quant.F32,
    extra: dict[str, np.ndarray] | None = None,
    tokenizer: bool = True,
    **changes: Any,
) -> jaxsink.Model:
    """Write the model, matrices in the given type, and return it as the file holds it (rounded)."""
    architecture = changes.pop("architecture", model.config.family)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in ({**SETTINGS, **changes}).items():
        name = key if "." in key and key.split(".")[0] in ("split", "general") else f"{architecture}.{key}"
        if value is ...:
            continue
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool}
        add[type(value)](name, value)
    if tokenizer:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(TOKENS)
        writer.add_token_types([3, 3, *[1] * (len(TOKENS) - 2)])
        writer.add_token_merges(["h e", "l l", "he ll"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(0)
        writer.add_chat_template("{{ messages }}")
    stored = {}
    for name, value in tensors_of(model).items():
        kind = Quant.F32 if value.ndim == 1 else quant
        rounded = gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind).reshape(value.shape)
        stored[name] = rounded.astype(np.float16) if kind == Quant.F16 else rounded
        if model.config.family == "llama" and ("q_proj" in name or "k_proj" in name):
            value = permuted(value, 4 if "q_proj" in name else 2)
        writer.add_tensor(native_name(name), gguf.quants.quantize(value, kind), raw_dtype=kind)
    for name, value in (extra or {}).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    folder = write(path.parent / "as_stored", config_for(model), {n: v.astype(np.float32) for n, v in stored.items()})
    return jaxsink.load(folder)


def config_for(model: jaxsink.Model) -> dict[str, Any]:
    config = config_of(model.config.family, **SIZES, tie_word_embeddings=model.config.tied)
    return {key: value for key, value in config.items() if key not in ("use_sliding_window",)}


def sample(family: str = "llama", **changes: Any) -> jaxsink.Model:
    return random_model(config_of(family, **SIZES | changes))


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_the_same_as_from_safetensors(family: str, tmp_path: Path, capsys: Any) -> None:
    model = sample(family)
    assert_same(write_gguf(tmp_path / "model.gguf", model), model)
    report = converted(capsys, tmp_path / "model.gguf", tmp_path / "out", "--verify")
    assert (report["family"], report["dtype"], report["tensors"]) == (family, "float32", len(tensors_of(model)))
    assert report["warnings"] == []
    loaded = jaxsink.load(tmp_path / "out")
    assert_same(loaded, model)
    assert_same(jaxsink.load(tmp_path / "model.gguf"), model)
    assert_same(jaxsink.load(tmp_path / "model.gguf", mesh=jaxsink.parallel.make_mesh(1, 8)), model)
    tokens = np.arange(20).reshape(2, 10)
    ours, theirs = (jaxsink.forward(m, tokens).logits for m in (loaded, jaxsink.load(tmp_path / "as_stored")))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("quant", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantised_files_hold_the_rounded_weights(quant: str, tmp_path: Path, capsys: Any) -> None:
    model = sample("llama", tie_word_embeddings=True)
    stored = write_gguf(tmp_path / "model.gguf", model, Quant[quant])
    converted(capsys, tmp_path / "model.gguf", tmp_path / "out")
    assert_same(jaxsink.load(tmp_path / "out"), stored)
    error = np.abs(np.asarray(stored.embedding[...]) - np.asarray(model.embedding[...])).max()
    assert 0 < error < (0.01 if quant in ("F16", "BF16", "Q8_0") else 0.2)


def test_our_reader_agrees_with_the_package(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", sample("qwen2"), Quant.Q8_0)
    fields, tensors = read_gguf(tmp_path / "model.gguf")
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    theirs = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert fields.keys() == theirs.keys()
    for key, value in theirs.items():
        assert fields[key] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), key
    assert [t.name for t in tensors] == [t.name for t in reader.tensors]
    for ours, other in zip(tensors, reader.tensors, strict=True):
        assert (ours.offset, ours.size, ours.type) == (other.data_offset, other.n_bytes, other.tensor_type)
        expected = gguf.quants.dequantize(other.data, other.tensor_type).reshape(ours.shape)
        np.testing.assert_array_equal(ours.read(tmp_path / "model.gguf"), expected)


def test_tokenizer_and_manifest(tmp_path: Path, capsys: Any) -> None:
    write_gguf(tmp_path / "model.gguf", sample())
    converted(capsys, tmp_path / "model.gguf", tmp_path / "out")
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert tokenizer.decode(tokenizer.encode("hello wörld")) == "hello wörld"
    assert tokenizer.token(tokenizer.encode("hello")[0]) == "hell"
    assert (tokenizer.special["eos"], tokenizer.size) == (0, len(TOKENS))
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["chat_template"] == "{{ messages }}"
    source = json.loads((tmp_path / "out" / MANIFEST).read_text())["source"]
    content = (tmp_path / "model.gguf").read_bytes()
    assert source["kind"] == "gguf"
    assert source["files"] == [
        {"name": "model.gguf", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    ]


def llama3_factors(factor: float, size: int, theta: float) -> np.ndarray:
    """rope_freqs.weight as convert_hf_to_gguf.py writes it for Llama 3.1 and 3.2."""
    factors = []
    for exponent in range(0, size, 2):
        wavelength = 2 * math.pi * theta ** (exponent / size)
        if wavelength < 8192 / 4.0:
            factors.append(1.0)
        elif wavelength > 8192 / 1.0:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_rope_factors_of_llama_3(factor: float, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    extra = {"rope_freqs.weight": llama3_factors(factor, 16, 500000.0)}
    write_gguf(path, sample(), extra=extra, **{"rope.freq_base": 500000.0})
    scaling = jaxsink.RopeScaling("llama3", factor, 8192, 1.0, 4.0)
    assert jaxsink.load(path).config == sample(rope_theta=500000.0).config.replace(rope_scaling=scaling)


@pytest.mark.parametrize("kind", ["none", "linear", "yarn"])
def test_rope_scaling_settings(kind: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"rope.scaling.type": kind, "rope.scaling.factor": 4.0}
    if kind == "yarn":
        changes |= {"rope.scaling.original_context_length": 16, "rope.scaling.finetuned": True}
    write_gguf(tmp_path / "model.gguf", sample("qwen2"), **changes)
    scaling = {"linear": jaxsink.RopeScaling("linear", 4.0), "yarn": jaxsink.RopeScaling("yarn", 4.0, 16)}.get(kind)
    assert jaxsink.load(tmp_path / "model.gguf").config.rope_scaling == scaling


# What the file is written with, and words of the sentence.
BROKEN: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "architecture": ({"architecture": "mamba"}, ("'mamba'", "llama, qwen2")),
    "whole numbers": ({"extra": {"blk.0.attn_q.scale": np.zeros(4, np.int32)}}, ("blk.0.attn_q.scale", "I32")),
    "extra tensor": ({"extra": {"blk.0.attn_sinks": np.zeros(4, np.float32)}}, ("blk.0.attn_sinks", "no parameter of")),
    "missing tensors": ({"block_count": 3}, ("'blk.2.", "missing", "and 8 more")),
    "one layer too many": ({"block_count": 1}, ("'blk.1.", "no parameter of", "and 8 more")),
    "no layers": ({"block_count": 0}, ("num_hidden_layers",)),
    "huge number of layers": ({"block_count": 4_000_000_000}, ("num_hidden_layers",)),
    "shape": ({"feed_forward_length": 97}, ("blk.0.ffn_", "96", "97")),
    "no heads": ({"attention.head_count": ...}, ("num_attention_heads", "missing")),
    "text for a number": ({"attention.head_count": "four"}, ("num_attention_heads", "type int")),
    "partial rotation": ({"rope.dimension_count": 8}, ("rope.dimension_count", "only 16 is")),
    "value size": ({"attention.value_length": 32}, ("attention.value_length", "only 16 is")),
    "window": ({"attention.sliding_window": 8}, ("attention.sliding_window", "does not know")),
    "experts": ({"expert_count": 8}, ("expert_count", "does not know")),
    "part of a split": ({"split.count": 3}, ("one of 3 parts",)),
    "rope factors": ({"extra": {"rope_freqs.weight": np.full(8, 3.0, np.float32)}}, ("rope_freqs.weight",)),
    "rope kind": ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, ("longrope",)),
    "alignment": ({"general.alignment": 0}, ("general.alignment",)),
    "rope base": ({"extra": {"rope_freqs.weight": np.ones(8, np.float32)}, "rope.freq_base": 0.5}, ("rope.freq_base",)),
    "no tokenizer": ({"tokenizer": False}, ("tokenizer.ggml.model",)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str, tmp_path: Path, capsys: Any) -> None:
    options, words = BROKEN[name]
    path = tmp_path / "model.gguf"
    write_gguf(path, sample(), **options)
    assert_refused(run(capsys, "convert", path, tmp_path / "out"), tmp_path / "out", str(path), *words)


def test_nan(tmp_path: Path, capsys: Any) -> None:
    model = sample("qwen2")
    np.asarray(model.layers.mlp.up.weight[...])[1, 2, 3] = np.nan
    with pytest.raises(jaxsink.JaxsinkError, match="NaN"):  # the copy that write_gguf loads is refused as well
        write_gguf(tmp_path / "model.gguf", model)
    result = run(capsys, "convert", tmp_path / "model.gguf", tmp_path / "out")
    assert_refused(result, tmp_path / "out", "'blk.1.ffn_up.weight'", "NaN")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, sample("qwen2"), Quant.Q4_0)
    return path


def test_broken_bytes(sound: Path, tmp_path: Path, capsys: Any) -> None:
    content = sound.read_bytes()
    kind_place = content.index(b"token_embd.weight") + len("token_embd.weight") + 4 + 16
    count_place = content.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 8
    kinds = {
        "empty": (b"", "header"),
        "magic": (b"GGML" + content[4:], "letters GGUF"),
        "version": (content[:4] + b"\x01" + content[5:], "version 1"),
        "big endian": (content[:4] + b"\0\0\0\3" + content[8:], "version"),
        "tensors without end": (content[:8] + b"\xff" * 8 + content[16:], "header"),
        "settings without end": (content[:16] + b"\xff" * 8 + content[24:], "header"),
        "list without end": (content[:count_place] + b"\xff" * 8 + content[count_place + 8 :], "header"),
        "unknown type": (content[:kind_place] + b"\x63" + content[kind_place + 1 :], "'token_embd.weight'"),
        "undecodable type": (content[:kind_place] + b"\x09" + content[kind_place + 1 :], "Q8_1"),
        "cut in the header": (content[:500], "header"),
        "cut in the weights": (content[:-200], "ends before tensor"),
        "tensor twice": (content.replace(b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight"), "blk.0.ffn_up.weight"),
    }
    place = content.index(b"blk.0.attn_k.bias") + len("blk.0.attn_k.bias")
    offset = content.index(b"blk.0.attn_q.bias") + len("blk.0.attn_q.bias") + 4 + 8 + 4
    kinds |= {
        "setting twice": (content.replace(b"ggml.bos_token_id", b"ggml.eos_token_id"), "twice"),
        "five axes": (content[:place] + b"\5" + content[place + 1 :], "5 axes"),
        "empty axis": (content[: place + 4] + b"\0" + content[place + 5 :], "cannot have the shape [0]"),
        "same place": (content[:offset] + bytes(8) + content[offset + 8 :], "overlaps"),
        "no embedding": (content.replace(b"token_embd.weight", b"token_embd.wxight"), "'token_embd.weight' is missing"),
    }
    for name, (damaged, word) in kinds.items():
        path = tmp_path / "model.gguf"
        path.write_bytes(damaged)
        result = run(capsys, "convert", path, tmp_path / "out")
        assert_refused(result, tmp_path / "out", str(path), word)
        assert run(capsys, "inspect", path)[::2] == (2, result[2]), name


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=edits)
def test_random_damage(edits: list[Edit], sound: Path, capsys: Any) -> None:
    target = sound.parent / "out"
    path = sound.parent / "damaged.gguf"
    path.write_bytes(damage(sound.read_bytes(), edits))
    result = run(capsys, "convert", path, target, "--verify")
    if result[0] == 0:
        assert "bit for bit" in result[1]
        shutil.rmtree(target)
    else:
        assert_refused(result, target)


def test_text_without_converting_first(tmp_path: Path, capsys: Any) -> None:
    write_gguf(tmp_path / "model.gguf", sample())
    converted(capsys, tmp_path / "model.gguf", tmp_path / "out")
    ours, theirs = Tokenizer.load(tmp_path / "model.gguf"), Tokenizer.load(tmp_path / "out")
    assert ours.encode("hello wörld") == theirs.encode("hello wörld")
    assert (ours.special, ours.declared, ours.size) == (theirs.special, theirs.declared, theirs.size)
    assert ours.brings_template and ours.source == str(tmp_path / "model.gguf")
    results = [run(capsys, "generate", tmp_path / name, "hello", "--tokens", "4") for name in ("model.gguf", "out")]
    assert results[0] == results[1] and results[0][0] == 0


def test_tokenizers_that_cannot_be_read(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", sample(), tokenizer=False)
    with pytest.raises(
        JaxsinkError, match=r"the tokenizer in .*model\.gguf cannot be used: .* no tokenizer\.ggml\.model"
    ):
        Tokenizer.load(tmp_path / "model.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(JaxsinkError, match=r"broken\.gguf cannot be read as a GGUF file"):
        Tokenizer.load(tmp_path / "broken.gguf")
    with pytest.raises(JaxsinkError, match=r"nowhere\.gguf is not a directory"):
        Tokenizer.load(tmp_path / "nowhere.gguf")


def test_end_of_turn(tmp_path: Path, monkeypatch: Any) -> None:
    """By the file's own field, else by the token's name."""
    monkeypatch.setattr(f"{__name__}.TOKENS", ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *TOKENS[3:]])
    write_gguf(tmp_path / "model.gguf", sample())
    assert jaxsink.load(tmp_path / "model.gguf").config.eot_id == 2
    write = gguf.GGUFWriter.add_chat_template
    monkeypatch.setattr(gguf.GGUFWriter, "add_chat_template", lambda w, text: (w.add_eot_token_id(5), write(w, text)))
    write_gguf(tmp_path / "other.gguf", sample())
    assert jaxsink.load(tmp_path / "other.gguf").config.eot_id == 5
