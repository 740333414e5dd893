"""What a model is shown in a training step, and which of its predictions count how much: one function per objective.

The loss is the same for all: the sum of weight times cross-entropy. Weights are made for the whole batch, so neither
accumulation nor devices change what is computed.

**Masked diffusion** (LLaDA). For a noise level t, uniform in (0, 1], each of the n tokens that may be masked is masked
with probability t; the loss is the cross-entropy of the masked ones, weighted 1/t, over n. Levels are spread evenly over
the batch, which changes no expectation and takes much of the variance. `noise="bernoulli"` does just that. `"count"`, the
default, masks exactly k = ceil(t n) tokens with the weight n/k. Both have the same expectation, for

    integral over t of C(n,k) t^k (1-t)^(n-k) / t  =  1/k  =  (1/n) (n/k),

but no sequence is left without masks, and none gets a weight far above n.

**Block diffusion** (SDAR, BD3LM). Every block has a noise level of its own, and sees itself noised and the blocks before it
as they are. One pass does all blocks: the noised sequence stands before the true one, at the same token positions, and
`block_visibility` says who sees whom.

**Shifted logits** (next-token models, Dream): the token at position i is predicted from the output at i - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from jaxsink.nn.batch import Batch, token_positions
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.transformer import Model
from jaxsink.training.settings import Noise

SMALLEST = 1e-3  # noise level of "bernoulli", as in LLaDA's code: 1/t stays finite


class Example(NamedTuple):
    """Sequences as the model sees them, and what it is to predict: W tokens of each, and how much each of them counts."""

    tokens: Int[Array, "B S"]
    real: Bool[Array, "B S"]
    targets: Int[Array, "B W"]
    weight: Float[Array, "B W"]
    outputs: Int[Array, "B W"]  # the queries that predict the targets
    token_position: Int[Array, "B S"] | None = None


class Noised(NamedTuple):
    tokens: Int[Array, "B S"]  # with masks
    masked: Bool[Array, "B S"]
    level: Float[Array, " B"]  # t; the weight of a masked token is 1/t


def noise_levels(key: Key[Array, ""], batch: int) -> Float[Array, " B"]:
    """In (0, 1], each uniform, together evenly spread."""
    return 1.0 - (jax.random.uniform(key) + jnp.arange(batch) / batch) % 1.0


def add_noise(
    key: Key[Array, ""],
    tokens: Int[Array, "B S"],
    maskable: Bool[Array, "B S"],
    mask_id: int,
    kind: Noise,
    most: Float[Array, ""] | float = 1.0,
) -> Noised:
    """maskable: tokens that may be masked; a sequence without any stays as it is. Levels are <= `most`."""
    for_level, for_position = jax.random.split(key)
    level = most * noise_levels(for_level, tokens.shape[0])
    draw = jax.random.uniform(for_position, tokens.shape)
    if kind == "bernoulli":
        level = SMALLEST + (1 - SMALLEST) * level
        masked = maskable & (draw < level[:, None])
    else:
        total = maskable.sum(axis=1)
        masks = jnp.clip(jnp.ceil(level * total), 1, total)
        level = jnp.where(total > 0, masks / jnp.maximum(total, 1), level)
        rank = jnp.argsort(jnp.argsort(jnp.where(maskable, draw, 2.0), axis=1), axis=1)
        masked = maskable & (rank < masks[:, None])
    return Noised(jnp.where(masked, mask_id, tokens), masked, level)


def opened_mask(key: Key[Array, ""], length: int, share: Float[Array, ""] | float) -> Bool[Array, "S S"]:
    """Causal, and of the pairs that look ahead the given share: none at 0, all from 1 on."""
    causal = jnp.tril(jnp.ones((length, length), bool))
    return causal | (jax.random.uniform(key, (length, length)) < share)


def from_start(starts: Sequence[int], length: int) -> tuple[Bool[Array, "B S"], int]:
    """(the positions from each sequence's start on, the earliest start)."""
    return jnp.arange(length) >= jnp.asarray(starts)[:, None], min(starts)


def causal_example(
    config: ModelConfig,
    tokens: Int[Array, "B S"],
    real: Bool[Array, "B S"],
    starts: Sequence[int],
    one_text: bool = True,
) -> Example:
    """Each token from each sequence's start on, given those before it; the loss is their mean.

    one_text: what follows a sequence's first eos does not count; packed texts go on after it.
    """
    wanted, earliest = from_start(starts, tokens.shape[1])
    first = max(earliest, 1)
    counts = wanted & real
    if one_text:
        ends = jnp.isin(tokens, jnp.asarray(config.eos_ids)).astype(jnp.int32)
        counts = counts & (jnp.cumsum(ends, axis=1) - ends == 0)
    counts = counts[:, first:] & real[:, first - 1 : -1]  # the first real token has nothing before it
    return Example(tokens, real, tokens[:, first:], counts / counts.sum(), outputs_from(tokens, first, shifted=True))


def diffusion_example(
    config: ModelConfig,
    key: Key[Array, ""],
    tokens: Int[Array, "B S"],
    real: Bool[Array, "B S"],
    starts: Sequence[int],
    noise: Noise,
    most: Float[Array, ""] | float = 1.0,
) -> Example:
    """Masked tokens, weighted 1/t, over the number of tokens that may be masked: those from each sequence's start on."""
    assert config.mask_id is not None
    shifted = config.shift_logits
    wanted, earliest = from_start(starts, tokens.shape[1])
    maskable = real & wanted
    if shifted:  # the first real token has no position before it
        maskable = maskable & jnp.pad(real[:, :-1], ((0, 0), (1, 0)))
    first = max(earliest, int(shifted))
    noised = add_noise(key, tokens, maskable, config.mask_id, noise, most)
    weight = noised.masked / (noised.level * maskable.sum(axis=1))[:, None] / tokens.shape[0]
    return Example(noised.tokens, real, tokens[:, first:], weight[:, first:], outputs_from(tokens, first, shifted))


def block_example(
    config: ModelConfig,
    key: Key[Array, ""],
    tokens: Int[Array, "B S"],
    real: Bool[Array, "B S"],
    starts: Sequence[int],
    noise: Noise,
    most: Float[Array, ""] | float = 1.0,
) -> Example:
    """The noised sequence before the true one. Each block's masked tokens are weighted 1/t of that block; blocks count as
    much as they have tokens that may be masked.

    Blocks are counted from the first real token, so padding is moved to the right. Where logits are shifted, the noised
    token before predicts a token; the first one of a block is predicted by the true sequence, as it is when it is written.
    """
    assert config.mask_id is not None and config.block_length is not None
    batch, length = tokens.shape
    wanted, _ = from_start(starts, length)
    to_left = jax.vmap(lambda x, by: jnp.roll(x, -by), in_axes=(0, 0))
    tokens, real, wanted = (to_left(x, jnp.argmax(real, axis=1)) for x in (tokens, real, wanted))
    maskable, by_block = real & wanted, (-1, config.block_length)
    outputs = jnp.arange(length)
    if config.shift_logits:
        has_before = outputs > 0
        maskable, begins = maskable & has_before, outputs % config.block_length == 0
        outputs = outputs - has_before + jnp.where(has_before & begins, length, 0)
    noised = add_noise(key, tokens.reshape(by_block), maskable.reshape(by_block), config.mask_id, noise, most)
    weight = (noised.masked / noised.level[:, None]).reshape(batch, length) / maskable.sum()
    position = token_positions(config, real)
    return Example(
        tokens=jnp.concatenate([noised.tokens.reshape(batch, length), tokens], axis=1),
        real=jnp.concatenate([real, real], axis=1),
        targets=tokens,
        weight=weight,
        outputs=jnp.broadcast_to(outputs, (batch, length)),
        token_position=jnp.concatenate([position, position], axis=1),
    )


def block_visibility(length: int, block: int) -> Bool[Array, "2S 2S"]:
    """Who sees whom where a noised sequence stands before the true one (query, key)."""
    number = jnp.arange(length) // block
    same, before = number[:, None] == number, number[:, None] > number
    return jnp.block([[same, before], [jnp.zeros_like(same), same | before]])


def outputs_from(tokens: Int[Array, "B S"], first: int, shifted: bool) -> Int[Array, "B W"]:
    """The queries that predict the tokens from `first` on."""
    batch, length = tokens.shape
    return jnp.broadcast_to(jnp.arange(first, length) - shifted, (batch, length - first))


def predictions(model: Model, example: Example, visible: Bool[Array, "*B S S"] | None = None) -> Float[Array, "B W V"]:
    """Logits for the targets."""
    batch, length = example.tokens.shape
    see = None if visible is None else jnp.broadcast_to(visible, (batch, length, length))
    shown = Batch.make(model.config, example.tokens, example.real)
    out = model(shown._replace(visible=see, outputs=example.outputs, token_position=example.token_position))
    assert out.logits is not None
    return out.logits


def weighted_loss(model: Model, example: Example, visible: Bool[Array, "*B S S"] | None = None) -> Float[Array, ""]:
    """The sum of weight times cross-entropy."""
    scores = predictions(model, example, visible)
    picked = jnp.take_along_axis(scores, example.targets[..., None], axis=-1)[..., 0]
    return (example.weight * (jax.nn.logsumexp(scores, axis=-1) - picked)).sum()
