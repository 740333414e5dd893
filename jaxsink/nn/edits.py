"""Edits: what is changed at a tap while the model runs. The functions here make them; nn/edited.py carries them out.

    forward(model, tokens, edits=zero("values", layers=[3], heads=[5]))               without one head
    generate(model, prompt, intervene=add(vector, layers=[8], at="masked"))           steering
    generate(model, prompt, intervene=patch(other.record, layers=[4], at="sink"))     activation patching
    generate(model, prompt, intervene=[MaskSinks(1), scale(0.5, "mlp")])              with hidden keys, and several at once

A tap of an edit is one of those that recorders read (nn/recorder.py), except "attention", whose probabilities `drop` and
`scale` of a pass change; and "value_vectors": what the heads of an attention mix, as `record.value_vectors()` has them. They
belong to the keys: an edit of them changes what all queries of this pass get there, also where a cache holds the key.

Every edit may be kept to `layers`, to `heads` (of the taps that have them), to sampler `steps`, and to tokens by `at`: token
positions counted from each sequence's first real token, bool[B,S], or one of `SELECTORS`:

    "sink"                             the position that receives most attention over the layer's heads, in this very pass
    "masked", "unmasked", "prompt"     by kind
    "end-of-text"                      tokens that end a text

Layers, heads, positions, steps and values are arguments of the compiled program: other numbers do not compile it again.
Where guidance runs a second pass, without the prompt, vectors that belong to positions (of `patch`, and of `add` in the
shape of a record) stay out of it; other edits act there too.
Where a pass runs some tokens only, on the cached keys and values of others, only those that run can be edited (value vectors
are there of all).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, PyTree

from jaxsink.checks import at_least, check_value
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.inputs import as_numbers
from jaxsink.nn.recorded import Recorded, layers_of, steps_taken, the_one

EditTap = Literal[
    "embedding",
    "residual_before",
    "value_vectors",
    "values",
    "head_outputs",
    "attention_output",
    "mlp",
    "residual",
    "final_norm",
]
How = Literal["replace", "add", "scale"]
At = str | Sequence[int] | Int[ArrayLike, " N"] | Bool[ArrayLike, "B S"] | None
Numbers = Sequence[int] | None

CHOSEN = dict.fromkeys(("at", "layers", "heads", "steps"), at_least(0))
SELECTORS = ("sink", "masked", "unmasked", "prompt", "end-of-text")
BY_HEAD = ("value_vectors", "values", "head_outputs")  # taps with a vector per head; of value vectors, per head of keys
BEFORE_ATTENTION = ("embedding", "residual_before", "final_norm")  # taps that no layer's own attention comes before


@dataclass(frozen=True, eq=False)
class Edit:
    """One change at one tap. Made by `add`, `scale`, `zero`, `mean` and `patch`.

    Examples:
        >>> one = jaxsink.edit.zero("mlp", layers=[2])
        >>> isinstance(one, jaxsink.edit.Edit), one.layers
        (True, (2,))
        >>> one.axes
        1
    """

    how: How
    tap: EditTap
    value: Float[ArrayLike, "..."] | None = (
        None  # broadcast over sequences and positions; with a layer axis if `by_layer`
    )
    source: Float[ArrayLike, "*T L B S *F"] | None = None  # what each position is given
    source_steps: tuple[int, ...] | None = None  # the numbers of the source's steps; None = not known
    source_layers: tuple[int, ...] | None = None  # those it is of, in its order; None = not known
    source_start: int | None = None  # the position that step 0 of the source ran, if every step ran one token
    source_taken: Bool[ArrayLike, "T B"] | None = None  # the steps that its sequences took; None = all
    by_layer: bool = False
    at: At = None
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = field(default=None)

    def __post_init__(self) -> None:
        check_value("edit: tap", self.tap, EditTap)
        for name in ("layers", "heads", "steps"):
            numbers = check_value(f"edit: {name}", getattr(self, name), tuple[int, ...] | None, at_least(0))
            if numbers == ():
                raise JaxsinkError(f"edit: {name} names none; leave it out for all of them.")
            object.__setattr__(self, name, numbers)
        if self.heads is not None and self.tap not in BY_HEAD:
            taps = ", ".join(map(repr, BY_HEAD))
            raise JaxsinkError(f"edit: heads belong to the taps {taps}, not to {self.tap!r}.")
        if self.layers is not None and self.tap in ("embedding", "final_norm"):
            raise JaxsinkError(f"edit: the tap {self.tap!r} belongs to no layer; leave the layers out.")
        if isinstance(self.at, str) and self.at not in SELECTORS:
            raise JaxsinkError(
                f"edit: at must be positions, bool[B,S] or one of {', '.join(SELECTORS)}, not {self.at!r}."
            )
        if isinstance(self.at, str) and self.at == "sink" and self.tap in BEFORE_ATTENTION:
            raise JaxsinkError(
                f"edit: the sink of a layer is known after its attention, and {self.tap!r} comes before it."
            )

    @property
    def axes(self) -> int:
        """Of one vector of the tap."""
        return 2 if self.tap in BY_HEAD else 1


@checked(**CHOSEN)
def add(
    vector: Float[ArrayLike, "..."],
    tap: EditTap = "residual",
    *,
    at: At = None,
    layers: Numbers = None,
    heads: Numbers = None,
    steps: Numbers = None,
) -> Edit:
    """Add a vector: steering.

    Args:
        vector: [E], or of taps with heads one per head or one for all; in the shape of a record, each position has its own
        tap: where
        at: positions: token positions, bool[B,S], or what they are, such as "sink" or "masked"; None: all
        layers: layers to act in; None: all
        heads: heads to act in; None: all
        steps: steps of a run to act in; None: all

    Examples:
        >>> steer = jaxsink.edit.add(np.ones(model.config.width), layers=[1])
        >>> plain, steered = (jaxsink.forward(model, tokens, edits=edit).logits for edit in (None, steer))
        >>> bool(jnp.allclose(plain, steered))
        False
    """
    given = as_numbers("edit: vector", vector)
    is_record = given.ndim >= (5 if tap in BY_HEAD else 4)
    return _edit("add", tap, at, layers, heads, steps, **{"source" if is_record else "value": given})


@checked(**CHOSEN)
def scale(
    factor: Float[ArrayLike, "..."],
    tap: EditTap,
    *,
    at: At = None,
    layers: Numbers = None,
    heads: Numbers = None,
    steps: Numbers = None,
) -> Edit:
    """Multiply by a number, or by one per feature.

    Args:
        factor: the number, or one per feature
        tap: where
        at: positions: token positions, bool[B,S], or what they are, such as "sink" or "masked"; None: all
        layers: layers to act in; None: all
        heads: heads to act in; None: all
        steps: steps of a run to act in; None: all

    Examples:
        >>> same = jaxsink.edit.scale(1.0, "mlp")
        >>> plain, scaled = (jaxsink.forward(model, tokens, edits=edit).logits for edit in (None, same))
        >>> bool(jnp.allclose(plain, scaled, atol=1e-3))
        True
    """
    return _edit("scale", tap, at, layers, heads, steps, value=as_numbers("edit: factor", factor))


@checked(**CHOSEN)
def zero(tap: EditTap, *, at: At = None, layers: Numbers = None, heads: Numbers = None, steps: Numbers = None) -> Edit:
    """Put zero in the place: the head, the mlp or the position adds nothing.

    Args:
        tap: where
        at: positions: token positions, bool[B,S], or what they are, such as "sink" or "masked"; None: all
        layers: layers to act in; None: all
        heads: heads to act in; None: all
        steps: steps of a run to act in; None: all

    Examples:
        >>> without = jaxsink.edit.zero("mlp", layers=[2])
        >>> jaxsink.forward(model, tokens, edits=without, record=jaxsink.record.mlp_norm()).record[2].max().item()
        0.0
    """
    return _edit("replace", tap, at, layers, heads, steps, value=0.0)


@checked(**CHOSEN)
def mean(
    source: PyTree[ArrayLike] | Recorded,
    tap: EditTap,
    *,
    mask: Bool[ArrayLike, "B S"] | None = None,
    at: At = None,
    layers: Numbers = None,
    heads: Numbers = None,
    steps: Numbers = None,
) -> Edit:
    """Put the layer's mean over a record's steps, sequences and positions in the place: mean ablation.

    Args:
        source: a record of this tap (`record.mlp_output()` of "mlp", and so on), by a pass or a run; or the run
        tap: where
        mask: what of the source counts
        at: positions: token positions, bool[B,S], or what they are, such as "sink" or "masked"; None: all
        layers: layers to act in; None: all
        heads: heads to act in; None: all
        steps: steps of a run to act in; None: all

    Examples:
        >>> source = jaxsink.forward(model, tokens, record=jaxsink.record.mlp_output()).record
        >>> ablated = jaxsink.forward(model, tokens, edits=jaxsink.edit.mean(source, "mlp"))
        >>> ablated.logits.shape[:2] == tokens.shape
        True
    """
    made = _edit("replace", tap, at, layers, heads, steps, source=the_one(source))
    values = jnp.asarray(made.source, jnp.float32)
    values = values if values.ndim == made.axes + 4 else values[None]
    if values.ndim != made.axes + 4:
        raise JaxsinkError(
            f"edit: a record of {tap!r} has {made.axes + 3} axes, or one more for steps, not {values.ndim - 1}."
        )
    counts = jnp.ones(values.shape[2:4], bool) if mask is None else jnp.asarray(mask).astype(bool)
    counts = jnp.broadcast_to(counts, (len(values), *counts.shape))
    if isinstance(source, Recorded):
        counts = counts & steps_taken(source)[..., None]
        made = replace(made, source_layers=layers_of(source))
    weight = counts.reshape(len(counts), 1, *counts.shape[1:], *[1] * made.axes)
    total = jnp.where(weight, values, 0.0).sum(axis=(0, 2, 3))
    return replace(made, source=None, value=total / jnp.maximum(counts.sum(), 1), by_layer=True)


@checked(from_step=at_least(0), **CHOSEN)
def patch(
    source: PyTree[ArrayLike] | Recorded,
    tap: EditTap = "residual",
    *,
    at: At = None,
    layers: Numbers = None,
    heads: Numbers = None,
    steps: Numbers = None,
    from_step: int | None = None,
) -> Edit:
    """Put what another run had at this tap in the place: activation patching.

    Args:
        source: a `Generation`, or a record of this tap (`record.residual()`, `record.head_values()` of "values", and so on):
            [L,B,S,…] of `forward`, [T,L,B,S,…] of `generate`, whose step t is then put into step t. A Generation knows which
            steps it recorded; a record alone must have all steps of the run. That of an autoregressive run, which has one
            query per step, is put at the positions that these queries had. Steps that a sequence of the Generation did not
            take, because it had finished, are left as they are. Where it was recorded in some layers only, `layers` names
            those, in its order
        tap: where
        at: positions: token positions, bool[B,S], or what they are, such as "sink" or "masked"; None: all
        layers: layers to act in; None: all
        heads: heads to act in; None: all
        steps: steps of a run to act in; None: all
        from_step: put that step of the source into every step instead: its number in the run, or in a record its place

    Examples:
        >>> other = jnp.flip(tokens, axis=1)  # another text of the same length
        >>> source = jaxsink.forward(model, other, record=jaxsink.record.residual()).record
        >>> patched = jaxsink.forward(model, tokens, edits=jaxsink.edit.patch(source)).logits
        >>> bool(jnp.allclose(patched, jaxsink.forward(model, other).logits, atol=0.1))  # all layers come from there
        True
    """
    made = _edit("replace", tap, at, layers, heads, steps, source=the_one(source))
    if isinstance(source, Recorded):
        start = source.prompt_length - 1 if source.autoregressive else None
        known = {"source_steps": tuple(map(int, source.recorded_steps)), "source_taken": steps_taken(source)}
        made = replace(made, **known, source_start=start, source_layers=layers_of(source))
    return made if from_step is None else _of_step(made, from_step)


def _of_step(made: Edit, step: int) -> Edit:
    """With one step of the source for all."""
    values = jnp.asarray(made.source)
    known = range(len(values)) if made.source_steps is None else made.source_steps
    if values.ndim != made.axes + 4 or step not in known:
        raise JaxsinkError(f"edit: step {step} was not recorded; the record has the shape {values.shape}.")
    at, taken = known.index(step), made.source_taken
    taken = None if taken is None else np.asarray(taken)[at : at + 1]
    return replace(made, source=values[at], source_steps=None, source_start=None, source_taken=taken)


def _edit(
    how: How, tap: EditTap, at: At, layers: Numbers, heads: Numbers, steps: Numbers, **values: ArrayLike | None
) -> Edit:
    chosen = [None if numbers is None else tuple(numbers) for numbers in (layers, heads, steps)]
    return Edit(how, tap, at=at, layers=chosen[0], heads=chosen[1], steps=chosen[2], **values)  # pyright: ignore[reportArgumentType]
