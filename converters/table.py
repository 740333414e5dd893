"""How a family is described: where each of our parameters comes from, and what its configuration means.

A table maps our parameter names to source names. Sources may hold `{layer}` and `{expert}`. Everything is strict: a
tensor that no entry names, a parameter that no tensor fills, and a setting that nobody understands are errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig, RopeScaling

from .shared_settings import DEFAULTS, HARMLESS

_MISSING = object()
MOST_LAYERS, LARGEST_SIZE = 1 << 12, 1 << 24  # beyond these a config is damaged, not large


def short(value: Any) -> str:
    """A value for a message; some are as long as a file."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class Settings:
    """A config.json read strictly: each key is taken, pinned to a value, listed as harmless, or null; others are errors."""

    def __init__(self, values: Mapping[str, Any], where: str, ignore: frozenset[str] = frozenset()):
        self.values, self.where, self.ignore = values, where, ignore
        self.known = set(HARMLESS | ignore)
        for key, default in DEFAULTS.items():
            self.pin(key, default)

    def take(self, key: str, kind: type, default: Any = _MISSING) -> Any:
        """The value of `key`; `default` also replaces null. Whole numbers count as floats, booleans as neither."""
        self.known.add(key)
        value = self.values.get(key)
        if value is None:
            if default is _MISSING:
                raise JaxsinkError(f"{self.where}: {key!r} is missing.")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53:
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise JaxsinkError(f"{self.where}: {key!r} must be of type {kind.__name__}, not {short(value)}.")
        return value

    def size(self, key: str, default: Any = _MISSING, most: int = LARGEST_SIZE) -> Any:
        """A count of something: a positive whole number."""
        value = self.take(key, int, default)
        if value is not default and not 1 <= value <= most:
            raise JaxsinkError(f"{self.where}: {key!r} must be a whole number from 1 to {most}, not {short(value)}.")
        return value

    def positive(self, key: str, default: Any = _MISSING, least: float = 0.0) -> Any:
        """A positive finite number (JSON as Python reads it may hold NaN)."""
        value = self.take(key, float, default)
        if value is not default and not (0 < value < math.inf and value >= least):
            bound = f"of at least {least:g}" if least else "above 0"
            raise JaxsinkError(f"{self.where}: {key!r} must be a number {bound}, not {short(value)}.")
        return value

    def pin(self, key: str, *allowed: Any) -> None:
        """The computation is right only for these values of `key`; a missing key is fine, and null where they mean off."""
        self.known.add(key)
        value = self.values.get(key, allowed[0])
        if value not in allowed and not (value is None and not allowed[0]):
            raise JaxsinkError(
                f"{self.where}: {key!r} = {short(value)} is not supported (only {short(allowed[0])} is)."
            )

    def harmless(self, *keys: str) -> None:
        """Settings of this family that do not change what the model computes."""
        self.known.update(keys)

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids: a number, a list of numbers, or null."""
        self.known.add(key)
        value = self.values.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            raise JaxsinkError(f"{self.where}: {key!r} must be a token id or a list of them, not {short(value)}.")
        return tuple(v for v in values if v >= 0)

    def id(self, key: str) -> int | None:
        ids = self.ids(key)
        return ids[0] if ids else None

    def finish(self) -> None:
        """Null is no setting: whatever it would switch on stays off."""
        unknown = sorted(key for key in set(self.values) - self.known if self.values[key] is not None)
        if unknown:
            key = unknown[0]
            raise JaxsinkError(
                f"{self.where}: jaxsink does not know the setting {key!r} (= {short(self.values[key])}), which may "
                f"change the model; if it does not, pass --ignore-setting {key} (in Python, ignore_settings=[{key!r}])."
            )


def split_width(settings: Settings, width: int, heads: int) -> int:
    """The head size of models whose heads share the width evenly."""
    if width % heads:
        raise JaxsinkError(f"{settings.where}: a width of {width} cannot be shared evenly by {heads} heads.")
    return width // heads


def read_rope(settings: Settings, default_theta: float = 10000.0, scaled_queries: bool = False) -> dict[str, Any]:
    """rope_theta and rope_scaling, from either the old keys or `rope_parameters` of newer files.

    scaled_queries: the family's queries grow with their position, where the parameters say so.
    """
    newer = settings.take("rope_parameters", dict, None)
    if newer is not None:
        inner = Settings(newer, f"{settings.where}: rope_parameters", settings.ignore)
        theta = inner.positive("rope_theta", settings.positive("rope_theta", default_theta, 1.01), 1.01)
        settings.harmless("rope_scaling")
    else:
        theta = settings.positive("rope_theta", default_theta, 1.01)
        scaling = settings.take("rope_scaling", dict, None)
        if scaling is None:
            return {"rope_theta": theta}
        inner = Settings(scaling, f"{settings.where}: rope_scaling", settings.ignore)
    kind = inner.take("rope_type", str, None) or inner.take("type", str, "default")
    inner.harmless("type")
    inner.pin("partial_rotary_factor", 1.0)
    length = inner.size("original_max_position_embeddings", None) or settings.size("max_position_embeddings", 4096)
    if kind == "default":
        inner.finish()
        return {"rope_theta": theta}
    if kind not in ("linear", "llama3", "yarn"):
        raise JaxsinkError(f"{inner.where}: rope type {kind!r} is not supported (linear, llama3 and yarn are).")
    factor = inner.positive("factor", least=1.0)
    if kind == "linear":
        scaling = RopeScaling("linear", factor)
    elif kind == "llama3":
        low, high = inner.positive("low_freq_factor"), inner.positive("high_freq_factor")
        if not low < high:
            raise JaxsinkError(f"{inner.where}: 'low_freq_factor' {low:g} must be below 'high_freq_factor' {high:g}.")
        scaling = RopeScaling("llama3", factor, length, low, high)
    else:
        scaling = RopeScaling(
            "yarn",
            factor,
            length,
            beta_fast=inner.positive("beta_fast", 32.0),
            beta_slow=inner.positive("beta_slow", 1.0),
            attention_factor=yarn_factor(inner, factor),
        )
        inner.pin("truncate", True)
    beta = inner.positive("llama_4_scaling_beta", None) if scaled_queries else None
    inner.finish()
    grown = {} if beta is None else {"query_scale_beta": beta, "query_scale_length": length}
    return {"rope_theta": theta, "rope_scaling": scaling, **grown}


def yarn_factor(settings: Settings, factor: float) -> float | None:
    """On cos and sin: as given, or the ratio of two scales where both are (1 if they are equal); None = the usual one."""
    given = settings.positive("attention_factor", None)
    scales = [settings.positive(key, None) for key in ("mscale", "mscale_all_dim")]
    if (scales[0] is None) != (scales[1] is None):
        raise JaxsinkError(f"{settings.where}: 'mscale' and 'mscale_all_dim' go together; one alone is not supported.")
    if given is not None or None in scales:
        return given
    one, all_dims = (0.1 * scale * math.log(factor) + 1 for scale in scales)
    return one / all_dims


@dataclass(frozen=True)
class From:
    """A source tensor that is not simply ours: `shape` tells its expected shape from our piece's, `take` makes ours."""

    source: str
    shape: Callable[[tuple[int, ...]], tuple[int, ...]]
    take: Callable[[np.ndarray, ModelConfig], np.ndarray]
    rows: Callable[[ModelConfig], int] | None = None  # its first axis, where only the configuration tells


@dataclass(frozen=True)
class Family:
    """One model family: which checkpoints it reads, what their settings mean, and where each parameter comes from."""

    name: str
    architectures: tuple[str, ...]
    configure: Callable[[Settings], ModelConfig]
    table: Mapping[str, str | From]
    harmless_tensors: tuple[str, ...] = ()  # buffers that carry no weights, by full name
    tied_head: str | None = None  # may repeat the embedding when the head is tied
    prefixes: tuple[str, ...] = ("",)  # the same names may have a prefix
    gguf: str | None = None  # architecture name in GGUF files
    transformers_class: str | None = None  # PyTorch reference, where transformers has one
    is_diffusion: bool = False  # needs a mask token
    dense: Mapping[str, str | From] = field(default_factory=dict)  # of layers without experts, where others have some
    published_ids: Mapping[str, int] = field(default_factory=dict)  # of the original vocabulary; see special_ids.py
