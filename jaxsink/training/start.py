"""Start values for small models: signals keep their size through narrow layers.

`jaxsink.init` draws every matrix with a deviation of 0.02, which suits widths of thousands. At a width of 128 that
leaves attention all but uniform, and a masked model needs thousands of steps to learn to look anywhere.
"""

from __future__ import annotations

import jax
from jax.sharding import Sharding
from jaxtyping import PyTree

from jaxsink.nn.config import ModelConfig
from jaxsink.nn.new_model import init
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import Model

DRAWN = 0.02  # the deviation of `init`


def small_model(config: ModelConfig, seed: int, shardings: PyTree[Sharding] | None = None) -> Model:
    """Random float32 weights: 1/sqrt(fan-in), less where layers add to the residual stream; norms 1, biases 0.

    shardings: where each leaf lies; None: on one device.
    """
    model = init(config, seed, shardings=shardings)
    leaves, treedef = named_leaves(model)
    return jax.tree.unflatten(treedef, [leaf * deviation(name, leaf.shape, config) / DRAWN for name, leaf in leaves])


def deviation(name: str, shape: tuple[int, ...], config: ModelConfig) -> float:
    if name in ("embedding", "position", "extra_sink"):
        return 0.5
    if not name.endswith("weight") or "norm" in name:
        return DRAWN
    if name == "head.weight":
        return DRAWN
    adds = name.endswith(("attention.o.weight", "mlp.down.weight"))
    return shape[-1] ** -0.5 * ((2 * config.layers) ** -0.5 if adds else 1.0)
