"""`jaxsink convert` and `jaxsink.load` on every family, layout, type and option: every weight arrives bit for bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.checkpoints import (
    CONFIGS,
    assert_refused,
    assert_same,
    config_of,
    converted,
    make,
    random_model,
    run,
    tensors_of,
    tokenizer_files,
    write,
)

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.checkpoints.storage import MANIFEST
from jaxsink.checkpoints.writer import Writer
from jaxsink.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_arrives_bit_for_bit(family: str, tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", family)
    report = converted(capsys, source, tmp_path / "out")
    assert (report["family"], report["dtype"]) == (family, "float32")
    assert report["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(model))
    assert report["bytes"] == 4 * report["parameters"]
    assert report["tensors"] == len(tensors_of(model))
    assert_same(jaxsink.load(tmp_path / "out"), model)
    assert_same(jaxsink.load(source), model)


def test_names_of_families_without_a_reference() -> None:
    """LLaDA-MoE's and SDAR's tensor names, written down from their published index files."""
    names = set(tensors_of(random_model(config_of("llada_moe"))))
    layer = "model.layers.1."
    attention = {
        f"{layer}self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
    }
    norms = {f"{layer}{part}_layernorm.weight" for part in ("input", "post_attention")}
    experts = {f"{layer}mlp.experts.{e}.{part}_proj.weight" for e in range(3) for part in ("gate", "up", "down")}
    around = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    assert {n for n in names if n.startswith(layer)} == attention | norms | experts | {f"{layer}mlp.gate.weight"}
    assert {n for n in names if ".layers." not in n} == around
    names = set(tensors_of(random_model(config_of("sdar"))))
    dense = {f"{layer}mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    assert {n for n in names if n.startswith(layer)} == attention | norms | dense
    assert {n for n in names if ".layers." not in n} == around


@pytest.mark.parametrize("family", ["llada", "llada_moe"])
def test_sharded_files(family: str, tmp_path: Path, capsys: Any) -> None:
    config = config_of(family)
    model = random_model(config)
    source = write(tmp_path / "source", config, tensors_of(model), shards=3)
    converted(capsys, source, tmp_path / "out", "--verify")
    assert_same(jaxsink.load(tmp_path / "out"), model)
    assert_same(jaxsink.load(source), model)


def test_layers_keep_their_order_beyond_ten(tmp_path: Path, capsys: Any) -> None:
    """Files list layers alphabetically: 10 comes before 2."""
    source, model = make(tmp_path / "source", "llama", num_hidden_layers=12)
    converted(capsys, source, tmp_path / "out")
    assert_same(jaxsink.load(tmp_path / "out"), model)
    assert_same(jaxsink.load(source), model)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_types_stay_as_stored(dtype: str, tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "qwen2", dtype)
    assert converted(capsys, source, tmp_path / "out")["dtype"] == dtype
    assert_same(jaxsink.load(tmp_path / "out"), model)
    assert_same(jaxsink.load(source), model)
    assert_same(jaxsink.load(tmp_path / "out", dtype="float32"), model.astype("float32"))
    assert_same(jaxsink.load(source, dtype="float32"), model.astype("float32"))


def test_mixed_types_become_the_one_that_holds_them_all(tmp_path: Path, capsys: Any) -> None:
    config = config_of("llama")
    exact = random_model(config, "bfloat16").astype("float32")
    tensors = tensors_of(exact)
    narrow = tensors_of(random_model(config, "bfloat16"))
    mixed = {name: value if "norm" in name else narrow[name] for name, value in tensors.items()}
    source = write(tmp_path / "source", config, mixed)
    assert converted(capsys, source, tmp_path / "out")["dtype"] == "float32"
    assert_same(jaxsink.load(tmp_path / "out"), exact)
    assert_same(jaxsink.load(source), exact)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype_option_rounds(dtype: str, tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "gpt2")
    assert converted(capsys, source, tmp_path / "out", "--dtype", dtype)["dtype"] == dtype
    assert_same(jaxsink.load(tmp_path / "out"), model.astype(dtype))
    assert_same(jaxsink.load(source, dtype=dtype), model.astype(dtype))


def test_numbers_too_large_for_the_type_are_refused(tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "llama")
    tensors = tensors_of(model)
    tensors["model.norm.weight"][3] = 1e6
    write(source, config_of("llama"), tensors)
    result = run(capsys, "convert", source, tmp_path / "out", "--dtype", "float16")
    assert_refused(result, tmp_path / "out", "model.norm.weight", "float16")
    with pytest.raises(JaxsinkError, match=r"model\.norm\.weight.*float16"):
        jaxsink.load(source, dtype="float16")


TIED = {
    "llama": ("tie_word_embeddings", "lm_head.weight"),
    "gpt2": ("tie_word_embeddings", "lm_head.weight"),
    "llada": ("weight_tying", "model.transformer.ff_out.weight"),
}


@pytest.mark.parametrize("family", TIED)
def test_tied_heads(family: str, tmp_path: Path, capsys: Any) -> None:
    key, head = TIED[family]
    source, model = make(tmp_path / "plain", family, **{key: True})
    assert model.head is None
    converted(capsys, source, tmp_path / "out")
    assert_same(jaxsink.load(tmp_path / "out"), model)

    tensors = tensors_of(model)
    embedding = next(value for name, value in tensors.items() if name.endswith(("wte.weight", "embed_tokens.weight")))
    doubled = write(tmp_path / "doubled", config_of(family, **{key: True}), {**tensors, head: embedding})
    converted(capsys, doubled, tmp_path / "out2")
    assert_same(jaxsink.load(tmp_path / "out2"), model)
    assert_same(jaxsink.load(doubled), model)

    other = embedding.copy()
    other[-1, -1] += 1
    differing = write(tmp_path / "differing", config_of(family, **{key: True}), {**tensors, head: other})
    assert_refused(run(capsys, "convert", differing, tmp_path / "out3"), tmp_path / "out3", head, "embedding")
    with pytest.raises(JaxsinkError, match="embedding"):
        jaxsink.load(differing)


def test_gpt2_without_its_prefix_and_with_its_buffers(tmp_path: Path, capsys: Any) -> None:
    """The original file has bare names and the causal mask as buffers."""
    config = config_of("gpt2")
    model = random_model(config)
    tensors = tensors_of(model, prefix="")
    assert "wte.weight" in tensors
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = np.ones((1, 1, 64, 64), np.uint8)
        tensors[f"h.{layer}.attn.masked_bias"] = np.array(-1e4, np.float32)
    converted(capsys, write(tmp_path / "source", config, tensors), tmp_path / "out")
    assert_same(jaxsink.load(tmp_path / "out"), model)


def test_explicit_head_size_and_biases(tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "llama", head_dim=10, attention_bias=True, mlp_bias=True)
    assert model.layers.attention.q.weight[...].shape == (2, 40, 24)
    converted(capsys, source, tmp_path / "out")
    assert_same(jaxsink.load(tmp_path / "out"), model)


def test_one_expert(tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "llada_moe", num_experts=1, num_experts_per_tok=1)
    converted(capsys, source, tmp_path / "out")
    assert_same(jaxsink.load(tmp_path / "out"), model)


def test_manifest(tmp_path: Path, capsys: Any) -> None:
    config = config_of("dream")
    model = random_model(config, "bfloat16")
    source = write(tmp_path / "source", config, tensors_of(model), shards=2)
    tokenizer_files(source, mask=40)
    (source / "generation_config.json").write_text('{"eos_token_id": [3, 7, 5000]}')
    report = converted(capsys, source, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["format"] == 2
    assert manifest["jaxsink"] == jaxsink.__version__
    assert manifest["dtype"] == "bfloat16"
    assert manifest["parameters"] == report["parameters"]
    expected = model.config.replace(
        eos_ids=(3, 7)
    )  # the second from generation_config.json, which is in the vocabulary
    assert jaxsink.ModelConfig.from_dict(manifest["config"]) == expected
    assert {key: manifest["source"][key] for key in ("kind", "path", "revision")} == {
        "kind": "safetensors",
        "path": str(source),
        "revision": None,
    }
    listed = {entry["name"]: entry for entry in manifest["source"]["files"]}
    assert set(listed) == {path.name for path in source.iterdir()}
    for path in source.iterdir():
        content = path.read_bytes()
        assert listed[path.name]["sha256"] == hashlib.sha256(content).hexdigest()
        assert listed[path.name]["bytes"] == len(content)


def test_tokenizer_files_go_along(tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llada")
    tokenizer_files(source, mask=40)
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "README.md").write_text("not this one")
    report = converted(capsys, source, tmp_path / "out")
    assert report["warnings"] == []
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert not (tmp_path / "out" / "README.md").exists()
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert (tokenizer.size, tokenizer.special["mask"]) == (50, 40)

    (source / "tokenizer_config.json").write_text('{"eos_token": "w9"}')
    code, out, _ = run(capsys, "convert", source, tmp_path / "out2")
    assert code == 0
    assert f"note: the tokenizer in {source} declares eos id 9" in out


def test_verify_reads_back_and_finds_a_changed_bit(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    source, _ = make(tmp_path / "source", "llada")
    report = converted(capsys, source, tmp_path / "out", "--verify")
    assert report["verified"]["tensors"] == 3 + 2 * 9
    assert "no reference" in report["verified"]["logits"]

    def add(self: Writer, piece: str, value: np.ndarray) -> None:
        if piece == "layers.mlp.up.weight.01":
            value.view(np.uint32)[5, 5] ^= 1
        self.group[piece] = value

    monkeypatch.setattr(Writer, "add", add)
    result = run(capsys, "convert", source, tmp_path / "out2", "--verify")
    assert_refused(result, tmp_path / "out2", "layers.mlp.up.weight.01", "blocks.1.up_proj.weight")


def test_overwrite(tmp_path: Path, capsys: Any) -> None:
    first, one = make(tmp_path / "first", "llama")
    second, two = make(tmp_path / "second", "qwen2")
    target = tmp_path / "out"
    converted(capsys, first, target)
    code, _, err = run(capsys, "convert", second, target)
    assert (code, "--overwrite" in err) == (2, True)
    assert_same(jaxsink.load(target), one)

    save_file({}, second / "model.safetensors")  # a conversion that fails leaves the old checkpoint alone
    code, _, err = run(capsys, "convert", second, target, "--overwrite")
    assert (code, "0 tensors" in err) == (2, True)
    assert_same(jaxsink.load(target), one)
    assert list(tmp_path.glob(".out*")) == []

    save_file(tensors_of(two), second / "model.safetensors")
    converted(capsys, second, target, "--overwrite")
    assert_same(jaxsink.load(target), two)


def test_only_checkpoints_are_overwritten(tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "llama")
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    code, _, err = run(capsys, "convert", source, home, "--overwrite")
    assert (code, "is not a checkpoint" in err) == (2, True)
    assert (home / "thesis.tex").read_text() == "years of work"
    code, _, err = run(capsys, "convert", source, home / "thesis.tex", "--overwrite")
    assert (code, "is not a checkpoint" in err) == (2, True)
    (home / "thesis.tex").unlink()
    converted(capsys, source, home, "--overwrite")  # an empty folder is nobody's work
    assert_same(jaxsink.load(home), model)


def test_loaded_files_are_never_changed(tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    converted(capsys, source, tmp_path / "out", "--dtype", "bfloat16")
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    assert load_file(source / "model.safetensors")["model.norm.weight"].dtype == np.float32
