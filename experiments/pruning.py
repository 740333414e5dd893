"""Shared by experiments that take channels of the residual stream out of a model, and ask what is lost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import jax
import numpy as np
from jaxsink_experiments.canvases import at, canvases, of_their_own, pass_over, ratio
from jaxsink_experiments.dependence import mean_there
from scipy.special import log_softmax

import jaxsink
from jaxsink.nn.parameters import named_leaves
from jaxsink.study import Gallery, Subject

WRITERS = re.compile(r"(^|\.)(attention\.o|down)\.(weight|bias)$")  # what layers add to the stream
BY_TOKEN = ("embedding", "position", "extra_sink")  # and what begins it
LARGEST = 0.5  # of the channels: no more are taken to be as large as one


def without_channels(model: jaxsink.Model, channels: Sequence[int]) -> jaxsink.Model:
    """The model whose residual stream is zero in these channels, from the embeddings to the last layer: nothing writes them.

    All rows and biases that write them are zero, so nothing has to be done while it runs; all other weights are shared with
    the model. A head that is tied to the embeddings does not read them either.
    """
    chosen = np.asarray(channels)
    leaves, treedef = named_leaves(model)

    def pruned(name: str, leaf: jax.Array) -> jax.Array:
        if name in BY_TOKEN or (WRITERS.search(name) and name.endswith("bias")):
            return leaf.at[..., chosen].set(0)
        return leaf.at[..., chosen, :].set(0) if WRITERS.search(name) else leaf

    return jax.tree.unflatten(treedef, [pruned(*one) for one in leaves])


def pruned(subject: Subject, channels: Sequence[int], name: str) -> Subject:
    return replace(subject, name=name, model=without_channels(subject.model, channels))


@lru_cache(maxsize=2)
def sizes(subject: Subject, gallery: Gallery) -> tuple[np.ndarray, np.ndarray]:
    """(f64[B,E]: the mean of |x| by channel; f64[B,E]: the share of tokens of which it is the largest), of the residual
    stream after the layers of the first half, on some steps of each generation."""
    early = tuple(range(max(1, subject.model.config.layers // 2)))
    record, found = jaxsink.record.channels().at(early), []
    for _, tokens, there in canvases(subject, gallery):
        seen = pass_over(subject, tokens, there, record=record).record
        found.append([seen[name].mean(axis=0) for name in ("mean", "first")])
    mean, first = np.mean(np.array(found, np.float64), axis=0)
    return mean, first


def largest(subject: Subject, gallery: Gallery) -> int:
    """The channel that is the largest on average over all generations."""
    return int(sizes(subject, gallery)[0].mean(axis=0).argmax())


def as_large(subject: Subject, gallery: Gallery, number: int) -> tuple[int, ...]:
    """Other channels at random, until they are together as large as the largest one; half of all at most."""
    mean, first = sizes(subject, gallery)[0].mean(axis=0), largest(subject, gallery)
    order = np.random.default_rng(number).permutation(np.delete(np.arange(len(mean)), first))
    enough = int(np.searchsorted(np.cumsum(mean[order]), mean[first])) + 1
    return tuple(sorted(order[: min(enough, int(LARGEST * len(mean)))].tolist()))


def one_other(subject: Subject, gallery: Gallery, number: int) -> tuple[int, ...]:
    """A single channel at random."""
    others = np.delete(np.arange(subject.model.config.width), largest(subject, gallery))
    return (int(np.random.default_rng(number).choice(others)),)


@lru_cache(maxsize=16)
def nats(subject: Subject, gallery: Gallery, channels: tuple[int, ...] = ()) -> np.ndarray:
    """f64[B]: the loss per token of what the whole model then wrote, without these channels; the mean over some steps."""
    config, found = subject.model.config, []
    asked_of = pruned(subject, channels, subject.name) if len(channels) else subject
    for canvas in canvases(subject, gallery):
        asked = gallery.committed_at >= (canvas.step if subject.is_diffusion else 0)

        def of_tokens(logits: np.ndarray, rows: np.ndarray) -> np.ndarray:
            return at(log_softmax(of_their_own(config, logits), axis=-1), gallery.tokens[rows])

        log_prob = pass_over(asked_of, canvas.tokens, canvas.there, read=of_tokens).values
        found.append(ratio(np.where(asked, -log_prob, 0.0).sum(axis=1), asked.sum(axis=1)))
    return mean_there(np.array(found))
