"""Where the attention of a hidden sink goes: which key takes over, how fast, and in which layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxsink.evals.statistics import Estimate, clustered_mean
from jaxsink.runs.arrays import Arrays
from jaxsink.sinks.choices import Rows
from jaxsink.study import Study, Subject
from jaxsink.study.succession import Succession

SHOWN = 4  # token positions that a table shows
THERE = 0.9  # of its mean share: from then on the successor is there


class Shares(NamedTuple):
    """Means over sequences of what the queries that lose keys pay, and of each sequence over its steps and layers; the first
    step hides nothing."""

    share: Float[np.ndarray, "T L S"]  # by token position, mean over heads
    of_each: Float[np.ndarray, "B S"]
    largest: Float[np.ndarray, " B"]  # on the strongest key of each head
    diagonal: Float[np.ndarray, " B"]  # on the query's own token

    @classmethod
    def of(cls, kept: Arrays, hidden: str) -> Shares:
        taken = kept[f"{hidden} taken"].astype(float)  # [T,B]
        weight = taken / np.maximum(taken.sum(axis=1, keepdims=True), 1)
        share, largest, diagonal = (kept[f"{hidden} {name}"] for name in ("share", "largest", "diagonal"))
        later = kept[f"{hidden} taken"] & (np.arange(len(taken)) > 0)[:, None]
        return cls(
            share=np.einsum("tlbs,tb->tls", share, weight)[taken.any(axis=1)],
            of_each=each(share, later),
            largest=each(largest, later),
            diagonal=each(diagonal, later),
        )

    def late(self, values: np.ndarray) -> np.ndarray:
        """The mean over all steps but the first."""
        return values[1:].mean(axis=0)


def each(values: Float[np.ndarray, "T L B ..."], taken: Bool[np.ndarray, "T B"]) -> Float[np.ndarray, "B ..."]:
    """The mean over layers and the steps that a sequence took; NaN where it took none."""
    sums = np.einsum("tlb...,tb->b...", values, taken.astype(float))
    counts = taken.sum(axis=0) * values.shape[1]
    with np.errstate(invalid="ignore"):
        return sums / counts.reshape(-1, *[1] * (sums.ndim - 1))


class Moved(NamedTuple):
    """The attention of one subject under one protocol, before and after its first token is hidden."""

    model: str
    rows: Rows
    before: Shares
    after: Shares
    top_hidden: Shares
    clusters: list[str]

    @classmethod
    def of(cls, study: Study, subject: Subject, rows: Rows) -> Moved:
        spec = Succession(rows)
        kept = study.arrays(subject, spec)
        found = (Shares.of(kept, hidden) for hidden in ("nothing", "first", "top"))
        return cls(subject.name, rows, *found, spec.clusters(study, subject))

    @property
    def successor(self) -> int:
        """The token position that gains most."""
        gains = self.after.late(self.after.share) - self.before.late(self.before.share)
        return int(gains.mean(axis=0).argmax())

    @property
    def steps_needed(self) -> int:
        """Steps with the key hidden until the successor has nearly what it has on average."""
        over_steps = self.after.share[1:, :, self.successor].mean(axis=1)
        return int((over_steps >= THERE * over_steps.mean()).argmax()) + 1

    def line(self) -> dict[str, Any]:
        """Of a table: means over sequences, with intervals over distinct problems."""
        found: dict[str, Any] = {"model": self.model, "rows": self.rows, "texts": len(self.clusters)}
        for position in range(SHOWN):
            found |= self.pair(str(position), *(shares.of_each[:, position] for shares in (self.before, self.after)))
        to = self.successor
        found |= {"successor": to, **self.pair("successor", self.before.of_each[:, to], self.after.of_each[:, to])}
        found |= {"steps needed": self.steps_needed}
        for name in ("diagonal", "largest"):
            found |= self.pair(name, getattr(self.before, name), getattr(self.after, name))
        return found | self.cells("largest: after the top key", self.top_hidden.largest)

    def pair(self, name: str, before: np.ndarray, after: np.ndarray) -> dict[str, float]:
        """Both, and how much more it is after."""
        return {
            **self.cells(f"{name}: before", before),
            **self.cells(f"{name}: after", after),
            **self.cells(f"{name}: gain", after - before),
        }

    def cells(self, name: str, values: np.ndarray) -> dict[str, float]:
        mean: Estimate = clustered_mean(values, self.clusters)
        low, high = mean.interval()
        return {name: mean.value, f"{name}: low": low, f"{name}: high": high}

    def by_layer(self) -> Iterator[dict[str, Any]]:
        old, new = self.before.late(self.before.share), self.after.late(self.after.share)
        for layer in range(len(old)):
            line = {"model": self.model, "rows": self.rows, "layer": layer, "successor": self.successor}
            line |= {"first: before": float(old[layer, 0]), "first: after": float(new[layer, 0])}
            to = self.successor
            yield line | {"successor: before": float(old[layer, to]), "successor: after": float(new[layer, to])}

    def by_step(self) -> Iterator[dict[str, Any]]:
        old, new = (shares.share.mean(axis=1) for shares in (self.before, self.after))
        for step in range(min(len(old), len(new))):
            line = {"model": self.model, "rows": self.rows, "step": step, "successor": self.successor}
            line |= {"first: before": float(old[step, 0]), "first: after": float(new[step, 0])}
            to = self.successor
            yield line | {"successor: before": float(old[step, to]), "successor: after": float(new[step, to])}
