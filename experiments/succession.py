"""Where the attention of a hidden sink goes: which key takes over, how fast, and in which layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxsink.runs.arrays import Arrays
from jaxsink.sinks.choices import Rows
from jaxsink.study import Study, Subject
from jaxsink.study.succession import Succession

SHOWN = 4  # token positions that a table shows
THERE = 0.9  # of its mean share: from then on the successor is there


class Shares(NamedTuple):
    """Means over sequences of what the queries that lose keys pay; the first step hides nothing."""

    share: Float[np.ndarray, "T L S"]  # by token position, mean over heads
    largest: Float[np.ndarray, "T L"]  # on the strongest key of each head
    diagonal: Float[np.ndarray, "T L"]  # on the query's own token

    @classmethod
    def of(cls, kept: Arrays, hidden: str) -> Shares:
        taken = kept[f"{hidden} taken"].astype(float)  # [T,B]
        weight = taken / np.maximum(taken.sum(axis=1, keepdims=True), 1)
        share, largest, diagonal = (kept[f"{hidden} {name}"] for name in ("share", "largest", "diagonal"))
        steps = taken.any(axis=1)
        return cls(
            share=np.einsum("tlbs,tb->tls", share, weight)[steps],
            largest=np.einsum("tlb,tb->tl", largest, weight)[steps],
            diagonal=np.einsum("tlb,tb->tl", diagonal, weight)[steps],
        )

    def late(self, values: np.ndarray) -> np.ndarray:
        """The mean over all steps but the first."""
        return values[1:].mean(axis=0)


class Moved(NamedTuple):
    """The attention of one subject under one protocol, before and after its first token is hidden."""

    model: str
    rows: Rows
    before: Shares
    after: Shares
    top_hidden: Shares

    @classmethod
    def of(cls, study: Study, subject: Subject, rows: Rows) -> Moved:
        kept = study.arrays(subject, Succession(rows))
        return cls(subject.name, rows, *(Shares.of(kept, hidden) for hidden in ("nothing", "first", "top")))

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
        """Of a table."""
        found: dict[str, Any] = {"model": self.model, "rows": self.rows}
        old, new = (shares.late(shares.share).mean(axis=0) for shares in (self.before, self.after))
        for position in range(SHOWN):
            found |= {f"{position}: before": float(old[position]), f"{position}: after": float(new[position])}
        to = self.successor
        found |= {"successor": to, "successor: before": float(old[to]), "successor: after": float(new[to])}
        found |= {"steps needed": self.steps_needed}
        for name in ("diagonal", "largest"):
            pair = [float(getattr(shares, name)[1:].mean()) for shares in (self.before, self.after)]
            found |= {f"{name}: before": pair[0], f"{name}: after": pair[1]}
        found["largest: after the top key"] = float(self.top_hidden.largest[1:].mean())
        return found

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
