"""The sinks of an evaluation: reduced inside the loop to one small number per token, counted by token id per answer.

Table 2 needs to know on which tokens the sinks sit, and how often these tokens occur at all. Both are plain counts,
so those of single answers add up to those of any set of answers, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsink.nn.recorder import Recorder
from jaxsink.nn.taps import Tap
from jaxsink.recording.attention import received
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.generation import Generation
from jaxsink.sinks.rules import Threshold
from jaxsink.sinks.tokens import Rates, canvases, positions_that_count

SHOWN = 5  # tokens of Table 2


@dataclass(frozen=True)
class sink_heads:  # noqa: N801 - reads as a function, like those of jaxsink.reduce
    """uint[B,S]: in how many heads each key is a sink by Eq. 3; one byte, unless there are more than 255 heads."""

    eps: float = 3.0

    def __call__(self, value: Array, tap: Tap) -> Array:
        found = Threshold(self.eps).find(value, jnp.broadcast_to(tap.mask[:, None, :], value.shape))
        return found.sum(axis=1).astype(jnp.uint8 if value.shape[1] < 256 else jnp.uint16)


def recorder(eps: float | None) -> Recorder | None:
    """What the engine records; None without sinks."""
    return None if eps is None else received().then(sink_heads(eps))


def recording_sampler(sampler: Sampler, eps: float | None) -> Sampler:
    """The sampler that records all queries: the attention of a single one sums to 1, and no key passes Eq. 3."""
    return sampler if eps is None else sampler.with_whole_map()


@dataclass(frozen=True)
class SinkCounter:
    """Counts the sinks of single sequences of a generation whose record is `sink_heads`."""

    heads: np.ndarray  # uint[T,L,B,S]
    tokens: np.ndarray  # i32[B,S]
    committed_at: np.ndarray  # i32[B,S]
    mask: np.ndarray  # bool[B,S]
    steps: np.ndarray  # i32[B]
    recorded_steps: np.ndarray  # i32[T]
    mask_id: int | None  # None: autoregressive
    heads_per_layer: int
    commits: np.ndarray | None = None  # i32[steps,B,S], where the sampler edits what it wrote

    @classmethod
    def of(cls, out: Generation, mask_id: int | None, heads: int) -> SinkCounter:
        arrays = (out.record, out.tokens, out.committed_at, out.mask, out.steps, out.recorded_steps)
        commits = None if out.commits is None else np.asarray(out.commits)
        return cls(*map(np.asarray, arrays), None if out.autoregressive else mask_id, heads, commits)  # pyright: ignore

    def sequence(self, number: int) -> dict[str, Any]:
        """Sinks of one answer, over all its steps, layers and heads.

        maps: steps x layers x heads. total: sinks in all of them. first: those on the first token. layers: by layer.
        tokens: by token id. places: at how many (step, position) pairs each id occurs.
        """
        one = slice(number, number + 1)
        commits = None if self.commits is None else self.commits[:, one]
        now = (self.tokens[one], self.committed_at[one], self.recorded_steps, self.mask_id, commits)
        canvas = np.asarray(canvases(*now))
        counted = positions_that_count(canvas, self.mask[one], self.steps[one], self.recorded_steps)[:, 0]  # [T,S]
        canvas, taken = canvas[:, 0], self.recorded_steps < self.steps[number]
        found = np.where(counted[:, None], self.heads[:, :, number], 0).astype(np.int64)  # [T,L,S]
        by_place = found.sum(axis=1)
        return {
            "maps": int(taken.sum()) * found.shape[1] * self.heads_per_layer,
            "total": int(found.sum()),
            "first": int(by_place[:, self.mask[number].argmax()].sum()),
            "layers": found.sum(axis=(0, 2)).tolist(),
            "tokens": by_id(canvas[counted], by_place[counted]),
            "places": by_id(canvas[counted], np.ones(int(counted.sum()), np.int64)),
        }


def by_id(ids: np.ndarray, weights: np.ndarray) -> dict[str, int]:
    """Sums of the weights by token id, without zeros; the keys are texts, as JSON has them, in order of id."""
    sums = np.bincount(ids, weights)  # float64 is exact to 2**53
    return {str(token): int(sums[token]) for token in np.flatnonzero(sums)}


def pool(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The counts of many answers together."""
    sums: dict[str, Any] = {"maps": 0, "total": 0, "first": 0, "tokens": Counter(), "places": Counter()}
    for one in counts:
        for name in ("maps", "total", "first"):
            sums[name] += one[name]
        for name in ("tokens", "places"):
            sums[name].update({int(token): count for token, count in one[name].items()})
    return sums


def frequent_tokens(pooled: Mapping[str, Any], name_of: Callable[[int], str]) -> list[dict[str, Any]]:
    """Table 2: the most frequent sink tokens, with their share of all sinks, base rate and lift; ties in order of id."""
    ids = sorted(pooled["places"])
    count, places = (np.array([pooled[name][token] for token in ids], np.int64) for name in ("tokens", "places"))
    rates = Rates(count, places, int(count.sum()), int(places.sum()))
    order = [n for n in np.argsort(-count, kind="stable")[:SHOWN] if count[n]]
    return [
        {
            "token": name_of(ids[n]),
            "id": ids[n],
            "share": float(rates.share[n]),
            "base": float(rates.base[n]),
            "lift": float(rates.lift[n]),
        }
        for n in order
    ]
