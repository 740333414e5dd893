"""The names of a model's parameters, the same in memory, in checkpoints, in sharding rules and in converters."""

from __future__ import annotations

import jax
from jax import Array
from jaxtyping import PyTree

from jaxsink.nn.recorder import TreeDef


def named_leaves(model: PyTree) -> tuple[list[tuple[str, Array]], TreeDef]:
    """([(name, array)], treedef); names are attribute paths such as "layers.attention.q.weight"."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(model)

    def name(path: tuple[object, ...]) -> str:
        return jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value")

    return [(name(path), leaf) for path, leaf in leaves], treedef


def is_exact(name: str) -> bool:
    """Is the parameter of this name float32 in every model? Rounded to bfloat16, what is added to the scores of experts to
    choose among them would choose others."""
    return name.endswith("mlp.bias")
