"""How a family is described: where each of our parameters comes from, and what its configuration means.

A table maps our parameter names to source names. Sources may hold `{layer}` and `{expert}`. Everything is strict: a
tensor that no entry names, a parameter that no tensor fills, and a setting that nobody understands are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxsink.config import ModelConfig, RopeScaling
from jaxsink.errors import JaxsinkError

# Settings of any Hugging Face config that say how a model is trained, stored or sampled, not what it computes.
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures attn_implementation
    attention_dropout attention_probs_dropout_prob auto_map bad_words_ids chunk_size_feed_forward
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id hidden_dropout_prob id2label initializer_range is_decoder is_llama_config label2id
    length_penalty max_length min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_labels
    num_return_sequences output_attentions output_hidden_states output_scores prefix pretraining_tp problem_type
    remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
    suppress_tokens task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript
    transformers.js_config transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache
    """.split()
)
# … and those that would change the computation, unless they have these values.
FIXED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({}, None),
    "tie_encoder_decoder": (False,),
}
_MISSING = object()


class Settings:
    """A config.json read strictly: each key is taken, pinned to a value, or listed as harmless; others are errors."""

    def __init__(self, values: Mapping[str, Any], where: str, ignore: frozenset[str] = frozenset()):
        self.values, self.where = values, where
        self.known = set(HARMLESS | ignore)
        for key, allowed in FIXED.items():
            self.pin(key, *allowed)

    def take(self, key: str, kind: type, default: Any = _MISSING) -> Any:
        """The value of `key`; `default` also stands for null. Whole numbers count as floats, booleans as neither."""
        self.known.add(key)
        value = self.values.get(key)
        if value is None:
            if default is _MISSING:
                raise JaxsinkError(f"{self.where}: {key!r} is missing.")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise JaxsinkError(f"{self.where}: {key!r} must be of type {kind.__name__}, not {value!r}.")
        return value

    def pin(self, key: str, *allowed: Any) -> None:
        """The computation is right only for these values of `key`; a missing key is fine."""
        self.known.add(key)
        if key in self.values and self.values[key] not in allowed:
            raise JaxsinkError(f"{self.where}: {key!r} = {self.values[key]!r} is not supported (only {allowed[0]!r} is).")

    def harmless(self, *keys: str) -> None:
        """Settings of this family that do not change what the model computes."""
        self.known.update(keys)

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids: a number, a list of numbers, or null."""
        self.known.add(key)
        value = self.values.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            raise JaxsinkError(f"{self.where}: {key!r} must be a token id or a list of them, not {value!r}.")
        return tuple(v for v in values if v >= 0)

    def id(self, key: str) -> int | None:
        ids = self.ids(key)
        return ids[0] if ids else None

    def finish(self) -> None:
        unknown = sorted(set(self.values) - self.known)
        if unknown:
            key = unknown[0]
            raise JaxsinkError(
                f"{self.where}: jaxsink does not know the setting {key!r} (= {self.values[key]!r}), which may change the "
                f"model; if it does not, pass --ignore-setting {key}."
            )


def read_rope(settings: Settings, default_theta: float = 10000.0) -> dict[str, Any]:
    """rope_theta and rope_scaling, from either the old keys or `rope_parameters` of newer files."""
    newer = settings.take("rope_parameters", dict, None)
    if newer is not None:
        inner = Settings(newer, f"{settings.where}: rope_parameters")
        theta = inner.take("rope_theta", float, settings.take("rope_theta", float, default_theta))
        settings.harmless("rope_scaling")
    else:
        theta = settings.take("rope_theta", float, default_theta)
        scaling = settings.take("rope_scaling", dict, None)
        if scaling is None:
            return {"rope_theta": theta}
        inner = Settings(scaling, f"{settings.where}: rope_scaling")
    kind = inner.take("rope_type", str, None) or inner.take("type", str, "default")
    inner.harmless("type")
    inner.pin("partial_rotary_factor", 1.0)
    length = inner.take("original_max_position_embeddings", int, 0)
    max_positions = settings.take("max_position_embeddings", int, 4096)
    if kind == "default":
        inner.finish()
        return {"rope_theta": theta}
    factor = inner.take("factor", float)
    if kind == "linear":
        scaling = RopeScaling("linear", factor)
    elif kind == "llama3":
        low, high = inner.take("low_freq_factor", float), inner.take("high_freq_factor", float)
        scaling = RopeScaling("llama3", factor, length or max_positions, low, high)
    elif kind == "yarn":
        scaling = RopeScaling(
            "yarn",
            factor,
            length or max_positions,
            beta_fast=inner.take("beta_fast", float, 32.0),
            beta_slow=inner.take("beta_slow", float, 1.0),
            attention_factor=inner.take("attention_factor", float, None),
        )
        inner.pin("truncate", True)
    else:
        raise JaxsinkError(f"{inner.where}: rope type {kind!r} is not supported (linear, llama3 and yarn are).")
    inner.finish()
    return {"rope_theta": theta, "rope_scaling": scaling}


@dataclass(frozen=True)
class From:
    """A source tensor that is not simply ours: `shape` tells its expected shape from our piece's, `take` makes ours."""

    source: str
    shape: Callable[[tuple[int, ...]], tuple[int, ...]]
    take: Callable[[np.ndarray, ModelConfig], np.ndarray]


@dataclass(frozen=True)
class Family:
    """One model family: which checkpoints it reads, what their settings mean, and where each parameter comes from."""

    name: str
    architectures: tuple[str, ...]
    configure: Callable[[Settings], ModelConfig]
    table: Mapping[str, str | From]
    harmless_tensors: tuple[str, ...] = ()  # buffers that carry no weights, by full name
    tied_head: str | None = None  # may repeat the embedding when the head is tied
    prefixes: tuple[str, ...] = ("",)  # the same names may stand behind a prefix
    gguf: str | None = None  # architecture name in GGUF files
    transformers_class: str | None = None  # PyTorch reference, where transformers has one
