"""GGUF files of diffusion models and of Qwen3, written by the `gguf` package under its own names, as llama.cpp's converter
writes them: the same model as from the family's own files, plain and in the types of Q4_K_M, Q5_K_M, Q6_K and Q8_0 files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from support.checkpoints import assert_refused, assert_same, config_of, converted, random_model, run, tensors_of, write
from support.slow_quants import decoded, random_blocks

import jaxsink
from jaxsink.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quick_compilation")

Quant = gguf.GGMLQuantizationType
LETTERS = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<|endoftext|>", "<|startoftext|>", "<|wait|>", *LETTERS, "he", "ll"]
WIDTH, MASK = 256, 2
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": WIDTH,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": len(TOKENS),
    "max_position_embeddings": 64,
    "eos_token_id": 0,
    "bos_token_id": 1,
}
OLMO = {
    "d_model": WIDTH,
    "n_kv_heads": 2,
    "mlp_hidden_size": WIDTH,
    "vocab_size": len(TOKENS),
    "embedding_size": len(TOKENS),
    "eos_token_id": 0,
    "bos_token_id": 1,
    "pad_token_id": ...,
    "mask_token_id": MASK,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "dream": config_of("dream", **SIZES, intermediate_size=WIDTH, mask_token_id=MASK),
    "llada": config_of("llada", **OLMO),
    "llada-moe": config_of("llada_moe", **SIZES, expert_intermediate_size=WIDTH, mask_token_id=MASK, head_dim=64),
    "qwen3": config_of("qwen3", **SIZES, intermediate_size=WIDTH, head_dim=128),
}
ARCHITECTURES = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name in CONFIGS}
# By the end of a tensor's name, as llama-quantize chooses for these files; F32 where nothing fits.
FILES = {
    "Q4_K_M": {"attn_v": "Q6_K", "ffn_down": "Q6_K", "output": "Q6_K", "": "Q4_K"},
    "Q5_K_M": {"attn_v": "Q6_K", "ffn_down": "Q6_K", "output": "Q6_K", "": "Q5_K"},
    "Q6_K": {"": "Q6_K"},
    "Q8_0": {"": "Q8_0"},
}


@dataclass
class File:
    """A GGUF file to write: what is asked of it, and what stands in it."""

    architecture: str
    kind: str = "F32"
    settings: dict[str, Any] = field(default_factory=dict)  # changes; ... leaves one out
    leave_out: str = "nothing"  # a tensor
    tokens: list[str] = field(default_factory=lambda: list(TOKENS))

    def write(self, path: Path) -> jaxsink.Model:
        """The model that the file holds."""
        config = CONFIGS[self.architecture]
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in (self.metadata(config) | self.settings).items():
            if value is not ...:
                add = {int: writer.add_uint32, float: writer.add_float32, bool: writer.add_bool}
                add[type(value)](key, value)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llada-moe" if self.architecture == "llada-moe" else "qwen2")
        writer.add_token_list(self.tokens)
        writer.add_token_types([3, 3, 3, *[1] * (len(self.tokens) - 3)])
        writer.add_token_merges(["h e", "l l"])
        own = {name: self.stored(writer, name, value) for name, value in self.tensors(config).items()}
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        own = split_experts(own)
        return jaxsink.load(write(path.parent / f"{path.stem}_own", config, own))

    def metadata(self, config: dict[str, Any]) -> dict[str, Any]:
        a, heads = self.architecture, 4
        values = {
            f"{a}.block_count": 2,
            f"{a}.context_length": 64,
            f"{a}.embedding_length": WIDTH,
            f"{a}.feed_forward_length": WIDTH,
            f"{a}.attention.head_count": heads,
            f"{a}.attention.head_count_kv": 2,
            f"{a}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{a}.rope.freq_base": 500.0,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 0,
        }
        if a != "qwen3":
            values |= {f"{a}.attention.causal": False, "tokenizer.ggml.mask_token_id": MASK}
        if a.startswith("llada"):
            values["diffusion.shift_logits"] = False
        if a == "llada":
            values |= {f"{a}.vocab_size": len(TOKENS), f"{a}.rope.dimension_count": WIDTH // heads}
        if a == "llada-moe":
            values |= {f"{a}.expert_count": 3, f"{a}.expert_used_count": 2, f"{a}.expert_feed_forward_length": WIDTH}
        if "head_dim" in config:
            values |= {f"{a}.attention.{name}_length": config["head_dim"] for name in ("key", "value")}
        return values

    def tensors(self, config: dict[str, Any]) -> dict[str, np.ndarray]:
        """Weights under the family's own names, the experts of a layer in one tensor."""
        found: dict[str, Any] = {}
        for name, value in tensors_of(random_model(config)).items():
            before, _, after = name.partition(".experts.")
            if after:
                found.setdefault(f"{before}.experts.{after.partition('.')[2]}", []).append(value)
            else:
                found[name] = value
        return {name: np.stack(value) if isinstance(value, list) else value for name, value in found.items()}

    def stored(self, writer: gguf.GGUFWriter, name: str, value: np.ndarray) -> np.ndarray:
        """Write a tensor; what its blocks stand for, in the family's own order of rows."""
        native = gguf.get_tensor_name_map(ARCHITECTURES[self.architecture], 2).get_name(name, (".weight", ".bias"))
        assert native is not None, name
        quant, raw = self.quant(native, value), value
        if quant != "F32":
            raw = random_blocks(quant, value.shape, np.random.default_rng(len(name)))
            value = decoded(quant, raw)
        if self.architecture == "llada" and (".attn_q." in native or ".attn_k." in native):
            heads = 4 if ".attn_q." in native else 2
            raw = raw.reshape(heads, 2, raw.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(raw.shape)
        if native != self.leave_out:
            writer.add_tensor(native, np.ascontiguousarray(raw), raw_dtype=None if quant == "F32" else Quant[quant])
        return value

    def quant(self, native: str, value: np.ndarray) -> str:
        if self.kind == "F32" or value.ndim == 1 or "ffn_gate_inp" in native:
            return "F32"
        chosen = FILES[self.kind]
        return next(quant for part, quant in chosen.items() if part in native)


def split_experts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    out = {}
    for name, value in tensors.items():
        before, found, after = name.partition(".experts.")
        out |= {f"{before}.experts.{n}.{after}": part for n, part in enumerate(value)} if found else {name: value}
    return out


@pytest.mark.parametrize("architecture", CONFIGS)
def test_the_same_as_from_the_familys_own_files(architecture: str, tmp_path: Path, capsys: Any) -> None:
    expected = File(architecture).write(tmp_path / "model.gguf")
    loaded = jaxsink.load(tmp_path / "model.gguf")
    assert_same(loaded, expected)
    assert loaded.config.mask_id == (None if architecture == "qwen3" else MASK)
    assert loaded.config.shift_logits == (architecture == "dream")
    report = converted(capsys, tmp_path / "model.gguf", tmp_path / "out", "--verify")
    assert report["family"] == architecture.replace("-", "_") and report["warnings"] == []
    assert_same(jaxsink.load(tmp_path / "out"), expected)
    tokens = np.arange(20).reshape(2, 10)
    np.testing.assert_array_equal(jaxsink.forward(loaded, tokens).logits, jaxsink.forward(expected, tokens).logits)


@pytest.mark.parametrize(
    ("architecture", "kind"), [*(("dream", kind) for kind in FILES), ("llada", "Q4_K_M"), ("llada-moe", "Q5_K_M")]
)
def test_quantised_as_llama_cpp_does_by_default(architecture: str, kind: str, tmp_path: Path) -> None:
    """Every number is what the blocks say, one by one; a mesh reads its shards of them."""
    expected = File(architecture, kind).write(tmp_path / "model.gguf")
    assert_same(jaxsink.load(tmp_path / "model.gguf"), expected)
    spread = np.abs(np.asarray(expected.embedding[...]))
    assert 0.01 < spread.mean() < 2 and len(np.unique(spread)) > 500
    if kind == "Q4_K_M":
        assert_same(jaxsink.load(tmp_path / "model.gguf", mesh=jaxsink.parallel.make_mesh(1, 8)), expected)


def test_the_mask_is_the_files_own(tmp_path: Path, capsys: Any) -> None:
    """A setting, else a token of a known name; else the file must not be guessed at."""
    path = tmp_path / "model.gguf"
    without = {"tokenizer.ggml.mask_token_id": ...}
    for name in ("<|mdm_mask|>", "<|mask|>", "<|MASK|>", "|<MASK>|"):
        File("llada", settings=without, tokens=[*TOKENS[:-1], name]).write(path)
        assert jaxsink.load(path).config.mask_id == len(TOKENS) - 1
    File("dream", settings=without).write(path)
    assert_refused(run(capsys, "convert", path, tmp_path / "out"), tmp_path / "out", str(path), "--mask-id")
    assert jaxsink.load(path, mask_id=7).config.mask_id == 7
    File("dream").write(path)
    with pytest.raises(jaxsink.JaxsinkError, match="has mask id 2, not 7"):
        jaxsink.load(path, mask_id=7)


def test_the_tokenizer_knows_the_mask(tmp_path: Path, capsys: Any) -> None:
    for architecture in ("dream", "llada-moe"):
        path = tmp_path / f"{architecture}.gguf"
        File(architecture).write(path)
        tokenizer = Tokenizer.load(path)
        assert tokenizer.special["mask"] == tokenizer.declared["mask"] == MASK
        assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
        converted(capsys, path, tmp_path / f"{architecture}_out")
        assert Tokenizer.load(tmp_path / f"{architecture}_out").special["mask"] == MASK
        result = run(capsys, "generate", path, "hello", "--tokens", "4", "--json")
        assert result[0] == 0, result


MOE = "llada-moe"
BROKEN: dict[str, tuple[File, tuple[str, ...]]] = {
    "dream without a shift": (File("dream", settings={"diffusion.shift_logits": False}), ("shift_logits", "only True")),
    "llada with a shift": (File("llada", settings={"diffusion.shift_logits": True}), ("shift_logits", "only False")),
    "causal dream": (File("dream", settings={"dream.attention.causal": True}), ("attention.causal", "only False")),
    "bidirectional qwen3": (File("qwen3", settings={"qwen3.attention.causal": False}), ("attention.causal", "True")),
    "diffusion qwen3": (File("qwen3", settings={"diffusion.shift_logits": True}), ("shift_logits", "without it")),
    "too few experts": (File(MOE, settings={f"{MOE}.expert_count": 2}), ("blk.0.ffn_", "_exps.weight", "no parameter")),
    "too many experts": (File(MOE, settings={f"{MOE}.expert_count": 4}), ("blk.0.ffn_", "_exps.weight", "missing")),
    "no experts": (File(MOE, leave_out="blk.1.ffn_up_exps.weight"), ("'blk.1.ffn_up_exps.weight' is missing",)),
    "no norm of q": (File("qwen3", leave_out="blk.1.attn_q_norm.weight"), ("'blk.1.attn_q_norm.weight' is missing",)),
    "shared expert": (File(MOE, settings={f"{MOE}.expert_shared_count": 1}), ("expert_shared_count", "does not know")),
    "partial rotation": (File("llada", settings={"llada.rope.dimension_count": 8}), ("rope.dimension_count", "64 is")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str, tmp_path: Path, capsys: Any) -> None:
    file, words = BROKEN[name]
    path = tmp_path / "model.gguf"
    file.write(path)
    assert_refused(run(capsys, "convert", path, tmp_path / "out"), tmp_path / "out", str(path), *words)
