"""Shared by experiments that look at recorded generations again: canvases of some steps, and passes over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import jaxsink
from jaxsink.evals.statistics import clustered_mean
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.edits import Edit
from jaxsink.sinks import Threshold, detect, visibility_normalised
from jaxsink.study import Gallery, Subject

STEPS = 4  # of each generation that are looked at
LOGITS = 1 << 28  # bytes that are held at a time, about
QUERIES = 64  # that are compared at a time


class Canvas(NamedTuple):
    """What a subject saw at one step of all its generations."""

    step: int
    tokens: np.ndarray  # i32[B,S]
    there: np.ndarray  # bool[B,S], tokens that exist


def canvases(subject: Subject, gallery: Gallery, count: int = STEPS) -> Iterator[Canvas]:
    """Of steps that are spread evenly; an autoregressive model's last, which has all others in it."""
    last = len(gallery.scores) - 1
    for step in np.linspace(0, last, count).astype(int) if subject.is_diffusion else [last]:
        tokens = gallery.canvas[step]
        there = gallery.mask & (tokens >= 0)
        yield Canvas(int(step), np.maximum(tokens, 0), there & gallery.real[step] if subject.is_diffusion else there)


class Passed(NamedTuple):
    """What recorders saw, [L,B,...], and what was read of the logits, [B,...]."""

    record: Any
    values: np.ndarray


Read = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(logits f32[N,S,V] of some sequences, their numbers i64[N]) -> [N,...]"""


def pass_over(
    subject: Subject,
    tokens: np.ndarray,
    there: np.ndarray,
    *,
    record: Any = None,
    drop: np.ndarray | None = None,
    visible: np.ndarray | None = None,
    edits: Callable[[np.ndarray], Edit] | None = None,
    read: Read = lambda logits, rows: np.zeros(len(rows)),
    keep: Callable[[Any, np.ndarray], Any] = lambda record, rows: record,
    parts: int = 1,
) -> Passed:
    """`jaxsink.forward`, as many sequences at a time as their logits allow; results are on the host.

    edits: of these sequences
    keep: what stays of the record of these sequences, [L,N,...]
    parts: of how many equal parts the batch is put together whose n-th sequences run at the same time, for recorders that
    compare them; all else is then in the order in which it ran
    """
    records, values = [], []
    for rows in groups(subject, tokens, parts):
        keys = {} if drop is None else {"drop": drop[:, rows]}
        pattern = {} if visible is None else {"visible": visible[rows]}
        more = {} if edits is None else {"edits": edits(rows)}
        out = jaxsink.forward(subject.model, tokens[rows], there[rows], record=record, **keys, **pattern, **more)
        records.append(keep(jax.tree.map(np.asarray, out.record), rows))
        values.append(read(np.asarray(out.logits), rows))
    return Passed(jax.tree.map(lambda *parts: np.concatenate(parts, axis=1), *records), np.concatenate(values))


def groups(subject: Subject, tokens: np.ndarray, parts: int = 1) -> Iterator[np.ndarray]:
    """Numbers of sequences that run together, as many as their logits allow; parts: as for `pass_over`."""
    count = len(tokens) // parts
    size = max(1, LOGITS // (4 * parts * tokens.shape[1] * subject.model.config.vocab))
    for first in range(0, count, size):
        some = np.arange(first, min(first + size, count))
        yield np.concatenate([part * count + some for part in range(parts)])


def logits_of(subject: Subject, canvas: Canvas, rows: np.ndarray, edits: Edit | None = None) -> Array:
    """f32[N,S,V] of these sequences, on the device."""
    out = jaxsink.forward(subject.model, canvas.tokens[rows], canvas.there[rows], edits=edits)
    assert out.logits is not None
    return out.logits


@jax.jit
def divergence(plain: Array, other: Array) -> Array:
    """KL(plain ‖ other) in nats of logits f32[N,S,V], query by query: f32[N,S], on the device, some queries at a time."""

    def of_one(pair: tuple[Array, Array]) -> Array:
        before, after = (jax.nn.log_softmax(logits.astype(jnp.float32)) for logits in pair)
        return (jnp.exp(before) * (before - after)).sum()

    shape = plain.shape
    flat = plain.reshape(-1, shape[-1]), other.reshape(-1, shape[-1])
    return jax.lax.map(of_one, flat, batch_size=QUERIES).reshape(shape[:2])


@jax.jit
def log_prob_of(logits: Array, query: Array, token: Array) -> Array:
    """f32[N,S,W]: of tokens [N,S,W], by the query [S] that predicts each position; on the device."""
    total = jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)[:, query]
    own = logits[jnp.arange(len(logits))[:, None, None], query[:, None], token]
    return own.astype(jnp.float32) - total[..., None]


def fair_scores(config: ModelConfig, received: np.ndarray, there: np.ndarray, causal: bool = False) -> np.ndarray:
    """f32[L,B,H,S] of scores per query that can see the key. causal: each query was shown what stands before it."""
    causal = causal or not config.is_diffusion
    block = None if causal else config.block_length
    return np.asarray(visibility_normalised(received, there, causal=causal, block_length=block))


def sinks(fair: np.ndarray, there: np.ndarray, eps: float) -> np.ndarray:
    """bool[L,B,H,S] by Eq. 3."""
    return np.asarray(detect(fair, Threshold(eps), there))


def one_key(position: np.ndarray, length: int) -> np.ndarray:
    """bool[...,S]: True at this position."""
    return np.arange(length) == position[..., None]


def at(values: np.ndarray, position: np.ndarray) -> np.ndarray:
    """[...,S] -> [...]: the value at this position."""
    return np.take_along_axis(values, position[..., None], axis=-1)[..., 0]


def of_their_own(config: ModelConfig, logits: np.ndarray) -> np.ndarray:
    """[B,S,V], each of which predicts the token at its own position; the first token of a model that shifts has none, and
    gets its own."""
    return logits[:, own_queries(config, logits.shape[1])]


def own_queries(config: ModelConfig, length: int) -> np.ndarray:
    """i64[S]: the query that predicts the token at each position."""
    shifts = config.predicts_next
    return np.maximum(np.arange(length) - int(shifts), 0)


def of_their_queries(config: ModelConfig, values: np.ndarray) -> np.ndarray:
    """[B,S] of queries, as those that predict the token at each position have them."""
    return values[:, own_queries(config, values.shape[1])]


def random_key(among: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """i64[B]: one of these keys [B,S] of each sequence; 0 where there is none."""
    return np.argmax(np.where(among, draw.random(among.shape), -1.0), axis=-1)


class Mean(NamedTuple):
    """With its 95 % interval; NaN where there is nothing."""

    value: float
    low: float
    high: float

    @property
    def reach(self) -> float:
        return (self.high - self.low) / 2

    @property
    def columns(self) -> dict[str, float]:
        """Of a table, after the value."""
        return {"low": self.low, "high": self.high}


def mean_of(values: np.ndarray, gallery: Gallery) -> Mean:
    """Over generations, clustered by problem."""
    if np.isnan(values).all():
        return Mean(np.nan, np.nan, np.nan)
    mean = clustered_mean(values, gallery.clusters)
    return Mean(mean.value, *mean.interval())


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """NaN where there is no whole."""
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), np.nan)
