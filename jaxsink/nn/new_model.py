"""Models that come from no checkpoint: with random weights, or with shapes in the place of weights."""

from __future__ import annotations

from functools import partial

import jax
from jax.sharding import Sharding
from jax.typing import DTypeLike
from jaxtyping import PyTree

from jaxsink.checks import Range
from jaxsink.doors import checked
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.linear import random_maker
from jaxsink.nn.quantization import BESIDE, INT8, quantized, type_name
from jaxsink.nn.transformer import Transformer


@checked(seed=Range(-(1 << 31), (1 << 63) - 1))
def init(
    config: ModelConfig,
    seed: int = 0,
    dtype: DTypeLike = "float32",
    shardings: PyTree[Sharding] | None = None,
) -> Transformer:
    """A model with random weights, for training and tests.

    Args:
        config: of the model
        seed: of the random weights
        dtype: of the weights
        shardings: where each leaf lies; None: on one device

    Examples:
        >>> random = jaxsink.init(model.config.replace(layers=1), seed=1)
        >>> jaxsink.forward(random, tokens).logits.shape[-1] == model.config.vocab
        True
    """
    return jax.jit(partial(_random, config, seed, type_name(dtype)), out_shardings=shardings)()


@checked()
def abstract(config: ModelConfig, dtype: DTypeLike = "float32") -> Transformer:
    """The model with shapes in the place of weights; allocates nothing, whatever its size.

    Args:
        config: of the model
        dtype: of the weights that are not there

    Examples:
        >>> large = jaxsink.abstract(jaxsink.preset("llada-8b-instruct"))  # no memory is taken
        >>> large.params["embedding"].shape
        (126464, 4096)
    """
    return jax.eval_shape(partial(_random, config, 0, type_name(dtype)))


def _random(config: ModelConfig, seed: int, dtype: str) -> Transformer:
    if dtype == INT8:
        return quantized(Transformer(config, random_maker(seed, BESIDE)))
    return Transformer(config, random_maker(seed, dtype))
