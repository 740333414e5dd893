"""Several masking policies in one batch, so that all conditions of an experiment share one compiled program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from jaxsink.errors import JaxsinkError
from jaxsink.recording.recorders import received
from jaxsink.sampling.interventions import Previous, ranks_on_clean
from jaxsink.sinks.mask import Action, MaskSinks
from jaxsink.sinks.rules import largest

Policies = tuple[MaskSinks | None, ...]


@dataclass(frozen=True)
class Turns:
    """An `intervene` for generate: every sequence follows one of the policies; None drops nothing.

    `generate(..., policies=[...])` says which; otherwise sequence b follows policies[b modulo their number].
    Sequences do not notice each other, so each gets what it would get under its policy alone, whatever the batch and
    however it is split over devices.
    """

    policies: Policies

    needs = received()

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", tuple(self.policies))
        if not self.policies:
            raise JaxsinkError("Turns needs at least one policy.")
        if len({ranks_on_clean(policy) for policy in self.policies if policy is not None}) > 1:
            raise JaxsinkError("Turns: some policies rank on clean maps and some do not; run them separately.")

    @property
    def rank_on(self) -> str:
        return "clean" if any(ranks_on_clean(policy) for policy in self.policies if policy is not None) else "masked"

    def __call__(self, previous: Previous) -> Action:
        batch = previous.tokens.shape[0]
        which = jnp.arange(batch) if previous.policy is None else previous.policy
        which = which % len(self.policies)
        found = self.found(previous, which)
        parts = [(members, policy.acting(found, previous)) for members, policy in self.alike(ignore_rule=True)]
        by_factor = any(jnp.issubdtype(part.dtype, jnp.floating) for _, part in parts)
        action = jnp.ones(found.shape, jnp.float32) if by_factor else jnp.zeros(found.shape, bool)
        for members, part in parts:
            if by_factor and part.dtype == bool:
                part = jnp.where(part, 0.0, 1.0)
            action = jnp.where(follows(which, members), part, action)
        return action

    def found(self, previous: Previous, which: Int[Array, " B"]) -> Bool[Array, "L B H S"]:
        """The keys that each sequence's policy selects, by one search for all of them."""
        scores = jnp.zeros(previous.record.shape, jnp.float32)
        among = jnp.zeros(scores.shape, bool)
        count = jnp.zeros((1, len(which), 1, 1), jnp.int32)
        numbers = jnp.array([0 if policy is None else policy.k for policy in self.policies], jnp.int32)
        own_k = numbers[which][None, :, None, None]
        for members, policy in self.alike():
            mine = follows(which, members)
            ranked, eligible, wanted = policy.ranking(previous, own_k)
            scores = jnp.where(mine, ranked, scores)
            among = jnp.where(mine, eligible, among)
            count = jnp.where(mine, wanted, count)
        return largest(scores, among, count)

    def alike(self, ignore_rule: bool = False) -> Iterator[tuple[tuple[int, ...], MaskSinks]]:
        """(numbers of policies, one of them): those that differ in k alone, or also in what they select, go together."""
        groups: dict[MaskSinks, list[int]] = {}
        for number, policy in enumerate(self.policies):
            if policy is not None:
                key = replace(policy, k=0)
                if ignore_rule:
                    key = replace(key, select="top", rule=None, positions=None, per="head")
                groups.setdefault(key, []).append(number)
        for members in groups.values():
            policy = self.policies[members[0]]
            assert policy is not None
            yield tuple(members), policy


def follows(which: Int[Array, " B"], members: tuple[int, ...]) -> Bool[Array, "1 B 1 1"]:
    """True for sequences that follow one of these policies."""
    return jnp.isin(which, jnp.array(members))[None, :, None, None]
