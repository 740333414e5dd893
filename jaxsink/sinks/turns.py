"""Several masking policies in one batch, so that all conditions of an experiment share one compiled program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from jaxsink.checks import check_fields
from jaxsink.errors import JaxsinkError
from jaxsink.nn.recorder import Recorder
from jaxsink.recording.attention import received
from jaxsink.sampling.interventions import Previous, ranks_on_clean
from jaxsink.sinks.choices import MATCHED, RankOn, Rows
from jaxsink.sinks.mask import Action, Count, MaskSinks, Ranking
from jaxsink.sinks.rules import largest

Policies = tuple[MaskSinks | None, ...]
Rank = Callable[[MaskSinks, Previous, Count], Ranking]
Group = tuple[tuple[int, ...], MaskSinks]  # (numbers of policies, one of them)


@dataclass(frozen=True)
class Turns:
    """An `intervene` for generate: every sequence follows one of the policies.

    `generate(..., policies=[...])` says which; otherwise sequence b follows policies[b modulo their number].
    Sequences do not notice each other, so each gets what it would get under its policy alone, whatever the batch and
    however it is split over devices.

    Attributes:
        policies: interventions; None drops nothing

    Examples:
        >>> turns = jaxsink.sinks.Turns((None, jaxsink.sinks.MaskSinks(k=1)))
        >>> both = jaxsink.generate(model, [question, question], sampler, intervene=turns)
        >>> both.texts[0] == out.text  # nothing was hidden from the first sequence
        True
    """

    policies: Policies

    def __post_init__(self) -> None:
        check_fields(self, "Turns")
        if not self.policies:
            raise JaxsinkError("Turns needs at least one policy.")
        if len(set(map(ranks_on_clean, self.given))) > 1:
            raise JaxsinkError("Turns: some policies rank on clean maps and some do not; run them separately.")
        if len(set(map(protocol, self.given))) > 1:
            found = sorted(policy.rows or "the usual" for policy in self.given)
            raise JaxsinkError(f"Turns: policies mask {' and '.join(dict.fromkeys(found))} rows; run them separately.")

    @property
    def given(self) -> tuple[MaskSinks, ...]:
        """The policies that drop something."""
        return tuple(policy for policy in self.policies if policy is not None)

    @property
    def rank_on(self) -> RankOn:
        return "clean" if any(map(ranks_on_clean, self.given)) else "masked"

    @property
    def rows(self) -> Rows | None:
        return next(map(protocol, self.given), None)

    @property
    def needs(self) -> Recorder:
        return self.given[0].needs if self.given else received()

    @property
    def has_targets(self) -> bool:
        return any(policy.has_targets for policy in self.given)

    def __call__(self, previous: Previous) -> Action:
        which = self.which(previous)
        found = self.found(previous, which)
        parts = [(members, policy.acting(found, previous)) for members, policy in self.groups(as_they_act)]
        by_factor = any(jnp.issubdtype(part.dtype, jnp.floating) for _, part in parts)
        action = jnp.ones(found.shape, jnp.float32) if by_factor else jnp.zeros(found.shape, bool)
        for members, part in parts:
            if by_factor and part.dtype == bool:
                part = jnp.where(part, 0.0, 1.0)
            action = jnp.where(follows(which, members), part, action)
        return action

    def targets(self, previous: Previous) -> Bool[Array, "L B H S"]:
        """What matched controls are after; nothing where a sequence follows another policy."""
        which, groups = self.which(previous), list(self.groups(as_they_aim))
        found = self.search(groups, MaskSinks.target_ranking, previous, which)
        for members, policy in groups:
            found = found & (policy.acts(previous) | ~follows(which, members))
        return found

    def found(self, previous: Previous, which: Int[Array, " B"]) -> Bool[Array, "L B H S"]:
        """The keys that each sequence's policy selects."""
        found = self.search(list(self.groups(as_they_rank)), MaskSinks.ranking, previous, which)
        matched = list(self.groups(as_they_match))
        if matched:
            known = previous.targets if self.has_targets else None
            targets = self.targets(previous) if known is None else known
            for members, policy in matched:
                found = jnp.where(follows(which, members), policy.matched(targets, previous), found)
        return found

    def search(
        self, groups: list[Group], rank: Rank, previous: Previous, which: Int[Array, " B"]
    ) -> Bool[Array, "L B H S"]:
        """What the policies of all groups select, by one search for all of them; nothing for other sequences."""
        scores = jnp.zeros(previous.record.shape, jnp.float32)
        among = jnp.zeros(scores.shape, bool)
        count = jnp.zeros((1, len(which), 1, 1), jnp.int32)
        own_k = self.counts(previous.mask, which)
        for members, policy in groups:
            mine = follows(which, members)
            ranked, eligible, wanted = rank(policy, previous, own_k)
            scores = jnp.where(mine, ranked, scores)
            among = jnp.where(mine, eligible, among)
            count = jnp.where(mine, wanted, count)
        return largest(scores, among, count) if groups else among

    def counts(self, mask: Bool[Array, "B S"], which: Int[Array, " B"]) -> Int[Array, "1 B 1 1"]:
        """The K of each sequence."""
        numbers = jnp.array([0 if policy is None else policy.k for policy in self.policies], jnp.int32)
        found = numbers[which][None, :, None, None]
        for number, policy in enumerate(self.policies):
            if policy is not None and policy.share is not None:
                found = jnp.where(follows(which, (number,)), policy.count(mask), found)
        return found

    def which(self, previous: Previous) -> Int[Array, " B"]:
        """The policy of each sequence."""
        which = jnp.arange(previous.tokens.shape[0]) if previous.policy is None else previous.policy
        return which % len(self.policies)

    def groups(self, common: Callable[[MaskSinks], MaskSinks | None]) -> Iterator[Group]:
        """Policies that have `common` in common go together; None leaves one out."""
        groups: dict[MaskSinks, list[int]] = {}
        for number, policy in enumerate(self.policies):
            key = None if policy is None else common(policy)
            if key is not None:
                groups.setdefault(key, []).append(number)
        for members in groups.values():
            policy = self.policies[members[0]]
            assert policy is not None
            yield tuple(members), policy


def protocol(policy: MaskSinks) -> Rows | None:
    """Whose attention is masked. That of the newest query is what an autoregressive sampler masks by itself."""
    return None if policy.rows == "newest" else policy.rows


def as_they_rank(policy: MaskSinks) -> MaskSinks | None:
    """All but how many keys are taken."""
    return None if policy.select in MATCHED else replace(policy, k=1, share=None)


def as_they_aim(policy: MaskSinks) -> MaskSinks | None:
    """Of matched controls, what decides which keys they follow, but for how many."""
    return replace(policy, k=1, share=None, select="partner") if policy.select in MATCHED else None


def as_they_match(policy: MaskSinks) -> MaskSinks | None:
    """Of matched controls, what decides which keys they take for given targets."""
    if policy.select not in MATCHED:
        return None
    return MaskSinks(select=policy.select, rank_on=policy.rank_on, per=policy.per)


def as_they_act(policy: MaskSinks) -> MaskSinks:
    """What decides what happens to selected keys, and where and when."""
    return MaskSinks(layers=policy.layers, spare=policy.spare, keep=policy.keep, factor=policy.factor)


def follows(which: Int[Array, " B"], members: tuple[int, ...]) -> Bool[Array, "1 B 1 1"]:
    """True for sequences that follow one of these policies."""
    return jnp.isin(which, jnp.array(members))[None, :, None, None]
