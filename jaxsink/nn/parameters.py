"""The names of a model's parameters, the same in memory, in checkpoints, in sharding rules and in converters."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import PyTree


def named_leaves(model: PyTree) -> tuple[list[tuple[str, Any]], Any]:
    """([(name, array or shape)], treedef); names are attribute paths such as "layers.attention.q.weight"."""
    leaves, treedef = jax.tree_util.tree_flatten_with_path(model)

    def name(path: tuple[Any, ...]) -> str:
        return ".".join(str(getattr(key, "name", getattr(key, "key", ""))) for key in path).removesuffix(".value")

    return [(name(path), leaf) for path, leaf in leaves], treedef
