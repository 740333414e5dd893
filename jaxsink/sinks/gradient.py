"""How the loss would change with the attention that a key receives: its gradient, for all layers, heads and keys at once.

    canvas = …                                             # with masks
    g = attention_gradient(model, canvas, nats_of(model.config, answer), mask)      # f32[L,B,H,S]

The factors of `forward(scale=…)` multiply a key's attention before queries re-normalise. At 1 the gradient of the loss with
respect to a key's factor says what a slightly louder key would cost: it is the derivative with respect to the logarithm of
the odds of attending to the key. Negative: the model profits from the key. Hiding it (factor 0) is a long way from 1, so
-gradient is the first-order guess of what that costs, and `forward(drop=…)` the answer.

One pass forward and one backward give all L·B·H·S of them. They hold what a training step holds without the gradients of
the weights, the maps of all layers among it: 4·L·B·H·S² bytes and a small multiple of that; give few sequences at a time.
A choice of experts has no derivative, and counts as fixed.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float32, PyTree

from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.attention import NAIVE_LIMIT
from jaxsink.nn.config import AttentionKind, ModelConfig
from jaxsink.nn.forward import forward
from jaxsink.nn.inputs import as_numbers, check_inputs, check_tokens
from jaxsink.nn.transformer import Model

Loss = Callable[[Float32[Array, "B S V"]], Float32[Array, " B"]]
"""Of raw logits, sequence by sequence."""


@checked(block_length=at_least(1))
def attention_gradient(
    model: Model,
    tokens: PyTree[ArrayLike],
    loss: Loss,
    mask: PyTree[ArrayLike] = None,
    *,
    visible: PyTree[ArrayLike] = None,
    hidden_from: PyTree[ArrayLike] = None,
    attention: AttentionKind | None = None,
    block_length: int | None = None,
) -> Float32[Array, "L B H S"]:
    """f32[L,B,H,S]: the derivative of each sequence's loss with respect to a factor on what each key receives, at 1.

    Padded keys have 0. A factor on all keys that a query sees changes nothing, so what all queries see sums to 0 over keys.

    Args:
        model: any
        tokens: int[B,S]
        loss: logits f32[B,S,V] -> f32[B]; sequences must not look at each other's. `nats_of` makes the usual one
        mask: as for `jaxsink.forward`, and so are visible, attention and block_length
        visible: bool[B,S,S], (query, key) pairs that may see each other
        hidden_from: bool[B,S], the queries whose attention the factors act on; None: all
        attention: pattern, on the same weights; None: the model's own
        block_length: of "block_causal"

    Examples:
        >>> loss = jaxsink.sinks.nats_of(model.config, jnp.where(jnp.arange(19) == 5, tokens, -1))
        >>> gradient = jaxsink.sinks.attention_gradient(model, tokens, loss)
        >>> gradient.shape, bool((abs(gradient.sum(axis=-1)) < 1e-3).all())
        ((4, 1, 4, 19), True)
    """
    config = model.config
    given = check_inputs(config, tokens, mask, visible)
    batch, length = given.tokens.shape
    backend = "naive" if length <= NAIVE_LIMIT else "blocked"  # kernels have no derivative

    def total(scale: Float32[Array, "L B H S"]) -> Float32[Array, ""]:
        out = forward(
            model,
            tokens,
            mask,
            visible,
            scale=scale,
            hidden_from=hidden_from,
            attention=attention,
            block_length=block_length,
            backend=backend,
        )
        assert out.logits is not None
        found = loss(out.logits)
        if found.shape != (batch,):
            raise JaxsinkError(f"attention_gradient: the loss must be one number per sequence, not {found.shape}.")
        return found.sum()

    return jax.grad(total)(jnp.ones((config.layers, batch, config.heads, length), jnp.float32))


@checked()
def nats_of(config: ModelConfig, targets: PyTree[ArrayLike]) -> Loss:
    """The loss: nats of the targets int[B,S], summed over each sequence; negative targets are not asked for.

    A target is predicted by the query at its own position, or, of autoregressive models and those whose logits are
    shifted, by the one before it.

    Args:
        config: of the model
        targets: token ids; -1 where nothing is asked

    Examples:
        >>> loss = jaxsink.sinks.nats_of(model.config, tokens)
        >>> loss(jaxsink.forward(model, tokens).logits).shape
        (1,)
    """
    wanted = jnp.asarray(as_numbers("nats_of: targets", targets))
    asked = wanted >= 0
    check_tokens(config, jnp.maximum(wanted, 0))
    shifts = config.predicts_next
    if shifts and bool(asked[:, 0].any()):
        raise JaxsinkError("nats_of: nothing predicts the first token of this model; set its target to -1.")

    def loss(logits: Float32[Array, "B S V"]) -> Float32[Array, " B"]:
        of_query = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
        if shifts:
            of_query = jnp.concatenate([of_query[:, :1], of_query[:, :-1]], axis=1)
        found = jnp.take_along_axis(of_query, jnp.maximum(wanted, 0)[..., None], axis=-1)[..., 0]
        return -jnp.where(asked, found, 0.0).sum(axis=1)

    return loss
