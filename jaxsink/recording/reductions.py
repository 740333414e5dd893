"""Reductions of received scores inside the loop, because raw records dominate memory: T x L x B x H x S numbers.

    record = received().then(top(5))           the five largest per layer, head and step, and where they are
    record = received().then(sink_counts((1.0, 3.0, 10.0)))

Each is a small frozen object, so that equal ones share a compiled program. Any function (value, tap) -> pytree works too.
Values are [B,H,S]; padded keys never count.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float32, Int

from jaxsink.checks import at_least, check_fields
from jaxsink.errors import JaxsinkError
from jaxsink.nn.batch import KINDS
from jaxsink.nn.recorder import SeesKeys
from jaxsink.recording.margin import margin

Received = Float32[Array, "B H S"]


@dataclass(frozen=True)
class top:  # noqa: N801 - reads as a function
    """{"score": f32[B,H,k], "position": i32[B,H,k]}, largest first; equal scores in order of position.

    Where fewer than k keys are real, both are 0; so they are for a sequence that has finished, as all its statistics.

    Attributes:
        k: how many keys

    Examples:
        >>> recorder = jaxsink.record.received().then(jaxsink.reduce.top(2))
        >>> seen = jaxsink.forward(model, tokens, record=recorder)
        >>> sorted(seen.record), seen.record["position"].shape
        (['position', 'score'], (4, 1, 4, 2))
    """

    k: int

    def __post_init__(self) -> None:
        check_fields(self, "reduce.top", {"k": at_least(1)})

    def __call__(self, value: Received, tap: SeesKeys) -> dict[str, Array]:
        if not 0 < self.k <= value.shape[-1]:
            raise JaxsinkError(f"reduce.top: k must lie between 1 and the {value.shape[-1]} keys, and is {self.k}.")
        score, position = lax.top_k(jnp.where(tap.mask[:, None, :], value, -jnp.inf), self.k)
        real = jnp.isfinite(score)
        return {"score": jnp.where(real, score, 0.0), "position": jnp.where(real, position, 0)}


@dataclass(frozen=True)
class sink_counts:  # noqa: N801
    """i32[B,H,n]: how many keys score above the mean of the other keys by more than each ε (Eq. 3, column sums).

    Attributes:
        eps: thresholds

    Examples:
        >>> recorder = jaxsink.record.received().then(jaxsink.reduce.sink_counts((1.0, 3.0)))
        >>> seen = jaxsink.forward(model, tokens, record=recorder)
        >>> seen.record.shape  # layers, sequences, heads, thresholds
        (4, 1, 4, 2)
    """

    eps: tuple[float, ...] = (3.0,)

    def __post_init__(self) -> None:
        check_fields(self, "reduce.sink_counts")

    def __call__(self, value: Received, tap: SeesKeys) -> Int[Array, "B H N"]:
        mask = tap.mask[:, None, :]
        above = margin(value, mask)[..., None] > jnp.array(self.eps, jnp.float32)
        return (above & mask[..., None]).sum(axis=2)


@dataclass(frozen=True)
class histogram:  # noqa: N801
    """i32[B,H,n]: keys by score; bin i holds edges[i] <= score < edges[i + 1], the last one everything from there on.

    Attributes:
        edges: lower ends of the bins, in rising order

    Examples:
        >>> recorder = jaxsink.record.received().then(jaxsink.reduce.histogram((0.0, 1.0, 4.0)))
        >>> seen = jaxsink.forward(model, tokens, record=recorder)
        >>> int(seen.record[0, 0, 0].sum()) == tokens.shape[1]
        True
    """

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        check_fields(self, "reduce.histogram")

    def __call__(self, value: Received, tap: SeesKeys) -> Int[Array, "B H N"]:
        at_least = (value[..., None] >= jnp.array(self.edges, jnp.float32)) & tap.mask[:, None, :, None]
        reached = at_least.sum(axis=2)
        return reached - jnp.pad(reached[..., 1:], ((0, 0), (0, 0), (0, 1)))


@dataclass(frozen=True)
class head_mean:  # noqa: N801
    """f32[B,S]: the mean over heads.

    Examples:
        >>> recorder = jaxsink.record.received().then(jaxsink.reduce.head_mean())
        >>> seen = jaxsink.forward(model, tokens, record=recorder)
        >>> seen.record.shape  # layers, sequences, keys
        (4, 1, 19)
    """

    def __call__(self, value: Received, tap: SeesKeys) -> Float32[Array, "B S"]:
        return value.mean(axis=1)


@dataclass(frozen=True)
class sink_share:  # noqa: N801
    """f32[B,S]: the share of heads in which a key is a sink by Eq. 3, on scores whose mean over real keys is 1.

    Attributes:
        eps: the threshold

    Examples:
        >>> recorder = jaxsink.record.received().then(jaxsink.reduce.sink_share(eps=3.0))
        >>> seen = jaxsink.forward(model, tokens, record=recorder)
        >>> 0.0 <= float(seen.record.min()) <= float(seen.record.max()) <= 1.0
        True
    """

    eps: float = 3.0

    def __post_init__(self) -> None:
        check_fields(self, "reduce.sink_share")

    def __call__(self, value: Received, tap: SeesKeys) -> Float32[Array, "B S"]:
        mask = tap.mask[:, None, :]
        count = mask.sum(axis=-1, keepdims=True)
        total = jnp.where(mask, value, 0.0).sum(axis=-1, keepdims=True)
        score = value * count / jnp.maximum(total, 1e-30)  # a single query, of an autoregressive model, gives out 1
        return ((margin(score, mask) > self.eps) & mask).mean(axis=1)


@dataclass(frozen=True)
class sum_by_kind:  # noqa: N801
    """{"masked", "unmasked", "prompt": f32[B,H]}: what keys of each kind receive together.

    Examples:
        >>> recorder = jaxsink.record.received().then(jaxsink.reduce.sum_by_kind())
        >>> seen = jaxsink.forward(model, tokens, record=recorder)
        >>> sorted(seen.record)
        ['masked', 'prompt', 'unmasked']
    """

    def __call__(self, value: Received, tap: SeesKeys) -> dict[str, Float32[Array, "B H"]]:
        of_kind = [jnp.where((tap.key_kind == n)[:, None, :], value, 0.0).sum(axis=-1) for n in range(len(KINDS))]
        return dict(zip(KINDS, of_kind, strict=True))


@dataclass(frozen=True)
class top_channels:  # noqa: N801
    """Of `record.channels()`: the k channels with the largest mean, largest first.

    {"channel": i32[B,k]; "mean", "max", "first": f32[B,k]; "median": f32[B], the median channel's mean}

    Attributes:
        k: how many channels

    Examples:
        >>> recorder = jaxsink.record.channels().then(jaxsink.reduce.top_channels(3))
        >>> seen = jaxsink.forward(model, tokens, record=recorder)
        >>> seen.record["channel"].shape  # layers, sequences, channels
        (4, 1, 3)
    """

    k: int

    def __post_init__(self) -> None:
        check_fields(self, "reduce.top_channels", {"k": at_least(1)})

    def __call__(self, value: dict[str, Float32[Array, "B E"]], tap: SeesKeys) -> dict[str, Array]:
        width = value["mean"].shape[-1]
        if self.k > width:
            raise JaxsinkError(f"reduce.top_channels: there are {width} channels, fewer than {self.k}.")
        channel = lax.top_k(value["mean"], self.k)[1]
        kept = {name: jnp.take_along_axis(part, channel, axis=-1) for name, part in value.items()}
        return {"channel": channel, **kept, "median": jnp.median(value["mean"], axis=-1)}
