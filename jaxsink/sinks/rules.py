"""Every published sink definition behind one interface: a rule turns received scores into a map of sinks.

    detect(out.record, Threshold(eps=3.0), mask=out.mask)                # bool, same shape as the record
    detect(out.record, TopK(5) & Threshold(3.0), mask=out.mask)          # both

Scores are the attention that each key receives, as `record.received()` gives it, with any leading axes ("*axes S"). A mask
is [B,S] for records [..., B, H, S], [T,B,S] for records [T, L, B, H, S], or anything that broadcasts to the scores. Padded
tokens are never sinks and count nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Shaped

from jaxsink.checks import at_least, check_fields
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.inputs import as_numbers
from jaxsink.parallel.mesh import Device
from jaxsink.parallel.pmap import pmap_batch
from jaxsink.recording.margin import margin

RANGES = {"k": at_least(0)}


class Rule:
    """What counts as a sink. A subclass is a frozen dataclass with `find`; combine rules with & and |.

    Examples:
        >>> strong = jaxsink.sinks.Threshold(eps=3.0) & jaxsink.sinks.TopK(1)  # at most one per head
        >>> jaxsink.sinks.detect(np.array([[5.0, 4.0, *[0.2] * 8]]), strong).sum().item()
        1
        >>> strong.find(jnp.array([[5.0, 4.0, *[0.2] * 8]]), jnp.ones((1, 10), bool)).sum().item()
        1
    """

    def __post_init__(self) -> None:
        check_fields(self, type(self).__name__, RANGES)

    def find(self, scores: Float[Array, "*axes S"], real: Bool[Array, "#*axes S"]) -> Bool[Array, "*axes S"]:
        """True at the sinks. `real` (False = padding) has size 1 along axes on which it does not depend."""
        raise NotImplementedError

    def __and__(self, other: Rule) -> Rule:
        return Both(self, other)

    def __or__(self, other: Rule) -> Rule:
        return Either(self, other)


@dataclass(frozen=True)
class Threshold(Rule):
    """Eq. 3 of the study: the score exceeds the mean of the other tokens' scores by more than ε.

    Attributes:
        eps: the threshold
        scale: "sum" takes column sums, whose mean is 1 (what the study's plots show). "mean" is the formula as printed:
            scores are divided by the number of tokens, lie in [0, 1], and ε = 3 never fires

    Examples:
        >>> scores = np.array([[6.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]])
        >>> jaxsink.sinks.detect(scores, jaxsink.sinks.Threshold(eps=3.0)).tolist()
        [[True, False, False, False, False, False, False]]
    """

    eps: float = 3.0
    scale: Literal["sum", "mean"] = "sum"

    def find(self, scores: Float[Array, "*axes S"], real: Bool[Array, "#*axes S"]) -> Bool[Array, "*axes S"]:
        if self.scale == "mean":
            scores = scores / jnp.maximum(real.sum(axis=-1, keepdims=True), 1)
        return real & (margin(scores, real) > self.eps)


@dataclass(frozen=True)
class Importance(Rule):
    """Gu et al.: the score divided by the number of queries that can see the token exceeds ε.

    Attributes:
        eps: the threshold, a share of the attention
        causal: the tokens from it on can see it; otherwise all tokens

    Examples:
        >>> scores = np.array([[3.0, 0.5, 0.3, 0.2]])
        >>> jaxsink.sinks.detect(scores, jaxsink.sinks.Importance(eps=0.3)).tolist()
        [[True, False, False, False]]
    """

    eps: float = 0.3
    causal: bool = False

    def find(self, scores: Float[Array, "*axes S"], real: Bool[Array, "#*axes S"]) -> Bool[Array, "*axes S"]:
        count = real.sum(axis=-1, keepdims=True)
        seen_by = count - jnp.cumsum(real, axis=-1) + 1 if self.causal else count
        return real & (scores / jnp.maximum(seen_by, 1) > self.eps)


@dataclass(frozen=True)
class Outlier(Rule):
    """The score exceeds the mean over tokens by more than so many standard deviations.

    Attributes:
        sigmas: how many

    Examples:
        >>> scores = np.array([[9.0, *[0.5] * 15]])
        >>> int(jaxsink.sinks.detect(scores, jaxsink.sinks.Outlier(sigmas=3.0)).sum())
        1
    """

    sigmas: float = 3.0

    def find(self, scores: Float[Array, "*axes S"], real: Bool[Array, "#*axes S"]) -> Bool[Array, "*axes S"]:
        count = jnp.maximum(real.sum(axis=-1, keepdims=True), 1)
        mean = jnp.where(real, scores, 0.0).sum(axis=-1, keepdims=True) / count
        spread = jnp.sqrt(jnp.where(real, jnp.square(scores - mean), 0.0).sum(axis=-1, keepdims=True) / count)
        return real & (scores > mean + self.sigmas * spread)


@dataclass(frozen=True)
class TopK(Rule):
    """The k largest scores, or all tokens if there are fewer; equal scores in order of position.

    Attributes:
        k: how many

    Examples:
        >>> jaxsink.sinks.detect(np.array([[1.0, 3.0, 3.0]]), jaxsink.sinks.TopK(1)).tolist()  # of equal scores the first
        [[False, True, False]]
    """

    k: int

    def __post_init__(self) -> None:
        check_fields(self, "TopK", {"k": at_least(1)})

    def find(self, scores: Float[Array, "*axes S"], real: Bool[Array, "#*axes S"]) -> Bool[Array, "*axes S"]:
        return largest(scores, real, self.k)


@dataclass(frozen=True)
class Both(Rule):
    """What both rules find: `first & second`."""

    first: Rule
    second: Rule

    def find(self, scores: Float[Array, "*axes S"], real: Bool[Array, "#*axes S"]) -> Bool[Array, "*axes S"]:
        return self.first.find(scores, real) & self.second.find(scores, real)


@dataclass(frozen=True)
class Either(Rule):
    """What one of the rules finds: `first | second`."""

    first: Rule
    second: Rule

    def find(self, scores: Float[Array, "*axes S"], real: Bool[Array, "#*axes S"]) -> Bool[Array, "*axes S"]:
        return self.first.find(scores, real) | self.second.find(scores, real)


@checked()
def detect(
    received: Float[ArrayLike, "*axes S"],
    rule: Rule,
    mask: Shaped[ArrayLike, "..."] | None = None,
    devices: Sequence[Device] | None = None,
) -> Bool[Array, "*axes S"]:
    """Which tokens are sinks, from the attention that each receives.

    Args:
        received: from `record.received()`, or any scores whose last axis is the sequence
        rule: what counts as a sink
        mask: True = real token: [B,S] for records [..., B, H, S], [T,B,S] for records [T, L, B, H, S]
        devices: split the batch of a record [..., B, H, S] over these devices by pmap

    Examples:
        >>> sinks = jaxsink.sinks.detect(out.record, jaxsink.sinks.Threshold(eps=3.0), out.mask)
        >>> sinks.shape == out.record.shape, sinks.dtype.name
        (True, 'bool')
    """
    scores, real = with_mask(received, mask)
    if devices is None:
        return _detect(scores, real, rule)
    if scores.ndim < 3:
        raise JaxsinkError(
            f"detect: to be split over devices, a record must be [..., B, H, S], not of shape {scores.shape}."
        )
    axis = scores.ndim - 3
    real = real.reshape(*[1] * (scores.ndim - real.ndim), *real.shape)
    in_axes = (axis, axis if real.shape[axis] > 1 else None)
    return pmap_batch(_detect, (scores, real), in_axes, axis, devices, static={"rule": rule})


@partial(jax.jit, static_argnames="rule")
def _detect(scores: Float[Array, "*axes S"], real: Bool[Array, "..."], rule: Rule) -> Bool[Array, "*axes S"]:
    return rule.find(scores, jnp.broadcast_to(real, scores.shape))


@checked()
def sweep(
    received: Float[ArrayLike, "*axes S"],
    eps: Sequence[float],
    mask: Shaped[ArrayLike, "..."] | None = None,
    scale: Literal["sum", "mean"] = "sum",
) -> Float[Array, "*axes eps"]:
    """The share of real tokens that are not sinks under Eq. 3, for every ε at once (Fig. 10).

    Args:
        received: as for `detect`
        eps: the thresholds
        mask: as for `detect`
        scale: as for `Threshold`

    Examples:
        >>> jaxsink.sinks.sweep(np.array([6.0, 0.5, 0.5, 0.5]), eps=(3.0, 6.0)).tolist()
        [0.75, 1.0]
    """
    scores, real = with_mask(received, mask)
    return _sweep(scores, real, jnp.asarray(eps, jnp.float32), scale)


@partial(jax.jit, static_argnames="scale")
def _sweep(
    scores: Float[Array, "*axes S"], real: Bool[Array, "..."], eps: Float[Array, " eps"], scale: str
) -> Float[Array, "*axes eps"]:
    real = jnp.broadcast_to(real, scores.shape)
    count = jnp.maximum(real.sum(axis=-1, keepdims=True), 1)
    above = margin(scores / count if scale == "mean" else scores, real)
    return ((above[..., None] <= eps) & real[..., None]).sum(axis=-2) / count


@checked(block_length=at_least(1))
def visibility_normalised(
    received: Float[ArrayLike, "*axes S"],
    mask: Shaped[ArrayLike, "..."] | None = None,
    *,
    causal: bool = False,
    block_length: int | None = None,
    by: Literal["queries", "uniform"] = "queries",
) -> Float[Array, "*axes S"]:
    """Scores that do not favour keys which many queries can see, as early ones of a causal map.

    by "queries": the mean over the queries that can see the key (Gu et al.'s α), times the number of tokens; by "uniform":
    over what uniform attention would give to the key. In a bidirectional map every query sees every key, so scores stay as
    they are. In a causal one the query i sees i + 1 tokens: the first of 140 keys is seen by 140 queries, and uniform
    attention gives it Σ 1/(i+1) = 5.5; the last by one, which gives it 1/140. So by "uniform" whatever a late query attends
    to counts as a multiple of very little, and the strongest keys are the last; by "queries" each query weighs the same.

    The result works with every rule and with `track`.

    Args:
        received: of whole maps (all queries so far), as `record.received()` gives it; for autoregressive models
            with `ARSampler(whole_map=True)`
        mask: as for `detect`; padded keys get 0
        block_length: of a block-causal model, whose tokens also see the rest of their block

    Examples:
        >>> causal = np.tril(np.ones((4, 4))) / np.arange(1, 5)[:, None]  # every query attends evenly to what it sees
        >>> received = causal.sum(axis=0)
        >>> np.round(jaxsink.sinks.visibility_normalised(received, causal=True, by="uniform"), 2).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """
    scores, real = with_mask(received, mask)
    if block_length is not None and causal:
        raise JaxsinkError("visibility_normalised: block_length is for block-causal models, without causal=True.")
    return _visibility_normalised(scores, real, 1 if causal else block_length, by)


@partial(jax.jit, static_argnames=("block", "by"))
def _visibility_normalised(
    scores: Float[Array, "*axes S"], real: Bool[Array, "..."], block: int | None, by: str
) -> Float[Array, "*axes S"]:
    """block: tokens that see each other whatever their order; None = all."""
    expected = jnp.float32(1.0)
    if block is not None:
        expected = uniform_received(real, block) if by == "uniform" else share_that_sees(real, block)
    return jnp.where(real, scores / jnp.where(real, expected, 1.0), 0.0)


def share_that_sees(real: Bool[Array, "*axes S"], block: int) -> Float[Array, "*axes S"]:
    """Of all queries, those that see the key: from the first of its block on."""
    number = jnp.cumsum(real, axis=-1) - 1
    total = jnp.maximum(real.sum(axis=-1, keepdims=True), 1)
    return (total - number // block * block) / total


def uniform_received(real: Bool[Array, "*axes S"], block: int) -> Float[Array, "*axes S"]:
    """What each key gets if every real query attends equally to all that it sees: its block and the tokens before that."""
    number = jnp.cumsum(real, axis=-1) - 1
    seen = jnp.minimum((number // block + 1) * block, real.sum(axis=-1, keepdims=True))
    paid = jnp.where(real, 1 / jnp.maximum(seen, 1), 0.0)  # by each query to each key that it sees
    by_later = jnp.cumsum(paid[..., ::-1], axis=-1)[..., ::-1]  # small numbers are added up first
    return by_later + (number % block) * paid  # all queries of a block pay the same


def largest(
    scores: Float[Array, "*axes S"], real: Bool[Array, "#*axes S"], count: Int[Array, "#*axes 1"] | int
) -> Bool[Array, "*axes S"]:
    """True at the `count` largest of the real scores, or at all of them if there are fewer; ties in order of position.

    The smallest of them is found bit by bit: integers in the order of the scores are compared 32 times, which takes a
    tenth of the time of a sort.
    """
    if isinstance(count, int) and count >= scores.shape[-1]:
        return jnp.broadcast_to(real, scores.shape)
    bits = lax.bitcast_convert_type(scores, jnp.uint32)
    bits = jnp.where(
        bits << 1 == 0, 0, bits
    )  # -0 equals 0; tested on bits, because devices flush denormal numbers to 0
    ordered = jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))
    ordered = jnp.where(real, ordered, 0)  # below every number

    def lower(n: Array, limit: Array) -> Array:
        higher = limit | (jnp.uint32(1 << 31) >> n.astype(jnp.uint32))
        enough = (ordered >= higher).sum(axis=-1, keepdims=True) >= count
        return jnp.where(enough, higher, limit)

    if isinstance(count, int) and count == 1:
        limit = ordered.max(axis=-1, keepdims=True)
    else:
        limit = lax.fori_loop(0, 32, lower, jnp.zeros((*ordered.shape[:-1], 1), jnp.uint32))
    above, equal = ordered > limit, (ordered == limit) & real
    left = count - above.sum(axis=-1, keepdims=True)
    return above | (equal & (jnp.cumsum(equal, axis=-1) <= left))


def with_mask(
    received: Shaped[ArrayLike, "*axes S"], mask: Shaped[ArrayLike, "..."] | None
) -> tuple[Float[Array, "*axes S"], Bool[Array, "..."]]:
    """Scores as float32, and a mask that broadcasts to them."""
    scores = jnp.asarray(as_numbers("received scores", received), jnp.float32)
    if scores.ndim == 0:
        raise JaxsinkError("received scores need at least one axis, the sequence.")
    if mask is None:
        return scores, jnp.ones(scores.shape[-1], bool)
    real = jnp.asarray(as_numbers("mask", mask)).astype(bool)
    if real.ndim == 2 and scores.ndim >= 3:
        real = real[:, None, :]
    elif real.ndim == 3 and scores.ndim == 5:
        real = real[:, None, :, None, :]
    try:
        fits = np.broadcast_shapes(real.shape, scores.shape) == scores.shape
    except ValueError:
        fits = False
    if not fits:
        raise JaxsinkError(f"a mask of shape {np.shape(mask)} does not fit scores of shape {scores.shape}.")
    return scores, real
