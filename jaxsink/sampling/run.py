"""What every sampler's loop shares: the run's inputs, its static spec, and the carry that goes from step to step.

Each field of `RunInputs` and `Carry` declares once where its batch and head axes are (parallel/axes.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh
from jaxtyping import Bool, Float, Int, PyTree, Shaped

from jaxsink.nn.attention import choose_backend
from jaxsink.nn.batch import Batch, Execution
from jaxsink.nn.cache import Cache
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.edited import at_step
from jaxsink.nn.pass_end import TunedLens
from jaxsink.nn.placed import Placed, Source
from jaxsink.nn.sharding import keep_layout, on_tpu
from jaxsink.nn.transformer import Transformer
from jaxsink.parallel.axes import axes, constrain, pytree_dataclass
from jaxsink.recording.spec import RecordSpec, fills, make_record_spec, packed
from jaxsink.sampling.interventions import Intervention, Previous, Targeted, drop_where, needs, no_drop
from jaxsink.sampling.rng import INTERVENE, INTERVENE_RUN, Draws, step_keys

EditLogits = Callable[[Int[Array, ""], Float[Array, "B W V"], Int[Array, "B W"]], Float[Array, "B W V"]]
EditTokens = Callable[[Int[Array, ""], Int[Array, "B S"]], Int[Array, "B S"]]


class RunSpec(NamedTuple):
    """Static: a change here compiles another program."""

    record: RecordSpec
    intervene: Intervention | None
    prompt_length: int
    total_steps: int
    execution: Execution
    infill: bool = False  # masks stand in the prompt, so the window is the whole canvas
    edits: bool = False  # something is changed at the taps
    edit_logits: EditLogits | None = None
    edit_tokens: EditTokens | None = None
    forced: bool = False  # tokens that stand in the response are written as they are (autoregressive)

    @classmethod
    def make(
        cls,
        config: ModelConfig,
        record: PyTree,
        intervene: Intervention | None,
        *,
        every: int,
        prompt_length: int,
        length: int,
        total_steps: int,
        backend: str | None,
        mesh: Mesh | None,
    ) -> RunSpec:
        """record: the caller's recorders. length: of prompt and response. backend: None chooses by device and length."""
        needed = None if intervene is None else needs(intervene)
        return cls(
            record=make_record_spec(config, record, needed, every),
            intervene=intervene,
            prompt_length=prompt_length,
            total_steps=total_steps,
            execution=Execution(choose_backend(backend, length, length, mesh), mesh, whole_stacks=on_tpu(mesh)),
        )

    @property
    def mesh(self) -> Mesh | None:
        return self.execution.mesh


@pytree_dataclass
class RunInputs:
    """What stays the same in all steps."""

    mask: Bool[Array, "B S"] = axes()  # True = real token
    prompt: Bool[Array, "B S"] = axes()  # True = given by the caller, and not a mask to fill
    draws: Draws = axes()
    policy: Int[Array, " B"] | None = axes()  # which of an intervention's policies each sequence follows
    edits: tuple[Placed, ...] = axes(batch=None, default=())  # what is changed at the taps …
    sources: tuple[Source, ...] = axes(batch=2, default=())  # … and with what, sequence by sequence
    targets: Int[Array, "B S"] | None = axes(default=None)  # the tokens that a lens ranks
    tuned: TunedLens | None = axes(batch=None, default=None)  # what a tuned lens adds


class Decoding(NamedTuple):
    """A model that writes one batch: everything that a step works with, besides the carry."""

    model: Transformer
    inputs: RunInputs
    spec: RunSpec

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    def with_mask(self, mask: Bool[Array, "B S"]) -> Decoding:
        """The same, of these real tokens only."""
        return self._replace(inputs=dataclasses.replace(self.inputs, mask=mask))

    def looked_into(self, batch: Batch, step: Int[Array, ""], *, recorded: bool = True) -> Batch:
        """The batch of a pass with the edits of this step, and what a lens needs. recorded: is it the pass of records?"""
        given = self.inputs
        edits = at_step(given.edits, given.sources, step, recorded=recorded)
        return batch._replace(edits=edits, targets=given.targets, tuned=given.tuned)


@pytree_dataclass
class Carry:
    """What changes from step to step, in every sampler."""

    step: Int[Array, ""] = axes(batch=None)
    tokens: Int[Array, "B S"] = axes()
    committed_at: Int[Array, "B S"] = axes()  # -1 = given, or not yet
    done: Bool[Array, " B"] = axes()
    steps: Int[Array, " B"] = axes()  # steps that each sequence has taken
    needed_record: PyTree[Shaped[Array, "L B ..."]] = axes(1, 2)  # what the intervention reads of the last step
    drop: Shaped[Array, "L B H S"] | None = axes(1, 2)  # what the intervention returned for the last step
    targets: Bool[Array, "L B H S"] | None = axes(1, 2)  # which keys it was after, if it wants to know
    broken: Bool[Array, " B"] | None = axes(default=None, kw_only=True)  # see `checked` and `edited`

    def caches(self) -> tuple[Cache | None, ...]:
        """Keys and values that it holds."""
        return ()

    def replace(self: C, **changes: PyTree) -> C:
        return dataclasses.replace(self, **changes)


C = TypeVar("C", bound=Carry)


@runtime_checkable
class Step(Protocol[C]):
    """One step: (carry, one record per recorder if `record`, else nothing)."""

    def __call__(self, carry: C, *, record: bool) -> tuple[C, tuple[PyTree, ...]]: ...


def run_steps(step: Step[C], carry: C, spec: RunSpec, chunk: int) -> tuple[C, tuple[PyTree, ...]]:
    """Run steps until the chunk, the run or every sequence is finished: (carry, records by recorded step)."""
    plan = spec.record
    shapes = jax.eval_shape(lambda c: step(c, record=True)[1], carry)
    blank = tuple(map(fills, plan.recorders, shapes))
    empty = jax.tree.map(lambda s, fill: jnp.full((plan.recorded(chunk), *s.shape), fill, s.dtype), shapes, blank)
    buffers = packed(keep_layout(empty, spec.mesh, 2, 3), front=3)
    first = carry.step

    def unfinished(state: tuple[C, PyTree]) -> Bool[Array, ""]:
        carry, _ = state
        goes_on = (carry.step < jnp.minimum(first + chunk, spec.total_steps)) & ~carry.done.all()
        return goes_on if carry.broken is None else goes_on & ~carry.broken.any()

    def recorded(carry: C, buffers: PyTree) -> tuple[C, PyTree]:
        index = (carry.step - first) // plan.every
        carry, values = step(carry, record=True)
        put = lambda buffer, value: lax.dynamic_update_index_in_dim(buffer, value, index, 0)  # noqa: E731
        return carry, jax.tree.map(put, buffers, packed(values))

    def unrecorded(carry: C, buffers: PyTree) -> tuple[C, PyTree]:
        return step(carry, record=False)[0], buffers

    def body(state: tuple[C, PyTree]) -> tuple[C, PyTree]:
        carry, buffers = state
        if plan.every == 1 or not plan.recorders:
            return recorded(carry, buffers)
        return lax.cond(carry.step % plan.every == 0, recorded, unrecorded, carry, buffers)

    carry, buffers = lax.while_loop(unfinished, body, (carry, buffers))
    records = jax.tree.map(lambda b, s: b.reshape(len(b), *s.shape), buffers, shapes)
    return constrain(carry, spec.mesh), keep_layout(records, spec.mesh, 2, 3)


def checked(carry: C, logits: Float[Array, "B W V"], counts: Bool[Array, "B W"]) -> C:
    """The carry that remembers whose logits are no numbers, at positions that count; the loop ends there.

    Logits of -inf forbid tokens, so only a position that forbids all of them is broken. The largest tells it all: NaN and
    inf win over every number.
    """
    is_broken = counts & ~jnp.isfinite(logits.max(axis=-1))
    return mark(carry, is_broken.any(axis=1))


def edited(carry: C, tokens: Int[Array, "B S"], vocab: int) -> C:
    """The same of sequences in which `edit_tokens` wrote ids that are none of the model's."""
    return mark(carry, ((tokens < 0) | (tokens >= vocab)).any(axis=1))


def mark(carry: C, is_broken: Bool[Array, " B"]) -> C:
    found = is_broken & ~carry.done
    return carry.replace(broken=found if carry.broken is None else carry.broken | found)


def intervened(run: Decoding, carry: C, mask: Bool[Array, "B S"]) -> C:
    """With what the intervention hides in this step; `mask`: the tokens that were there in the step before."""
    intervene = run.spec.intervene
    if intervene is None:
        return carry
    previous = previous_step(run, carry, mask)
    acts = mask[None, :, None, :] & (carry.step > 0)
    if isinstance(intervene, Targeted) and intervene.has_targets:
        previous = previous._replace(targets=intervene.targets(previous) & acts)
    return carry.replace(drop=drop_where(intervene(previous), acts), targets=previous.targets)


def before_intervening(run: Decoding, carry: C) -> C:
    """With nothing dropped, in the type that the intervention returns."""
    intervene = run.spec.intervene
    if intervene is None:
        return carry
    batch, length = carry.tokens.shape
    nothing = jnp.zeros((run.config.layers, batch, run.config.heads, length), bool)
    targets = nothing if isinstance(intervene, Targeted) and intervene.has_targets else None
    carry = carry.replace(drop=nothing, targets=targets)
    return carry.replace(drop=no_drop(intervene, previous_step(run, carry, run.inputs.mask)))


def previous_step(run: Decoding, carry: Carry, mask: Bool[Array, "B S"]) -> Previous:
    assert carry.drop is not None
    return Previous(
        record=jax.tree.unflatten(run.spec.record.needs_treedef, carry.needed_record),
        step=carry.step,
        tokens=carry.tokens,
        mask=mask,
        prompt=run.inputs.prompt,
        keys=step_keys(run.inputs.draws.keys, INTERVENE, carry.step),
        drop=carry.drop,
        policy=run.inputs.policy,
        run_keys=step_keys(run.inputs.draws.keys, INTERVENE_RUN, 0),
        targets=carry.targets,
        canvas=run.inputs.mask,
    )
