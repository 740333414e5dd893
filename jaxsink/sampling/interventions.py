"""Interventions: what step t recorded decides which keys step t + 1 hides.

An intervention is any function `f(previous: Previous) -> bool[L,B,H,S]`, True = hide this key from every query; or
f32[L,B,H,S], factors on the attention keys receive before it is normalised again (0 hides, 1 leaves alone). It may carry
attributes: `needs`, the recorder(s) whose values it wants to see (default: `record.received()`; () wants none), and
`rank_on = "clean"`, to see what an extra pass without any hidden keys would have recorded instead of what the running,
masked model did. The first step has no previous one, so nothing is hidden there.

Further attributes: `rows` says whose attention is masked. "all" makes an autoregressive model run all queries again in every
step, so that the drop acts on every one of them; in a diffusion model it acts on the queries that are "decoded" or
"masked" alone (`HIDDEN_FROM_SOME`). `check(config, sampler, lengths)` may refuse a run before it begins; and one with
`has_targets = True` says in `targets(previous)` which keys it is after, and sees them again in the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, Key, PyTree, Shaped

from jaxsink.checks import at_least, check_fields
from jaxsink.errors import JaxsinkError
from jaxsink.nn.batch import count_tokens
from jaxsink.nn.config import ModelConfig
from jaxsink.recording.attention import received

if TYPE_CHECKING:
    from jaxsink.sampling.base import Sampler


class Previous(NamedTuple):
    """What an intervention sees of the step before."""

    record: PyTree[Shaped[Array, "L B ..."]]  # values of its `needs`
    step: Int[Array, ""]  # the step that the drop is for (1, 2, …)
    tokens: Int[Array, "B S"]  # the canvas of this step
    mask: Bool[Array, "B S"]  # tokens that were there in the step before; nothing else can be hidden
    prompt: Bool[Array, "B S"]
    keys: Key[Array, " B"]  # a random key per sequence for this step
    drop: Shaped[Array, "L B H S"]  # what the intervention returned for the step before
    policy: Int[Array, " B"] | None = None  # which of several policies a sequence follows; None: its place in the batch
    run_keys: Key[Array, " B"] | None = None  # a random key per sequence that is the same in all steps
    targets: Bool[Array, "L B H S"] | None = None  # in `targets`: what it returned the last time; in a call: this time
    canvas: Bool[Array, "B S"] | None = None  # all tokens that there will be, in every step; None: those of `mask`


Intervention = Callable[[Previous], Shaped[Array, "L B H S"]]

HIDDEN_FROM_SOME = ("decoded", "masked")
"""`rows` of a diffusion model under which not all queries lose what is dropped."""


@runtime_checkable
class Targeted(Protocol):
    """An intervention that remembers which keys it is after."""

    @property
    def has_targets(self) -> bool: ...
    def targets(self, previous: Previous) -> Bool[Array, "L B H S"]: ...
    def __call__(self, previous: Previous) -> Shaped[Array, "L B H S"]: ...


@runtime_checkable
class Checked(Protocol):
    """An intervention that can tell whether it makes sense in a run."""

    def check(self, config: ModelConfig, sampler: Sampler | None, lengths: Int[np.ndarray, " B"] | None) -> None: ...


def needs(intervene: Intervention) -> PyTree:
    """The recorders whose values the intervention reads."""
    wanted = getattr(intervene, "needs", None)
    return received() if wanted is None else wanted


def ranks_on_clean(intervene: Intervention) -> bool:
    return getattr(intervene, "rank_on", "masked") == "clean"


def acts_on_all_rows(intervene: Intervention | None) -> bool:
    """Must every query run again in every step?"""
    return rows_of(intervene) == "all"


def rows_of(intervene: Intervention | None) -> str | None:
    """Whose attention is masked; None: as the sampler does it."""
    return getattr(intervene, "rows", None)


def drop_where(wanted: Shaped[Array, "L B H S"], acts: Bool[Array, ...]) -> Shaped[Array, "L B H S"]:
    """What an intervention wants (bool or factors) where it acts; nothing elsewhere."""
    if jnp.issubdtype(wanted.dtype, jnp.floating):
        return jnp.where(acts, wanted.astype(jnp.float32), 1.0)
    return wanted.astype(bool) & acts


def no_drop(intervene: Intervention, previous: Previous) -> Shaped[Array, "L B H S"]:
    """Nothing dropped, in the type that this intervention returns (arrays of `previous` are shapes)."""
    wanted = jax.eval_shape(intervene, previous)
    check_drop(wanted, previous.drop.shape)
    return drop_where(jnp.zeros(wanted.shape, wanted.dtype), jnp.array(False))


def check_drop(wanted: object, shape: tuple[int, ...]) -> None:
    """Is this what an intervention may return, for a model and a batch of this shape [L,B,H,S]?"""
    is_array = isinstance(wanted, (Array, jax.ShapeDtypeStruct)) and wanted.shape == shape
    kind = getattr(wanted, "dtype", jnp.dtype("int32"))
    if not is_array or not (kind == jnp.bool or jnp.issubdtype(kind, jnp.floating)):
        raise JaxsinkError(
            f"intervene must return [L, B, H, S] = {list(shape)}, bool (True hides a key) or float (a factor on the "
            f"attention that a key receives), and returned {_shown(wanted)}."
        )


def check_edit(name: str, before: Array, after: object) -> Array:
    """What `edit_logits` or `edit_tokens` made of an array, if it is still one of that shape and kind."""
    is_float = jnp.issubdtype(before.dtype, jnp.floating)
    wanted = jnp.floating if is_float else jnp.integer
    if (
        not isinstance(after, (Array, np.ndarray))
        or after.shape != before.shape
        or not jnp.issubdtype(after.dtype, wanted)
    ):
        axes = "logits [B, W, V]" if is_float else "tokens [B, S]"
        raise JaxsinkError(
            f"{name} must return {axes} = {list(before.shape)}, {'float' if is_float else 'whole numbers'}, and returned "
            f"{_shown(after)}."
        )
    return jnp.asarray(after).astype(before.dtype)


def _shown(value: object) -> str:
    if isinstance(value, (Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)):
        return f"{value.dtype}{list(value.shape)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def at_token_positions(mask: Bool[Array, "B S"], positions: tuple[int, ...]) -> Bool[Array, "B S"]:
    """The tokens at these positions, counted from each sequence's first real token."""
    return (count_tokens(mask)[..., None] == jnp.array(positions, jnp.int32)).any(axis=-1) & mask


@dataclass(frozen=True)
class DropPositions:
    """Hide fixed positions, counted from the first token of the prompt, in every step but the first `spare`.

    Attributes:
        positions: the keys that are hidden
        layers: layers to act in; None: all
        heads: heads to act in; None: all
        spare: steps at the start in which nothing is hidden

    Examples:
        >>> first = jaxsink.DropPositions(positions=(0,))
        >>> plain = jaxsink.generate(model, question, sampler, intervene=first, record=jaxsink.record.dropped())
        >>> int(plain.record[1].sum())  # in the second step: of 4 layers, 4 heads each
        16
    """

    positions: tuple[int, ...]
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    spare: int = 0

    needs: ClassVar[tuple[()]] = ()

    def __post_init__(self) -> None:
        check_fields(self, "DropPositions", dict.fromkeys(("positions", "layers", "heads", "spare"), at_least(0)))
        if () in (self.positions, self.layers, self.heads):
            raise JaxsinkError(
                "DropPositions: positions, layers and heads must name at least one, or nothing is hidden."
            )

    def check(self, config: ModelConfig, sampler: Sampler | None, lengths: Int[np.ndarray, " B"] | None) -> None:
        """Are there such positions? lengths: the real tokens of each sequence, prompt and response."""
        longest = None if lengths is None or not len(lengths) else int(lengths.max())
        if longest is not None and max(self.positions) >= longest:
            raise JaxsinkError(
                f"DropPositions: there is no token {max(self.positions)} in {longest} tokens of prompt and response."
            )

    def __call__(self, previous: Previous) -> Bool[Array, "L B H S"]:
        layers, _, heads, _ = previous.drop.shape
        hit = at_token_positions(previous.mask, self.positions)
        where_layer = _chosen(self.layers, layers)[:, None, None, None]
        where_head = _chosen(self.heads, heads)[None, None, :, None]
        return hit[None, :, None, :] & where_layer & where_head & (previous.step >= self.spare)


def _chosen(wanted: tuple[int, ...] | None, count: int) -> Bool[Array, " {count}"]:
    return jnp.ones(count, bool) if wanted is None else jnp.isin(jnp.arange(count), jnp.array(wanted))


def policy_count(intervene: object) -> int | None:
    """How many policies there are to choose from; None: only who wrote it knows."""
    if intervene is None or type(intervene).__module__.startswith("jaxsink."):
        return len(getattr(intervene, "policies", (intervene,)))
    return None


def check(
    intervene: object,
    config: ModelConfig,
    sampler: Sampler | None = None,
    lengths: Int[np.ndarray, " B"] | None = None,
    which: Int[np.ndarray, " B"] | None = None,
) -> None:
    """Is this an intervention for such a run? `policies`, `layers`, `heads` and `check` are optional attributes of one.

    lengths: the real tokens of each sequence, prompt and response. which: the policy that each follows.
    """
    if isinstance(intervene, type):
        raise JaxsinkError(
            f"intervene is the class {intervene.__name__}; give one of its objects, {intervene.__name__}(…)."
        )
    if intervene is not None and not callable(intervene):
        raise JaxsinkError(
            f"intervene must be a function of the previous step, not {_shown(intervene)}: {intervene!r}."
        )
    policies = getattr(intervene, "policies", ())
    for number, policy in enumerate(policies):
        mine = lengths if lengths is None or which is None else lengths[which % len(policies) == number]
        if policy is not None:
            check(policy, config, sampler, mine)
    for name, count in (("layers", config.layers), ("heads", config.heads)):
        for number in getattr(intervene, name, None) or ():
            if not 0 <= number < count:
                raise JaxsinkError(f"intervene: the model has no {name[:-1]} {number}, only 0 to {count - 1}.")
    if isinstance(intervene, Checked):
        intervene.check(config, sampler, lengths)
