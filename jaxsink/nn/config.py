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
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from jaxsink.checks import Range, above, at_least, built, check_fields, shown
from jaxsink.errors import JaxsinkError, check_keywords

LATER = (  # younger than the format: files without them stay as they were
    "dense_layers",
    "dense_width",
    "rotary_dim",
    "query_scale_beta",
    "query_scale_length",
    "head_bias",
    "time_conditioning",
    "time_width",
    "uniform_noise",
    "usual_block",
    "writes_causally",
)

AttentionKind = Literal["bidirectional", "causal", "block_causal"]

COUNT = at_least(1, 1 << 24)
RANGES = {  # of numbers in a configuration; a field that is not here may be any number of its type
    "layers": at_least(1, 1 << 12),
    "width": at_least(1, 1 << 20),
    "heads": at_least(1, 1 << 16),
    "kv_heads": at_least(1, 1 << 16),
    "head_dim": at_least(1, 1 << 16),
    "mlp_width": COUNT,
    "vocab": COUNT,
    "block_length": COUNT,
    "usual_block": COUNT,
    "window": COUNT,
    "norm_eps": above(0, 0.1),
    "dense_layers": at_least(0),
    "dense_width": COUNT,
    "max_positions": COUNT,
    "rope_theta": at_least(1, 1e18),
    "rotary_dim": at_least(1, 1 << 16),
    "text_vocab": COUNT,
    "query_scale_beta": above(0, 1e9),
    "query_scale_length": at_least(1, 1 << 31),
    "time_width": COUNT,
    "uniform_noise": Range(0, 1, frozenset({1})),
}
ROPE_RANGES = {
    "factor": above(0, 1e9),
    "original_length": at_least(0, 1 << 31),
    "low_freq_factor": above(0, 1e9),
    "high_freq_factor": above(0, 1e9),
    "beta_fast": above(0, 1e9),
    "beta_slow": above(0, 1e9),
    "attention_factor": above(0, 1e9),
}
EXPERT_RANGES = {
    "count": at_least(1, 1 << 16),
    "per_token": at_least(1, 1 << 16),
    "groups": at_least(1, 1 << 16),
    "groups_kept": at_least(1, 1 << 16),
    "scale": above(0, 1e9),
    "shared_width": COUNT,
}


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts; the fields of the other kinds stay at their defaults.

    Examples:
        >>> longer = jaxsink.RopeScaling("linear", factor=4.0)
        >>> jaxsink.preset("llama-3.1-8b").replace(rope_scaling=longer).rope_scaling.factor
        4.0
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, "config: rope_scaling", ROPE_RANGES)


@dataclass(frozen=True, repr=False)
class Experts:
    """A mixture-of-experts mlp: scores in float32, the best `per_token` of `count` experts (nn/experts.py).

    Examples:
        >>> config = jaxsink.preset("qwen3-0.6b").replace(layers=2, experts=jaxsink.Experts(count=8, per_token=2))
        >>> config.experts.per_token
        2
        >>> config.experts.check()  # nothing to object to
        >>> config.experts.to_dict()
        {'count': 8, 'per_token': 2, 'renormalise': False}
    """

    count: int
    per_token: int
    renormalise: bool = False  # the weights of a token's experts add up to 1
    scores: Literal["softmax", "sigmoid"] = "softmax"
    bias: Literal["choice", "weight"] | None = None  # a number per expert, added to scores to choose, or to weigh too
    groups: int = 1  # experts lie in so many groups; those with the highest sum of their two best scores …
    groups_kept: int = 1  # … are chosen from, so many of them
    scale: float = 1.0  # a factor on what the chosen experts give together
    shared_width: int | None = None  # beside them an mlp of this width that all tokens go through

    def __repr__(self) -> str:
        """As a call; what is younger than the format is left out where it says nothing, as in `ModelConfig`."""
        return f"Experts({', '.join(f'{name}={value!r}' for name, value in self.to_dict().items())})"

    def to_dict(self) -> dict[str, Any]:
        fields = dataclasses.fields(self)[3:]
        first = {"count": self.count, "per_token": self.per_token, "renormalise": self.renormalise}
        return first | {f.name: getattr(self, f.name) for f in fields if getattr(self, f.name) != f.default}

    def __post_init__(self) -> None:
        check_fields(self, "config: experts", EXPERT_RANGES)

    def check(self) -> None:
        """Do the numbers fit each other?"""
        if self.per_token > self.count:
            raise JaxsinkError(f"config: cannot route to {self.per_token} of {self.count} experts.")
        kept, groups = self.groups_kept, self.groups
        fits = kept <= groups and self.count % groups == 0 and self.per_token <= self.count // groups * kept
        if not fits or (groups > 1 and self.count // groups < 2):
            raise JaxsinkError(
                f"config: {self.per_token} of {self.count} experts cannot be chosen from {kept} of {groups} groups."
            )


@dataclass(frozen=True, repr=False)
class ModelConfig:
    """Static description of a model. Two models with equal configs run the same compiled program.

    Examples:
        >>> model.config.family, model.config.layers, model.config.heads
        ('llada', 4, 4)
        >>> model.config.replace(attention="causal").attention
        'causal'
        >>> model.config.is_diffusion, model.config.predicts_next, model.config.has_head, model.config.widest_mlp
        (True, False, True, 384)
        >>> len(model.config.segments)  # all layers are alike
        1
    """

    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab: int

    attention: AttentionKind = "causal"
    block_length: int | None = None  # block_causal: tokens see their own block and the blocks before it
    window: int | None = None  # sliding window: a query sees itself and the window - 1 keys before it
    window_layers: tuple[bool, ...] | None = None  # layers that use the window; None = all of them
    shift_logits: bool = False  # Dream: the logits at position i predict token i + 1, but tokens are unmasked in place

    norm: Literal["rms", "layer", "layer_weight"] = "rms"  # layer_weight: LayerNorm without a bias
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
    head_bias: bool = False
    time_conditioning: Literal["constant", "level", "total"] | None = None  # adaLN, see nn/conditioning.py: by 0, by …
    time_width: int | None = None  # … the noise level t, or by -log(1 - t); and the size of the vector that tells it

    positions: Literal["rope", "learned"] = "rope"
    max_positions: int = 4096
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rotary_dim: int | None = None  # so many numbers of each head turn, the first ones; None = all
    query_scale_beta: float | None = None  # queries grow with their token position: 1 + beta ln(1 + position // …
    query_scale_length: int | None = None  # … length)
    skip_gaps: bool = True  # positions count real tokens only; LLaDA counts every slot from the first real token on

    extra_sink: bool = False  # one token more that all see, that sees only itself, one place before the first token

    mask_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    pad_id: int | None = None
    eot_id: int | None = None
    text_vocab: int | None = None  # MMaDA: rows from here on are image codes, never text
    uniform_noise: float = 0.0  # GIDD: the share of tokens that are random ones, not masks, at t = 1/2

    writes_causally: bool = False  # Nemotron: trained to write token by token too, so ARSampler runs it causally
    usual_block: int | None = None  # the block length of attention="block_causal", where nobody gives one

    def __post_init__(self) -> None:
        check_fields(self, "config", RANGES)
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
        if self.experts is not None:
            self.experts.check()
        if not 0 <= self.dense_layers < self.layers or (self.dense_layers and self.experts is None):
            raise JaxsinkError(
                f"config: dense_layers {self.dense_layers} must leave some of the {self.layers} layers to experts."
            )
        if self.dense_width is not None and not self.dense_layers:
            raise JaxsinkError("config: dense_width is the mlp width of dense_layers, a positive whole number.")
        turning = self.rotary_dim
        if turning is not None and (self.positions != "rope" or turning % 2 or turning > self.head_dim):
            raise JaxsinkError(f"config: rotary_dim must be even and at most the head size, not {turning}.")
        scale = (self.query_scale_beta, self.query_scale_length)
        if scale != (None, None) and (None in scale or self.positions != "rope"):
            raise JaxsinkError(
                "config: query_scale_beta and query_scale_length go together, and need rotary positions."
            )
        if self.text_vocab is not None and self.text_vocab > self.vocab:
            raise JaxsinkError(
                f"config: text_vocab {self.text_vocab} is more than the vocabulary of {self.vocab} rows."
            )
        self._check_conditioning()
        self._check_names()

    def _check_names(self) -> None:
        if not re.fullmatch(r"[\w.+-]{1,64}", self.family, re.ASCII):
            raise JaxsinkError(f"config: family must be one word such as 'llada', not {shown(self.family)}.")
        for name in ("mask_id", "bos_id", "pad_id", "eot_id"):
            self._check_id(name, getattr(self, name))
        for eos in self.eos_ids:
            self._check_id("eos_ids", eos)
        if self.mask_id is not None and self.mask_id in (*self.eos_ids, self.eot_id):
            raise JaxsinkError(f"config: token {self.mask_id} cannot be the mask and the end of a text.")

    def _check_conditioning(self) -> None:
        if (self.time_conditioning is None) != (self.time_width is None):
            raise JaxsinkError(
                "config: time_width is the size of the vector of time_conditioning; give both or neither."
            )
        if self.time_conditioning is not None and self.extra_sink:
            raise JaxsinkError("config: extra_sink is not made for models with time_conditioning.")
        if self.head_bias and self.tied:
            raise JaxsinkError("config: head_bias needs a head of its own, so tied=False.")

    def _check_id(self, name: str, value: int | None) -> None:
        if value is not None and not 0 <= value < self.vocab:
            raise JaxsinkError(f"config: {name} {value} is outside the vocabulary of {self.vocab} rows.")

    @property
    def is_diffusion(self) -> bool:
        """It fills masks. Under causal attention nothing right of a mask is seen: such a model writes token by token, with a
        mask token or without."""
        return self.mask_id is not None and self.attention != "causal"

    @property
    def predicts_next(self) -> bool:
        """The logits at a position are about the token after it."""
        return self.shift_logits or not self.is_diffusion

    def with_attention(self, attention: str | None, block_length: int | None = None) -> ModelConfig:
        """The same model under another attention pattern; None = its own, also with blocks of another length. Nothing else
        changes, `mask_id` and `shift_logits` included: what the weights were trained to predict stays what it was.

        Examples:
            >>> model.config.with_attention("block_causal", block_length=8).block_length
            8
        """
        if attention is None and block_length is None:
            return self
        if attention is None and self.attention != "block_causal":
            raise JaxsinkError("block_length belongs to attention='block_causal'; give attention too.")
        attention = attention or self.attention
        if attention not in get_args(AttentionKind):
            known = ", ".join(map(repr, get_args(AttentionKind)))
            raise JaxsinkError(f"attention must be one of {known}, or None for the model's own, not {attention!r}.")
        if attention == "block_causal" and block_length is None:
            block_length = self.block_length or self.usual_block
        if (attention == "block_causal") != (block_length is not None) or (
            block_length is not None and block_length < 1
        ):
            raise JaxsinkError("block_length belongs to attention='block_causal', and is needed there, 1 or more.")
        return self.replace(attention=attention, block_length=block_length)

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
        """The same with other values in some fields.

        Examples:
            >>> model.config.replace(layers=2).layers
            2
        """
        check_keywords("ModelConfig.replace", changes, (field.name for field in dataclasses.fields(self)))
        return dataclasses.replace(self, **changes)

    def __repr__(self) -> str:
        """As a call. Fingerprints of runs are made of it, so fields of `LATER` are left out where they say nothing."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown = [f"{name}={value!r}" for name, value in values.items() if value or name not in LATER]
        return f"{type(self).__name__}({', '.join(shown)})"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy; `from_dict` reads it back. Fields of `LATER` are left out where they say nothing.

        Examples:
            >>> model.config.to_dict()["family"]
            'llada'
        """
        values = {key: value for key, value in dataclasses.asdict(self).items() if value or key not in LATER}
        return values if self.experts is None else values | {"experts": self.experts.to_dict()}

    @classmethod
    def from_dict(cls, values: object) -> ModelConfig:
        """What `to_dict` wrote, checked before anything is made of it.

        Examples:
            >>> jaxsink.ModelConfig.from_dict(model.config.to_dict()) == model.config
            True
        """
        return built(cls, values, "config")
