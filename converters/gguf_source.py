"""GGUF files, as a source with the names and settings of the family's own files (gguf_dialects.py says which are which).

Tensors are dequantised to float32 (stored float16 and bfloat16 stay as they are). llama.cpp stores q and k of some
models with rows reordered for interleaved rotation; reading undoes that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig, RopeScaling
from jaxsink.text.tokenizer import KNOWN_TOKENS

from .gguf_dialects import DIALECTS
from .gguf_file import GgufTensor, read_gguf
from .source import Source, TensorInfo, add_tensor

ROPE_FACTORS = "rope_freqs.weight"
HEAD_SIZES = ("attention.value_length", "rope.dimension_count")  # must equal the head size
SHIFT, CAUSAL = "diffusion.shift_logits", "attention.causal"
HARMLESS_SETTINGS = {*HEAD_SIZES, CAUSAL, "rope.scaling.finetuned"}
_EXPERT = re.compile(r"\.experts\.\d+\.")
LLAMA3_SCALINGS = tuple(RopeScaling("llama3", factor, 8192) for factor in (8.0, 32.0))


class GgufSource(Source):
    kind = "gguf"

    def __init__(self, path: Path):
        self.path = path
        self.files = [path]
        self.fields, found = read_gguf(path)
        self.generation = {}
        self.tensors = {}
        self._found: dict[str, GgufTensor] = {}
        architecture = str(self.fields.get("general.architecture"))
        if architecture not in DIALECTS:
            known = ", ".join(DIALECTS)
            raise JaxsinkError(f"{path} holds a {architecture!r} model; GGUF files of these are supported: {known}.")
        self.architecture, self.dialect = architecture, DIALECTS[architecture]
        parts = self.fields.get("split.count", 1)
        if parts not in (0, 1):
            raise JaxsinkError(f"{path} is one of {parts} parts; join them with llama-gguf-split --merge first.")
        self._check_pattern()
        layers = self._setting("block_count")
        layers = min(layers, len(found)) if isinstance(layers, int) else 0
        ours = {
            theirs.format(layer=layer): name.replace("{layer}", str(layer))
            for theirs, name in self.dialect.names.items()
            for layer in (range(layers) if "{layer}" in theirs else (0,))
        }
        factors = None
        for tensor in found:
            if tensor.name == ROPE_FACTORS:
                factors = tensor.read(path).astype(np.float32).reshape(-1)
                continue
            for name, part in by_expert(ours.get(tensor.name, tensor.name), tensor):
                add_tensor(self.tensors, name, TensorInfo(part.shape, part.dtype, path))
                self._found[name] = part
        self._theirs = {name: theirs for theirs, name in ours.items()}
        self._theirs |= {name: tensor.name for name, tensor in self._found.items()}
        self.config = self._config(factors)

    def shown(self, name: str) -> str:
        return self._theirs.get(name, self._theirs.get(_EXPERT.sub(".experts.{expert}.", name), name))

    def _setting(self, key: str) -> Any:
        return self.fields.get(f"{self.architecture}.{key}")

    def _check_pattern(self) -> None:
        """Two settings say what kind of model it is; another kind under this architecture's name would be read wrongly."""
        shifted = self.dialect.shifted
        wanted = {f"{self.architecture}.{CAUSAL}": shifted is None, SHIFT: shifted}
        for key, value in wanted.items():
            if self.fields.get(key) not in (None, value):
                only = "only files without it are" if value is None else f"only {value} is"
                raise JaxsinkError(
                    f"{self.path}: {key!r} = {self.fields[key]} is not supported for a {self.architecture!r} model ({only})."
                )

    def _config(self, factors: np.ndarray | None) -> dict[str, Any]:
        """The same settings under the names of the family's own files; unknown ones are passed on, and refused there."""
        dialect = self.dialect
        config: dict[str, Any] = {"architectures": [dialect.model_class]}
        for key, value in self.fields.items():
            short = key.removeprefix(f"{self.architecture}.")
            if short != key and short not in HARMLESS_SETTINGS:
                config[dialect.settings.get(short, short)] = value
        if "rope.scaling.type" in config:
            config["rope_scaling"] = self._rope_scaling(config)
        if factors is not None:
            config["rope_scaling"] = llama3_from_factors(factors, config, self.path)
        self._check_head_sizes()
        embedding = self.tensors.get(dialect.names["token_embd.weight"])
        if embedding is None:
            raise JaxsinkError(f"tensor 'token_embd.weight' is missing from {self.path}.")
        config["vocab_size"] = embedding.shape[0]
        config[dialect.tied] = dialect.names["output.weight"] not in self.tensors
        return config | self._ids()

    def _check_head_sizes(self) -> None:
        width, heads = self._setting("embedding_length"), self._setting("attention.head_count")
        if isinstance(width, int) and isinstance(heads, int) and heads > 0:
            size = self._setting("attention.key_length") or width // heads
            for key in HEAD_SIZES:
                if self._setting(key) not in (None, size):
                    raise JaxsinkError(
                        f"{self.path}: {key!r} = {self._setting(key)} is not supported (only {size} is)."
                    )

    def _ids(self) -> dict[str, int | None]:
        """Of special tokens: the file's own fields, else, for those that have known names, the token of that name."""
        fields = {"bos": "bos", "eos": "eos", "pad": "padding", "eot": "eot"}
        fields |= {} if self.dialect.shifted is None else {"mask": "mask"}
        tokens = self.fields.get("tokenizer.ggml.tokens") or []
        ids = {}
        for ours, theirs in fields.items():
            index = self.fields.get(f"tokenizer.ggml.{theirs}_token_id")
            if index is None:
                index = next((tokens.index(t) for t in KNOWN_TOKENS.get(ours, ()) if t in tokens), None)
            ids[f"{ours}_token_id"] = index
        return ids

    def _rope_scaling(self, config: dict[str, Any]) -> dict[str, Any] | None:
        kind = config.pop("rope.scaling.type")
        scaling = {"rope_type": kind, "factor": config.pop("rope.scaling.factor", None)}
        length = config.pop("rope.scaling.original_context_length", None)
        if length is not None:
            scaling["original_max_position_embeddings"] = length
        return None if kind == "none" else scaling

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        tensor = self._found[name]
        value = tensor.read(self.path)
        if self.dialect.interleaved and (".attn_q." in tensor.name or ".attn_k." in tensor.name):
            heads = self._setting("attention.head_count")
            kv_heads = self._setting("attention.head_count_kv") or heads
            value = undo_interleaving(value, heads if ".attn_q." in tensor.name else kv_heads)
        return value if index is None else value[index]


def by_expert(name: str, tensor: GgufTensor) -> Iterator[tuple[str, GgufTensor]]:
    """(our name, tensor); of one that holds the weights of all experts, one after the other, the part of each."""
    if "{expert}" not in name or len(tensor.shape) != 3:
        yield name, tensor
        return
    count, size = tensor.shape[0], tensor.size // tensor.shape[0]
    for expert in range(count):
        part = replace(tensor, shape=tensor.shape[1:], offset=tensor.offset + expert * size, size=size)
        yield name.format(expert=expert), part


def undo_interleaving(value: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from (0, D/2, 1, D/2 + 1, …) back to (0, 1, …): half rotation."""
    rows = value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:])
    return np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(value.shape)


def llama3_from_factors(factors: np.ndarray, config: dict[str, Any], path: Path) -> dict[str, Any]:
    """GGUF stores Llama 3.1's scaling as one divisor per frequency; find the published setting that makes it."""
    from jaxsink.nn.rope import rope_frequencies

    theta = config.get("rope_theta", 10000.0)
    if not isinstance(theta, float) or not theta > 1:
        raise JaxsinkError(f"{path}: 'rope.freq_base' must be a number above 1, not {theta!r}.")
    plain = ModelConfig("llama", 1, 1, 1, 1, 2 * factors.size, 1, 1, rope_theta=theta)
    base = rope_frequencies(plain)[0]
    for scaling in LLAMA3_SCALINGS:
        expected = base / rope_frequencies(plain.replace(rope_scaling=scaling))[0]
        if np.allclose(expected, factors, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_length,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
            }
    raise JaxsinkError(f"tensor {ROPE_FACTORS!r} of {path} matches no published rope scaling; it cannot be honoured.")
