"""Sink masking while the model generates, with the controls that tell "lost its sinks" from "lost any keys"."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsink.errors import JaxsinkError
from jaxsink.recording.recorders import received
from jaxsink.sampling.interventions import Previous, at_token_positions
from jaxsink.sinks.rules import Rule, Threshold, largest

SELECTIONS = ("top", "random", "bottom")
NAMED_RULES = ("top_k", "threshold", "top_k_above")

Action = Bool[Array, "L B H S"] | Float[Array, "L B H S"]
"""What an intervention returns: True drops a key, or a factor scales the attention that it gets."""

Count = Int[Array, "#L #B #H 1"] | int
"""How many keys to select: one number for all, or one per layer, sequence or head."""


@dataclass(frozen=True)
class MaskSinks:
    """An `intervene` for generate: drop, in every step, the sinks of the step before, per layer and head.

    k        how many keys to drop
    select   "top" drops the sinks; "random" and "bottom" are its controls: as many keys, chosen at random or those that
             receive least
    rule     None or "top_k": exactly k; "threshold": all that pass Eq. 3 with `eps`; "top_k_above": both; or a Rule: the k
             largest of those it finds
    rank_on  "masked": rank what the running, masked model paid attention to, so that a dropped key (which receives 0) may
             come back a step later; "clean": rank an extra, unmasked pass per step
    per      "head": each head drops its own; "layer": all heads of a layer drop those with the largest mean score
    layers   layers to act in (None = all)
    spare    steps at the start in which nothing is dropped (the first never drops anything, as there is no map yet)
    positions  fixed token positions instead of a rule; the controls then drop as many
    keep     the mirror image: drop everything but the selected keys
    factor   0 drops; otherwise the attention that the selected keys get is multiplied by this before each query
             re-normalises

    For autoregressive models the ranking uses the attention of the newest query, because that is what their loop records.
    """

    k: int = 1
    select: Literal["top", "random", "bottom"] = "top"
    rule: str | Rule | None = None
    rank_on: Literal["masked", "clean"] = "masked"
    eps: float = 3.0
    per: Literal["head", "layer"] = "head"
    layers: tuple[int, ...] | None = None
    spare: int = 0
    positions: tuple[int, ...] | None = None
    keep: bool = False
    factor: float = 0.0

    needs = received()

    def __post_init__(self) -> None:
        if self.k < 0:
            raise JaxsinkError(f"MaskSinks: k must not be negative, and is {self.k}.")
        for name, value, known in (
            ("select", self.select, SELECTIONS),
            ("rank_on", self.rank_on, ("masked", "clean")),
            ("per", self.per, ("head", "layer")),
        ):
            if value not in known:
                raise JaxsinkError(f"MaskSinks: {name} must be one of {', '.join(known)}, not {value!r}.")
        if isinstance(self.rule, str) and self.rule not in NAMED_RULES:
            raise JaxsinkError(f"MaskSinks: rule must be one of {', '.join(NAMED_RULES)} or a rule, not {self.rule!r}.")
        if not (0 <= self.factor < float("inf")):
            raise JaxsinkError(f"MaskSinks: factor must be 0 or a positive number, and is {self.factor}.")
        if self.positions is not None and self.rule is not None:
            raise JaxsinkError("MaskSinks: give either a rule or fixed positions, not both.")
        for name in ("layers", "positions"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(int(number) for number in getattr(self, name)))

    def control(self, select: Literal["random", "bottom"]) -> MaskSinks:
        """The same policy with other keys: as many, in the same layers and heads, at the same steps."""
        return replace(self, select=select)

    def __call__(self, previous: Previous) -> Action:
        return self.acting(largest(*self.ranking(previous, self.k)), previous)

    def ranking(self, previous: Previous, k: Count) -> tuple[Float[Array, "L B H S"], Bool[Array, "L B H S"], Count]:
        """(scores, keys to choose among, how many): the policy selects that many of the largest.

        `k` stands for the policy's own, so that policies that differ in it alone can share one search.
        """
        scores: Float[Array, "L B H S"] = previous.record
        if self.per == "layer":
            scores = jnp.broadcast_to(scores.mean(axis=2, keepdims=True), scores.shape)
        real = jnp.broadcast_to(previous.mask[None, :, None, :], scores.shape)
        among, count = self.candidates(scores, real, previous, k)
        if self.select == "top":
            return scores, among, count
        if among is not real:
            count = jnp.minimum(among.sum(axis=-1, keepdims=True), count)
        return (-scores if self.select == "bottom" else self.random_scores(previous, scores)), real, count

    def candidates(
        self, scores: Float[Array, "L B H S"], real: Bool[Array, "L B H S"], previous: Previous, k: Count
    ) -> tuple[Bool[Array, "L B H S"], Count]:
        """(keys, how many of them to take): what the rule, or the fixed positions, leave to choose among."""
        if self.positions is not None:
            fixed = at_token_positions(previous.mask, self.positions)[None, :, None, :]
            return jnp.broadcast_to(fixed, scores.shape), scores.shape[-1]
        if self.rule is None or self.rule == "top_k":
            return real, k
        rule = Threshold(self.eps) if isinstance(self.rule, str) else self.rule
        return rule.find(scores, real), scores.shape[-1] if self.rule == "threshold" else k

    def acting(self, found: Bool[Array, "L B H S"], previous: Previous) -> Action:
        """What happens to the selected keys, where and when the policy acts."""
        real = jnp.broadcast_to(previous.mask[None, :, None, :], found.shape)
        drop = real & ~found if self.keep else found
        if self.layers is not None:
            drop = drop & jnp.isin(jnp.arange(found.shape[0]), jnp.array(self.layers))[:, None, None, None]
        drop = drop & (previous.step >= self.spare)
        return drop if self.factor == 0 else jnp.where(drop, self.factor, 1.0)

    def random_scores(self, previous: Previous, scores: Float[Array, "L B H S"]) -> Float[Array, "L B H S"]:
        """Random numbers that depend on seed, step and token position, so that neither batch nor padding changes them."""
        layers, _, heads, _ = scores.shape
        token_position = jnp.cumsum(previous.mask, axis=1)
        shape = (layers, heads if self.per == "head" else 1)

        def draw(key: Array, position: Array) -> Array:
            return jax.random.uniform(jax.random.fold_in(key, position), shape)

        drawn: Float[Array, "B S L H"] = jax.vmap(jax.vmap(draw, (None, 0)))(previous.keys, token_position)
        return jnp.broadcast_to(drawn.transpose(2, 0, 3, 1), scores.shape)
