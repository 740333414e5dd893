"""Which tokens of an answer a diffusion model is shown masked, so that its predictions add up to a log-likelihood.

The bound that LLaDA is trained on and scored by: draw how many of the L tokens are masked, l uniform in 1 … L, then which;
weigh the log-probabilities of the masked tokens by L / l. LLaDA averages over random canvases (`drawn`). An answer of L
tokens has 2^L - 1 of them, so a short one needs no chance: `every` goes through all, with the weight

    P(l) P(which | l) L / l  =  (1 / L) (1 / C(L, l)) (L / l)  =  1 / (l C(L, l)),

which gives what the average tends to. An answer of one token, as of most multiple-choice tasks, takes one pass.

How well a model fills in answers of which a set share is masked (`masked_share`) is another figure: it tells easy canvases
from hard ones, and needs few of them, because conditions are compared on the same ones.
"""

from __future__ import annotations

from math import comb, floor
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

SHARES = (0.25, 0.5, 0.75)
"""Of an answer's tokens that are masked: t of the diffusion."""


class Canvases(NamedTuple):
    """log p(answer) = sum over n of weight[n] * (log-probabilities of the tokens masked in n, added up)."""

    masked: np.ndarray  # bool[N,L]
    weight: np.ndarray  # f64[N]


def canvases(length: int, samples: int, seed: int) -> Canvases:
    """All canvases of an answer if they are no more than `samples`, else so many drawn ones."""
    return every(length) if 2**length - 1 <= samples else drawn(length, samples, seed)


def count(length: int, samples: int) -> int:
    """N: how many canvases `canvases` gives."""
    return min(2**length - 1, samples)


def every(length: int) -> Canvases:
    number = np.arange(1, 2**length)
    masked = (number[:, None] >> np.arange(length)) & 1 > 0
    return Canvases(masked, np.array([1 / (n * comb(length, n)) for n in masked.sum(axis=1).tolist()]))


def drawn(length: int, samples: int, seed: int) -> Canvases:
    """Random canvases. How many tokens are masked is uniform in each, and evenly spread over all, as LLaDA does it."""
    random = np.random.default_rng(seed)
    first = int(random.integers(length))
    masks = (first + np.arange(samples) * length // samples) % length + 1
    rank = random.random((samples, length)).argsort(axis=1).argsort(axis=1)
    return Canvases(rank < masks[:, None], length / masks / samples)


def masked_share(length: int, share: float, samples: int, random: np.random.Generator) -> Bool[np.ndarray, "N L"]:
    """Random canvases with that share of the tokens masked, to the nearest number, and one at the least."""
    rank = random.random((samples, length)).argsort(axis=1).argsort(axis=1)
    return rank < max(1, floor(share * length + 0.5))
