"""Hiding sinks while the model generates, with the controls that tell "lost its sinks" from "lost any keys"."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from jaxsink.errors import JaxsinkError
from jaxsink.recording.recorders import received
from jaxsink.sampling.interventions import Previous, at_token_positions
from jaxsink.sinks.rules import Rule, Threshold, largest

SELECTIONS = ("top", "random", "bottom")
NAMED_RULES = ("top_k", "threshold", "top_k_above")


@dataclass(frozen=True)
class MaskSinks:
    """An `intervene` for generate: hide, in every step, the sinks of the step before, per layer and head.

    k        how many keys to hide
    select   "top" hides the sinks; "random" and "bottom" are its controls: as many keys, chosen at random or those that
             receive least
    rule     None or "top_k": exactly k; "threshold": all that pass Eq. 3 with `eps`; "top_k_above": both; or a Rule: the k
             largest of those it finds
    rank_on  "masked": rank what the running, masked model paid attention to, so that a hidden key (which receives 0) may
             come back a step later; "clean": rank an extra, unmasked pass per step
    per      "head": each head hides its own; "layer": all heads of a layer hide those with the largest mean score
    layers   layers to act in (None = all)
    spare    steps at the start in which nothing is hidden (the first never hides anything, as there is no map yet)
    positions  fixed positions instead of a rule, counted from the prompt's first token; the controls then hide as many
    keep     the mirror image: hide everything but the selected keys
    factor   0 hides; otherwise the attention that the selected keys get is multiplied by this before rows re-normalise

    For autoregressive models the ranking uses the last token's attention row, because that is what their loop records.
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
        """The same policy with other keys: as many, in the same places of the network, at the same steps."""
        return replace(self, select=select)

    def __call__(self, previous: Previous) -> Array:
        return self.acting(largest(*self.ranking(previous, self.k)), previous)

    def ranking(self, previous: Previous, k: Array | int) -> tuple[Array, Array, Array | int]:
        """(scores f32[L,B,H,S], keys to choose among, how many): the policy selects that many of the largest.

        `k` stands for the policy's own, so that policies that differ in it alone can share one search.
        """
        scores = previous.record  # [L,B,H,S]
        if self.per == "layer":
            scores = jnp.broadcast_to(scores.mean(axis=2, keepdims=True), scores.shape)
        real = jnp.broadcast_to(previous.mask[None, :, None, :], scores.shape)
        among, count = self.candidates(scores, real, previous, k)
        if self.select == "top":
            return scores, among, count
        if among is not real:
            count = jnp.minimum(among.sum(axis=-1, keepdims=True), count)
        return (-scores if self.select == "bottom" else self.lots(previous, scores)), real, count

    def candidates(self, scores: Array, real: Array, previous: Previous, k: Array | int) -> tuple[Array, Array | int]:
        """(bool[L,B,H,S], how many of them): what the rule, or the fixed positions, leave to choose among."""
        if self.positions is not None:
            fixed = at_token_positions(previous.mask, self.positions)[None, :, None, :]
            return jnp.broadcast_to(fixed, scores.shape), scores.shape[-1]
        if self.rule is None or self.rule == "top_k":
            return real, k
        rule = Threshold(self.eps) if isinstance(self.rule, str) else self.rule
        return rule.find(scores, real), scores.shape[-1] if self.rule == "threshold" else k

    def acting(self, found: Array, previous: Previous) -> Array:
        """bool or f32[L,B,H,S]: what happens to the selected keys, where and when the policy acts."""
        real = jnp.broadcast_to(previous.mask[None, :, None, :], found.shape)
        hidden = real & ~found if self.keep else found
        if self.layers is not None:
            hidden = hidden & jnp.isin(jnp.arange(found.shape[0]), jnp.array(self.layers))[:, None, None, None]
        hidden = hidden & (previous.step >= self.spare)
        return hidden if self.factor == 0 else jnp.where(hidden, self.factor, 1.0)

    def lots(self, previous: Previous, scores: Array) -> Array:
        """f32[L,B,H,S]: random numbers by row, step and place, so that neither batch nor padding changes them."""
        count, _, heads, _ = scores.shape
        place = jnp.cumsum(previous.mask, axis=1)
        shape = (count, heads if self.per == "head" else 1)

        def one(key: Array, at: Array) -> Array:
            return jax.random.uniform(jax.random.fold_in(key, at), shape)

        drawn = jax.vmap(jax.vmap(one, (None, 0)))(previous.keys, place)  # [B,S,L,H]
        return jnp.broadcast_to(drawn.transpose(2, 0, 3, 1), scores.shape)
