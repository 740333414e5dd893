"""Sink masking while the model generates, with the controls that tell "lost its sinks" from "lost any keys"."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray

from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.batch import count_tokens
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.softmax import hides
from jaxsink.recording.attention import received, where_hidden
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.interventions import HIDDEN_FROM_SOME, Previous, at_token_positions
from jaxsink.sinks.calibrate import calibrate_eps
from jaxsink.sinks.choices import (
    MATCHED,
    SELECTIONS,
    Per,
    RankOn,
    Rows,
    RuleName,
    Select,
    check_effect,
    check_settings,
)
from jaxsink.sinks.matched import as_much, draw_by_token, partners, random_order
from jaxsink.sinks.rules import Rule, Threshold, largest

__all__ = ["SELECTIONS", "Action", "Count", "MaskSinks", "Ranking"]

Action = Bool[Array, "L B H S"] | Float[Array, "L B H S"]
"""What an intervention returns: True drops a key, or a factor scales the attention that it gets."""

Count = Int[Array, "#L #B #H 1"] | int
"""How many keys to select: one number for all, or one per layer, sequence or head."""

Ranking = tuple[Float[Array, "L B H S"], Bool[Array, "L B H S"], Count]
"""(scores, keys to choose among, how many of the largest of them to take)."""


@dataclass(frozen=True)
class MaskSinks:
    """An `intervene` for generate: drop, in every step, the sinks of the step before, per layer and head.

    Attributes:
        k: how many keys to drop
        select: "top" drops the sinks, "top_not_first" those that are not the sequence's first token, "first"
            the first k tokens whatever they receive. Controls drop other keys: "random" as many, drawn anew in
            every step; "bottom" as many that receive least; "partner" as many, each hidden as long as its sink;
            "mass" random keys that together receive as much. See docs/sinks.md
        rule: None or "top_k": exactly k; "threshold": all that pass Eq. 3 with `eps`; "top_k_above": both; or a
            Rule: the k largest of those it finds
        rank_on: "masked": rank what the running, masked model paid attention to, so that a dropped key (which
            receives 0) may come back a step later; "clean": rank an extra, unmasked pass per step
        per: "head": each head drops its own; "layer": all heads of a layer drop those with the largest mean
            score
        layers: layers to act in (None = all)
        spare: steps at the start in which nothing is dropped (the first never drops anything, as there is no
            map yet)
        positions: fixed token positions instead of a rule; the controls then drop as many
        keep: the mirror image: drop everything but the selected keys
        factor: 0 drops; otherwise the attention that the selected keys get is multiplied by this before each
            query re-normalises
        share: k as a share of the sequence's real tokens, instead of k: at least one key
        rows: whose attention is masked, and ranked: keys are chosen by what these queries look at. None: as the
            sampler does it. An autoregressive step has the "newest" query on cached keys and values; with "all"
            it runs all queries again in every step, prompt included. A step of a diffusion model runs "all" of
            them; with "decoded" only the queries from which masks of the current window are read (one to the
            left where logits are shifted) lose keys, with "masked" those whose token is a mask: all others, and
            what is cached of them, stay as they are

    Examples:
        >>> for policy in (jaxsink.sinks.MaskSinks(k=2), jaxsink.sinks.MaskSinks(k=2, select="random")):
        ...     hidden = jaxsink.generate(model, question, sampler, intervene=policy)
        ...     print(policy.select, hidden.tokens.shape == out.tokens.shape)
        ...
        top True
        random True
    """

    k: int = 1
    select: Select = "top"
    rule: RuleName | Rule | None = None
    rank_on: RankOn = "masked"
    eps: float = 3.0
    per: Per = "head"
    layers: tuple[int, ...] | None = None
    spare: int = 0
    positions: tuple[int, ...] | None = None
    keep: bool = False
    factor: float = 0.0
    share: float | None = None
    rows: Rows | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    @checked(k=at_least(0))
    def calibrated(
        cls,
        received: Float[ArrayLike, "*axes S"],
        k: float,
        mask: Shaped[ArrayLike, "..."] | None = None,
        select: Select = "top",
        rank_on: RankOn = "masked",
        rows: Rows | None = None,
    ) -> MaskSinks:
        """Drop all sinks, with ε such that k keys per head and step pass Eq. 3 on average of these records.

        Examples:
            >>> policy = jaxsink.sinks.MaskSinks.calibrated(out.record, k=1, mask=out.mask)
            >>> policy.rule, policy.eps > 0
            ('threshold', True)
        """
        return cls(select=select, rule="threshold", rank_on=rank_on, eps=calibrate_eps(received, k, mask), rows=rows)

    @checked()
    def control(self, select: Select) -> MaskSinks:
        """The same policy with other keys, in the same layers and heads, at the same steps.

        Examples:
            >>> other = jaxsink.sinks.MaskSinks(k=2, layers=(1,)).control("partner")
            >>> other.select, other.k, other.layers
            ('partner', 2, (1,))
        """
        if select not in MATCHED or self.select not in ("first", "top_not_first"):
            return replace(self, select=select)
        if self.select == "top_not_first" or self.share is not None:
            raise JaxsinkError(
                f"MaskSinks: select={select!r} follows the top sinks, or fixed positions; choose another."
            )
        return replace(self, select=select, positions=tuple(range(self.k)))

    def check(self, config: ModelConfig, sampler: Sampler | None, lengths: Int[ndarray, " B"] | None) -> None:
        """Raise a JaxsinkError if the policy cannot have an effect in such a run.

        Examples:
            >>> jaxsink.sinks.MaskSinks(k=2).check(model.config, sampler, np.array([20]))  # nothing to object to
        """
        check_effect(self, config, sampler, lengths)

    @property
    def hides_the_same(self) -> bool:
        """Whatever is recorded, it hides the sequence's first token from the second step on.

        Examples:
            >>> jaxsink.sinks.MaskSinks(select="first").hides_the_same, jaxsink.sinks.MaskSinks().hides_the_same
            (True, False)
        """
        return self.select == "first" and self.k == 1 and self.share is None and not self.keep and self.spare <= 1

    @property
    def needs(self) -> Recorder:
        """What the queries that lose keys paid attention to."""
        return where_hidden(received()) if self.rows in HIDDEN_FROM_SOME else received()

    @property
    def has_targets(self) -> bool:
        """Does it have to know what it was after in the step before? Clean maps show all keys in every step."""
        return self.select in MATCHED and self.rank_on == "masked"

    def __call__(self, previous: Previous) -> Action:
        k = self.count(previous.mask)
        if self.select in MATCHED:
            known = previous.targets if self.has_targets else None
            found = self.matched(self.targets(previous) if known is None else known, previous)
        else:
            found = largest(*self.ranking(previous, k))
        return self.acting(found, previous)

    def targets(self, previous: Previous) -> Bool[Array, "L B H S"]:
        """What "top" would drop in this step: the keys that a matched control follows."""
        found = largest(*self.target_ranking(previous, self.count(previous.mask)))
        return found & self.acts(previous)

    def count(self, mask: Bool[Array, "B S"]) -> Count:
        """K: the same for all sequences, or that of each by its number of tokens."""
        if self.share is None:
            return self.k
        by_length = [self.count_of(length) for length in range(mask.shape[1] + 1)]
        return jnp.array(by_length, jnp.int32)[mask.sum(axis=1)][None, :, None, None]

    def count_of(self, length: int) -> int:
        """K for a sequence of so many tokens.

        Examples:
            >>> jaxsink.sinks.MaskSinks(share=0.03).count_of(100)
            3
        """
        return self.k if self.share is None else max(1, round(self.share * length))

    def ranking(self, previous: Previous, k: Count) -> Ranking:
        """What the policy selects, unless it is a matched control.

        `k` stands for the policy's own, so that policies that differ in it alone can share one search.
        """
        scores, real = self.scores(previous), everywhere(previous.mask, previous.record)
        token_position = count_tokens(previous.mask)[None, :, None, :]
        if self.select == "first":
            return scores, real & (token_position < k), scores.shape[-1]
        among, count = self.candidates(scores, real, previous, k)
        if self.select == "top":
            return scores, among, count
        if self.select == "top_not_first":
            return scores, among & (token_position > 0), count
        if among is not real:
            count = jnp.minimum(among.sum(axis=-1, keepdims=True), count)
        return (-scores if self.select == "bottom" else self.random_scores(previous, scores)), real, count

    def target_ranking(self, previous: Previous, k: Count) -> Ranking:
        """What "top" would select if its keys of the step before had been hidden, as a matched control never does.

        A hidden key receives 0, and what it would have received goes to the others; that matters to rules, which compare
        with a mean.
        """
        scores, real = self.scores(previous), everywhere(previous.mask, previous.record)
        if self.has_targets and previous.targets is not None:
            left = jnp.where(previous.targets, 0.0, scores)
            if self.rule not in (None, "top_k"):
                before, after = (jnp.where(real, x, 0.0).sum(axis=-1, keepdims=True) for x in (scores, left))
                left = left * (before / jnp.maximum(after, 1e-30))
            scores = left
        return scores, *self.candidates(scores, real, previous, k)

    def scores(self, previous: Previous) -> Float[Array, "L B H S"]:
        """What keys are ranked by: what they received, in each head or in the mean over heads."""
        scores: Float[Array, "L B H S"] = previous.record
        if self.per == "layer":
            return jnp.broadcast_to(scores.mean(axis=2, keepdims=True), scores.shape)
        return scores

    def candidates(
        self, scores: Float[Array, "L B H S"], real: Bool[Array, "L B H S"], previous: Previous, k: Count
    ) -> tuple[Bool[Array, "L B H S"], Count]:
        """(keys, how many of them to take): what the rule, or the fixed positions, leave to choose among."""
        if self.positions is not None:
            return everywhere(at_token_positions(previous.mask, self.positions), scores), scores.shape[-1]
        if self.rule is None or self.rule == "top_k":
            return real, k
        rule = Threshold(self.eps) if isinstance(self.rule, str) else self.rule
        return rule.find(scores, real), scores.shape[-1] if self.rule == "threshold" else k

    def matched(self, targets: Bool[Array, "L B H S"], previous: Previous) -> Bool[Array, "L B H S"]:
        """The keys of a matched control. Of a key that was hidden nobody knows what it would receive: "mass" lets it come
        back, as a hidden sink does."""
        layers, _, heads, _ = targets.shape
        keys = previous.keys if previous.run_keys is None else previous.run_keys
        canvas = previous.mask if previous.canvas is None else previous.canvas
        order = random_order(keys, canvas, layers, heads if self.per == "head" else 1)
        order = jnp.broadcast_to(order, targets.shape)
        if self.select == "partner":
            return partners(targets, order, previous.mask)
        others = everywhere(previous.mask, targets) & ~targets
        if self.rank_on == "masked":
            others = others & ~hides(previous.drop)
        return as_much(self.scores(previous), targets, others, order)

    def acting(self, found: Bool[Array, "L B H S"], previous: Previous) -> Action:
        """What happens to the selected keys, where and when the policy acts."""
        drop = everywhere(previous.mask, found) & ~found if self.keep else found
        drop = drop & self.acts(previous)
        return drop if self.factor == 0 else jnp.where(drop, self.factor, 1.0)

    def acts(self, previous: Previous) -> Bool[Array, "#L 1 1 1"]:
        """In which layers it acts in this step."""
        now = jnp.reshape(previous.step >= self.spare, (1, 1, 1, 1))
        if self.layers is None:
            return now
        return now & jnp.isin(jnp.arange(previous.record.shape[0]), jnp.array(self.layers))[:, None, None, None]

    def random_scores(self, previous: Previous, scores: Float[Array, "L B H S"]) -> Float[Array, "L B H S"]:
        """Random numbers that depend on seed, step and token position."""
        layers, _, heads, _ = scores.shape
        drawn = draw_by_token(previous.keys, previous.mask, layers, heads if self.per == "head" else 1)
        return jnp.broadcast_to(drawn, scores.shape)


def everywhere(tokens: Bool[Array, "B S"], like: Shaped[Array, "L B H S"]) -> Bool[Array, "L B H S"]:
    """The same tokens in every layer and head."""
    return jnp.broadcast_to(tokens[None, :, None, :], like.shape)
