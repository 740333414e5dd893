"""ModelConfig: every switch that tells the model families apart, in one hashable record.

Axis legend, used in every annotation and docstring of the project:

    B batch          S sequence (keys)     Q queries of one call or block
    L layers         H heads               K key/value heads      G = H // K
    D head size      E model width         F mlp width            X experts
    V vocabulary     T sampler steps       P prompt               R response
    W window: queries whose outputs are wanted
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from jaxsink.errors import JaxsinkError

LATER = ("dense_layers", "dense_width", "rotary_dim")  # younger than the format: files without them stay as they were


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts; the fields of the other kinds stay at their defaults."""

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None


@dataclass(frozen=True)
class Experts:
    """A mixture-of-experts mlp: softmax routing in float32, the best `per_token` of `count` experts."""

    count: int
    per_token: int
    renormalise: bool = False


@dataclass(frozen=True, repr=False)
class ModelConfig:
    """Static description of a model. Two models with equal configs run the same compiled program."""

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab: int

    attention: Literal["bidirectional", "causal", "block_causal"] = "causal"
    block_length: int | None = None  # block_causal: tokens see their own block and the blocks before it
    window: int | None = None  # sliding window: a query sees itself and the window - 1 keys before it
    window_layers: tuple[bool, ...] | None = None  # layers that use the window; None = all of them
    shift_logits: bool = False  # Dream: the logits at position i predict token i + 1, but tokens are unmasked in place

    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-5
    qk_norm: bool = False  # RMSNorm over each head of q and k
    mlp: Literal["gated", "plain"] = "gated"
    activation: Literal["silu", "gelu", "gelu_tanh"] = "silu"
    experts: Experts | None = None
    dense_layers: int = 0  # with experts: as many layers at the beginning have one mlp for all tokens instead …
    dense_width: int | None = None  # … of this width; None = mlp_width
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False  # the head is the embedding

    positions: Literal["rope", "learned"] = "rope"
    max_positions: int = 4096
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rotary_dim: int | None = None  # so many numbers of each head turn, the first ones; None = all
    skip_gaps: bool = True  # positions count real tokens only; LLaDA counts every slot from the first real token on

    extra_sink: bool = False  # one token more that all see, that sees only itself, one place before the first token

    mask_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    pad_id: int | None = None
    eot_id: int | None = None
    text_vocab: int | None = None  # MMaDA: rows from here on are image codes, never text

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "kv_heads", "head_dim", "mlp_width", "vocab", "max_positions"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise JaxsinkError(f"config: {name} must be a positive whole number, not {getattr(self, name)!r}.")
        if self.heads % self.kv_heads:
            raise JaxsinkError(f"config: {self.heads} heads cannot share {self.kv_heads} kv heads evenly.")
        if self.positions == "rope" and self.head_dim % 2:
            raise JaxsinkError(f"config: rotary positions need an even head size, not {self.head_dim}.")
        if (self.attention == "block_causal") != (self.block_length is not None):
            raise JaxsinkError("config: block_length belongs to attention='block_causal', and is needed there.")
        if self.window_layers is not None and len(self.window_layers) != self.layers:
            raise JaxsinkError(f"config: window_layers names {len(self.window_layers)} of {self.layers} layers.")
        if self.window_layers is not None and self.window is None:
            raise JaxsinkError("config: window_layers says which layers use the window; give the window too.")
        if self.experts is not None and (self.mlp != "gated" or self.mlp_bias):
            raise JaxsinkError("config: experts are gated and have no biases, so mlp='gated' and mlp_bias=False.")
        if not 0 <= self.dense_layers < self.layers or (self.dense_layers and self.experts is None):
            raise JaxsinkError(
                f"config: dense_layers {self.dense_layers} must leave some of the {self.layers} layers to experts."
            )
        if self.dense_width is not None and (self.dense_width < 1 or not self.dense_layers):
            raise JaxsinkError("config: dense_width is the mlp width of dense_layers, a positive whole number.")
        turning = self.rotary_dim
        if turning is not None and (self.positions != "rope" or turning % 2 or not 0 < turning <= self.head_dim):
            raise JaxsinkError(f"config: rotary_dim must be even and at most the head size, not {turning}.")
        if self.experts and not 0 < self.experts.per_token <= self.experts.count:
            raise JaxsinkError(f"config: cannot route to {self.experts.per_token} of {self.experts.count} experts.")
        for name in ("mask_id", "bos_id", "pad_id", "eot_id"):
            self._check_id(name, getattr(self, name))
        for eos in self.eos_ids:
            self._check_id("eos_ids", eos)

    def _check_id(self, name: str, value: int | None) -> None:
        if value is not None and not 0 <= value < self.vocab:
            raise JaxsinkError(f"config: {name} {value} is outside the vocabulary of {self.vocab} rows.")

    @property
    def is_diffusion(self) -> bool:
        return self.mask_id is not None

    @property
    def segments(self) -> tuple[ModelConfig, ...]:
        """One configuration per run of layers with parameters of the same shapes; most models are one such run."""
        dense = self.dense_layers
        if not dense:
            return (self,)
        one_mlp = {
            "experts": None,
            "dense_layers": 0,
            "dense_width": None,
            "mlp_width": self.dense_width or self.mlp_width,
        }
        windows = self.window_layers
        first, rest = (None, None) if windows is None else (windows[:dense], windows[dense:])
        return (
            self.replace(layers=dense, window_layers=first, **one_mlp),
            self.replace(layers=self.layers - dense, window_layers=rest, dense_layers=0, dense_width=None),
        )

    @property
    def widest_mlp(self) -> int:
        """The largest mlp width of a layer."""
        return max(segment.mlp_width for segment in self.segments)

    @property
    def has_head(self) -> bool:
        """True when the head has weights of its own."""
        return not self.tied

    def replace(self, **changes: Any) -> ModelConfig:
        return dataclasses.replace(self, **changes)

    def __repr__(self) -> str:
        """As a call. Fingerprints of runs are made of it, so fields of `LATER` are left out where they say nothing."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown = [f"{name}={value!r}" for name, value in values.items() if value or name not in LATER]
        return f"{type(self).__name__}({', '.join(shown)})"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy; `from_dict` reads it back. Fields of `LATER` are left out where they say nothing."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value or key not in LATER}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelConfig:
        values = dict(values)
        unknown = set(values) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise JaxsinkError(f"config: unknown field {sorted(unknown)[0]!r}; this file may need a newer jaxsink.")
        if values.get("rope_scaling") is not None:
            values["rope_scaling"] = RopeScaling(**values["rope_scaling"])
        if values.get("experts") is not None:
            values["experts"] = Experts(**values["experts"])
        for name in ("eos_ids", "window_layers"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        return cls(**values)
