"""Which token a position would take, how sure the model is of it, and which positions are committed.

Ties: the lowest token id among equal scores, and the lowest position among equal confidences, on every device.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from jaxsink.sampling import rng

REMOVED = jnp.finfo(jnp.float32).min
LAST = -1e30  # below every confidence, above what is not eligible
CERTAIN = 25 * math.log(2)  # log-odds from which a float32 probability is 1
FAINT = 2.0**-100  # entropy below which none is left in float32 arithmetic of any compiler


def without(logits: Float[Array, "... V"], ids: tuple[int, ...]) -> Float[Array, "... V"]:
    """Logits with these token ids at -inf."""
    for token in ids:
        logits = logits.at[..., token].set(-jnp.inf)
    return logits


def keep_top_p(logits: Float[Array, "... V"], top_p: float) -> Float[Array, "... V"]:
    """Remove tokens beyond the smallest set whose probability exceeds top_p; those tied with the last one stay."""
    ordered = jnp.sort(logits, axis=-1, descending=True)
    mass = jnp.cumsum(softmax(ordered), axis=-1)
    beyond = jnp.pad(mass[..., :-1] > top_p, [(0, 0)] * (logits.ndim - 1) + [(1, 0)])
    smallest = jnp.min(jnp.where(beyond, jnp.inf, ordered), axis=-1, keepdims=True)
    return jnp.where(logits < smallest, REMOVED, logits)


def keep_within_p(logits: Float[Array, "... V"], top_p: float) -> Float[Array, "... V"]:
    """Remove tokens beyond the likeliest ones that have at most top_p together, or beyond the best one; ties stay."""
    ordered = jnp.sort(logits, axis=-1, descending=True)
    within = (jnp.cumsum(softmax(ordered), axis=-1) <= top_p).at[..., 0].set(True)
    smallest = jnp.min(jnp.where(within, ordered, jnp.inf), axis=-1, keepdims=True)
    return jnp.where(logits < smallest, REMOVED, logits)


def keep_top_k(logits: Float[Array, "... V"], top_k: int) -> Float[Array, "... V"]:
    """Remove tokens below the k-th largest logit; those tied with it stay."""
    smallest = lax.top_k(logits, min(top_k, logits.shape[-1]))[0][..., -1:]
    return jnp.where(logits < smallest, REMOVED, logits)


def shape_logits(
    logits: Float[Array, "... V"], temperature: float, top_p: float | None, top_k: int | None, k_first: bool = False
) -> Float[Array, "... V"]:
    """Temperature, then top-p, then top-k, in Dream's order; or top-k before top-p, as SDAR and Hugging Face have it."""
    if temperature > 0:
        logits = logits / temperature
    if k_first and top_k:
        logits = keep_top_k(logits, top_k)
    if top_p is not None and top_p < 1:
        logits = keep_top_p(logits, top_p)
    if not k_first and top_k:
        logits = keep_top_k(logits, top_k)
    return logits


def pick(shaped: Float[Array, "*n V"], noise: Float[Array, "*n V"] | None) -> Int[Array, "*n"]:
    """The best token of the shaped logits, plus noise; removed tokens never win over kept ones."""
    kept = jnp.where(shaped <= REMOVED, -jnp.inf, shaped)
    return jnp.argmax(kept if noise is None else kept + noise, axis=-1)


class Choice(NamedTuple):
    """What a position would take. A position that predicts the mask itself waits: it is the last to be committed, and
    then takes the best other token."""

    token: Int[Array, "B W"]  # never the mask
    waits: Bool[Array, "B W"]

    def order(self, confidence: Float[Array, "B W"]) -> Float[Array, "B W"]:
        """Confidences by which positions are committed."""
        return jnp.where(self.waits, LAST, confidence)


def choose_token(
    shaped: Float[Array, "B W V"], logits: Float[Array, "B W V"], mask_id: int, noise: Float[Array, "B W V"] | None
) -> Choice:
    """The best token of the shaped logits plus noise; `logits` decide where the filters kept the mask alone."""
    predicted = pick(shaped, noise)
    waits = predicted == mask_id
    other = without(shaped, (mask_id,))
    nothing_left = (other <= REMOVED).all(axis=-1, keepdims=True)  # the filters kept the mask alone
    other = pick(jnp.where(nothing_left, without(logits, (mask_id,)), other), noise)
    return Choice(jnp.where(waits, other, predicted), waits)


def softmax(logits: Float[Array, "... V"]) -> Float[Array, "... V"]:
    """Probabilities; the best token weighs exactly 1 before the division, see `other_weights`."""
    best = logits.max(axis=-1, keepdims=True)
    weight = jnp.where(logits == best, 1.0, jnp.exp(logits - best))
    return weight / weight.sum(axis=-1, keepdims=True)


def other_weights(logits: Float[Array, "... V"]) -> Float[Array, "... V"]:
    """exp(logit - best) of all tokens but the best, which weighs 1 and would drown a small rest in a sum.

    Tokens tied with the best weigh exactly 1: compilers fuse a division by the temperature into the subtraction, which
    then need not give 0."""
    best = logits.max(axis=-1, keepdims=True)
    is_best = jnp.arange(logits.shape[-1]) == jnp.argmax(logits, axis=-1, keepdims=True)
    return jnp.where(is_best, 0.0, jnp.where(logits == best, 1.0, jnp.exp(logits - best)))


def log_odds(logits: Float[Array, "*n V"], token: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """Log-odds p/(1-p) of one token per position.

    The order is that of the probabilities. Those of a trained model crowd below 1, where float32 holds few numbers and
    the last bit would decide who is first: another batch size, another text. Log-odds keep them apart. From CERTAIN on
    the probability is 1 and positions tie, as they do in the originals."""
    chosen = jnp.arange(logits.shape[-1]) == token[..., None]
    others = jax.nn.logsumexp(jnp.where(chosen, -jnp.inf, logits), axis=-1)
    return limited(jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0] - others)


def sure_by_margin(logits: Float[Array, "*n V"]) -> Float[Array, "*n"]:
    """Log-odds of p1 - p2, the two best."""
    others = other_weights(logits)
    second = others.max(axis=-1)
    return limited(jnp.log(1 - second) - jnp.log(second + others.sum(axis=-1)))


def sure_by_entropy(logits: Float[Array, "*n V"]) -> Float[Array, "*n"]:
    """Sum of p log(p + 1e-10), the negative entropy, with log p = -log1p(rest) for the best token."""
    others = other_weights(logits)
    rest = others.sum(axis=-1)
    probs = others / (1 + rest[..., None])
    entropy = jnp.log1p(rest) / (1 + rest) - (probs * jnp.log(probs + 1e-10)).sum(axis=-1)
    return -jnp.where(entropy < FAINT, 0.0, entropy)


def limited(odds: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Certain positions tie; impossible ones stay above those that wait."""
    return jnp.clip(odds, LAST / 10, CERTAIN)


def probability(odds: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """What log-odds stand for."""
    return jax.nn.sigmoid(odds)


def rank(confidence: Float[Array, "B W"], eligible: Bool[Array, "B W"]) -> Int[Array, "B W"]:
    """How many eligible positions of the sequence come before each: the surer ones, and ties further left."""
    here, other = confidence[:, :, None], confidence[:, None, :]
    index = jnp.arange(confidence.shape[1])
    before = (other > here) | ((other == here) & (index < index[:, None]))
    return (before & eligible[:, None, :]).sum(axis=-1)


def commit_best(
    confidence: Float[Array, "B W"], eligible: Bool[Array, "B W"], quota: Int[Array, " B"]
) -> Bool[Array, "B W"]:
    """The `quota` surest eligible positions of each sequence."""
    return eligible & (rank(confidence, eligible) < quota[:, None])


def commit_above(
    confidence: Float[Array, "B W"], eligible: Bool[Array, "B W"], above: Bool[Array, "B W"]
) -> Bool[Array, "B W"]:
    """Every eligible position that is `above` the threshold, and in any case the surest one."""
    return eligible & (above | (rank(confidence, eligible) == 0))


@runtime_checkable
class Positions(Protocol):
    """Where a step draws random numbers; a `Window` says so too."""

    @property
    def step(self) -> Int[Array, ""]: ...
    @property
    def position(self) -> Int[Array, "B W"]: ...
    @property
    def offset(self) -> Int[Array, "B W"]: ...


def token_noise(draws: rng.Draws, at: Positions, vocab: int) -> Float[Array, "B W V"]:
    """Gumbel noise for every token at the positions of a window."""
    if draws.token is None:
        return rng.gumbel(rng.position_keys(draws.keys, rng.TOKEN, at.step, at.offset), vocab)
    return jnp.take_along_axis(draws.token[at.step], at.position[..., None], axis=1)


def position_draws(draws: rng.Draws, purpose: int, at: Positions) -> Float[Array, "B W"]:
    """Uniform draws for the positions of a window, for random remasking or Dream's `origin`."""
    replay = {rng.REMASK: draws.remask, rng.TRANSFER: draws.transfer}.get(purpose)
    if replay is None:
        return rng.uniform(rng.position_keys(draws.keys, purpose, at.step, at.offset))
    return jnp.take_along_axis(replay[at.step], at.position, axis=1)
