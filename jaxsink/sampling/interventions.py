"""Interventions: what step t recorded decides which keys step t + 1 hides.

An intervention is any function `f(previous: Previous) -> bool[L,B,H,S]`, True = hide this key from every query; or
f32[L,B,H,S], factors on the attention keys receive before rows re-normalise (0 hides, 1 leaves alone). It may carry two
attributes: `needs`, the recorder(s) whose values it wants to see (default: `record.received()`), and `rank_on = "clean"`,
to see what an extra pass without any hidden keys would have recorded instead of what the running, masked model did. The
first step has no previous one, so nothing is hidden there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.recording import recorders as record


class Previous(NamedTuple):
    """What an intervention sees of the step before."""

    record: Any  # values of its `needs`, each leaf with a leading layer axis
    step: Array  # i32[], the step that the drop is for (1, 2, …)
    tokens: Array  # i32[B,S], the canvas of this step
    mask: Array  # bool[B,S], tokens that were there in the step before; nothing else can be hidden
    prompt: Array  # bool[B,S]
    keys: Array  # key[B], a random key per row for this step
    drop: Array  # what the intervention returned for the step before
    policy: Array | None = None  # i32[B], which of several policies a sequence follows; None: its place in the batch


def needs(intervene: Any) -> Any:
    return getattr(intervene, "needs", None) or record.received()


def ranks_on_clean(intervene: Any) -> bool:
    return getattr(intervene, "rank_on", "masked") == "clean"


def effect(wanted: Array, acts: Array) -> Array:
    """bool or f32[L,B,H,S]: what an intervention wants, where it acts; nothing elsewhere."""
    if jnp.issubdtype(wanted.dtype, jnp.floating):
        return jnp.where(acts, wanted.astype(jnp.float32), 1.0)
    return wanted.astype(bool) & acts


def no_effect(intervene: Any, previous: Any) -> Array:
    """What `effect` gives where nothing acts, of the kind this intervention returns (arrays of `previous` are shapes)."""
    wanted = jax.eval_shape(intervene, previous)
    check_effect(wanted, previous.drop.shape)
    return effect(jnp.zeros(wanted.shape, wanted.dtype), jnp.array(False))


def check_effect(wanted: Any, shape: tuple[int, ...]) -> None:
    """Is this what an intervention may return, for a model and a batch of this shape [L,B,H,S]?"""
    kind = getattr(wanted, "dtype", None)
    if kind is None or wanted.shape != shape or not (kind == jnp.bool or jnp.issubdtype(kind, jnp.floating)):
        raise JaxsinkError(
            f"intervene must return [L, B, H, S] = {list(shape)}, bool (True hides a key) or float (a factor on the "
            f"attention that a key receives), and returned {_shown(wanted)}."
        )


def check_edit(name: str, before: Array, after: Any) -> Array:
    """What `edit_logits` or `edit_tokens` made of an array, if it is still one of that shape and kind."""
    is_float = jnp.issubdtype(before.dtype, jnp.floating)
    kind, wanted = getattr(after, "dtype", None), jnp.floating if is_float else jnp.integer
    if kind is None or after.shape != before.shape or not jnp.issubdtype(kind, wanted):
        axes = "logits [B, W, V]" if is_float else "tokens [B, S]"
        raise JaxsinkError(
            f"{name} must return {axes} = {list(before.shape)}, {'float' if is_float else 'whole numbers'}, and returned "
            f"{_shown(after)}."
        )
    return jnp.asarray(after).astype(before.dtype)


def _shown(value: Any) -> str:
    if hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def places(mask: Array, positions: tuple[int, ...]) -> Array:
    """bool[B,S]: the tokens at these positions, counted from each row's first real token."""
    place = jnp.cumsum(mask, axis=1) - 1
    return (place[..., None] == jnp.array(positions, jnp.int32)).any(axis=-1) & mask


@dataclass(frozen=True)
class DropPositions:
    """Hide fixed positions, counted from the first token of the prompt, in every step but the first `spare`."""

    positions: tuple[int, ...]
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    spare: int = 0

    def __call__(self, previous: Previous) -> Array:
        layers, _, heads, _ = previous.drop.shape
        hit = places(previous.mask, self.positions)
        where_layer = _chosen(self.layers, layers)[:, None, None, None]
        where_head = _chosen(self.heads, heads)[None, None, :, None]
        return hit[None, :, None, :] & where_layer & where_head & (previous.step >= self.spare)


def _chosen(wanted: tuple[int, ...] | None, count: int) -> Array:
    return jnp.ones(count, bool) if wanted is None else jnp.isin(jnp.arange(count), jnp.array(wanted))


def check(intervene: Any, config: ModelConfig) -> None:
    if isinstance(intervene, type):
        raise JaxsinkError(
            f"intervene is the class {intervene.__name__}; give one of its objects, {intervene.__name__}(…)."
        )
    if intervene is not None and not callable(intervene):
        raise JaxsinkError(
            f"intervene must be a function of the previous step, not {_shown(intervene)}: {intervene!r}."
        )
    for policy in getattr(intervene, "policies", ()):
        if policy is not None:
            check(policy, config)
    for name, count in (("layers", config.layers), ("heads", config.heads)):
        for number in getattr(intervene, name, None) or ():
            if not 0 <= number < count:
                raise JaxsinkError(f"intervene: the model has no {name[:-1]} {number}, only 0 to {count - 1}.")
