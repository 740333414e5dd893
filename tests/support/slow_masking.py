"""Masking policies in plain NumPy, one layer, sequence and head at a time, from what the step before recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import jax
import numpy as np

from jaxsink.sampling.rng import INTERVENE_RUN
from jaxsink.sinks import MaskSinks, Rule, Threshold


@cache
def drawn(seed: int, number: int, layers: int, heads: int) -> np.ndarray:
    """f32[L,H] of the number-th token (from 1), by the run's key."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(np.uint32(seed)), INTERVENE_RUN), 0)
    return np.asarray(jax.random.uniform(jax.random.fold_in(key, number), (layers, heads)))


def passes(rule: str | Rule | None, eps: float, scores: np.ndarray) -> list[int]:
    """The keys that the rule leaves to choose among; scores of the real tokens alone."""
    if rule in (None, "top_k"):
        return list(range(len(scores)))
    threshold = rule if isinstance(rule, Threshold) else Threshold(eps)
    others = [(scores.sum() - score) / (len(scores) - 1) for score in scores]
    return [j for j, score in enumerate(scores) if score - others[j] > threshold.eps]


def top(policy: MaskSinks, scores: np.ndarray) -> set[int]:
    """What the sinks' policy hides, of real tokens counted from 0."""
    if policy.positions is not None:
        return {j for j in policy.positions if j < len(scores)}
    k = policy.k if policy.share is None else max(1, round(policy.share * len(scores)))
    found = passes(policy.rule, policy.eps, scores)
    if policy.select == "top_not_first":
        found = [j for j in found if j > 0]
    found = sorted(found, key=lambda j: (-scores[j], j))
    return set(found if policy.rule == "threshold" else found[:k])


def losing(rows: str | None, masked: list[int], window: range, length: int, shift: int) -> list[int]:
    """The queries that lose keys, of tokens counted from 0. masked: those that are masks. shift: 1 where a token is
    predicted by the query before it."""
    if rows == "masked":
        return masked
    if rows == "decoded":
        return sorted({max(j - shift, 0) for j in masked if j in window})
    return list(range(length))


@dataclass
class Slow:
    """One policy for one head of one layer and sequence; `step` is called once per step, in order."""

    policy: MaskSinks
    seed: int
    layer: int
    head: int
    size: tuple[int, int]  # layers, heads
    targets: set[int] = field(default_factory=set)  # of the step before
    hidden: set[int] = field(default_factory=set)

    def order(self, count: int) -> list[int]:
        """The tokens 0 … count - 1 in the random order of this run."""
        layers, heads = self.size
        shape = (layers, heads if self.policy.per == "head" else 1)
        head = self.head if self.policy.per == "head" else 0
        return sorted(range(count), key=lambda j: (drawn(self.seed, j + 1, *shape)[self.layer, head], j))

    def step(self, scores: np.ndarray) -> set[int]:
        """The hidden tokens of this step; scores: of the real tokens in the map that is ranked."""
        policy = self.policy
        scores = np.asarray(scores, np.float64)
        if policy.select == "first":
            k = policy.k if policy.share is None else max(1, round(policy.share * len(scores)))
            return set(range(min(k, len(scores))))
        if policy.select not in ("partner", "mass"):
            return top(policy, scores)
        imitated = scores.copy()
        if policy.rank_on == "masked" and policy.positions is None:
            imitated[list(self.targets)] = 0.0
            if policy.rule not in (None, "top_k"):
                imitated *= scores.sum() / imitated.sum()
        self.targets = top(policy, imitated)
        order = self.order(len(scores))
        if policy.select == "partner":
            next_to = {j: order[(place + 1) % len(order)] for place, j in enumerate(order)}
            self.hidden = {next_to[j] for j in self.targets}
            return self.hidden
        wanted, got, taken = sum(scores[j] for j in self.targets), 0.0, []
        banned = self.targets | (self.hidden if policy.rank_on == "masked" else set())
        allowed = [j for j in order if j not in banned]
        for j in allowed:
            if got >= wanted:
                break
            taken.append(j)
            got += scores[j]
        self.hidden = set(taken) - set(allowed[-1:])
        return self.hidden
