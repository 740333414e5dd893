"""The compiled program of a run: one for all steps, on one device, on a mesh, or on several devices by pmap.

`generate`, the planner and the evaluation engine all run a sampler through `Program`; it alone knows how it is compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int, PyTree

from jaxsink.errors import JaxsinkError
from jaxsink.nn.compilation import compiler_options, model_jit
from jaxsink.nn.sharding import layout_of
from jaxsink.nn.transformer import Transformer
from jaxsink.parallel.axes import by_field, constrain, join, split, split_axes
from jaxsink.parallel.mesh import Device
from jaxsink.parallel.pmap import merge_batch, pmap_program, split_batch
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.context_cache import keeps_context
from jaxsink.sampling.rng import Draws, sequence_keys
from jaxsink.sampling.run import Carry, Decoding, RunInputs, RunSpec, mark, run_steps

C = TypeVar("C", bound=Carry)


def start(model: Transformer, tokens: Int[Array, "B S"], inputs: RunInputs, sampler: Sampler, spec: RunSpec) -> Carry:
    carry = sampler.init(decoding(model, inputs, sampler, spec), tokens)
    return constrain(mark(carry, jnp.zeros_like(carry.done)), spec.mesh)


def decoding(model: Transformer, inputs: RunInputs, sampler: Sampler, spec: RunSpec) -> Decoding:
    return Decoding(model.with_config(sampler.run_config(model.config)), inputs, spec)


def advance(
    model: Transformer, carry: C, inputs: RunInputs, sampler: Sampler, spec: RunSpec, chunk: int, is_first: bool
) -> tuple[C, tuple[PyTree, ...]]:
    """Up to `chunk` more steps; before the first of all, what the sampler runs once (the prompt)."""
    run = decoding(model, inputs, sampler, spec)
    if is_first:
        carry = sampler.prefill(run, carry)
    return run_steps(partial(sampler.step, run), carry, spec, chunk)


_start = jax.jit(start, static_argnames=("sampler", "spec"))
_advance = model_jit(static=("sampler", "spec", "chunk", "is_first"), donated=("carry",))(advance)


@dataclass(frozen=True)
class Program:
    """A model, a sampler and the static spec of a run. devices: deal the sequences out over these by pmap."""

    model: Transformer
    sampler: Sampler
    spec: RunSpec
    devices: tuple[Device, ...] | None = None

    @classmethod
    def on(cls, model: Transformer, sampler: Sampler, spec: RunSpec, devices: tuple[Device, ...] | None) -> Program:
        """With a copy of the weights on each of the devices, if there are any."""
        return cls(model if devices is None else replicate(model, devices), sampler, spec, devices)

    @property
    def prefills(self) -> bool:
        """Is there something to run before the first step?"""
        return self.sampler.prefills or keeps_context(self.sampler, self.model.config, self.spec)

    def start(self, tokens: Int[Array, "B S"], inputs: RunInputs) -> Carry:
        """The carry before the first step."""
        static = {"sampler": self.sampler, "spec": self.spec}
        if self.devices is None:
            return _start(self.model, tokens, inputs, **static)
        tokens, inputs = split_batch(tokens, 0, len(self.devices)), split(inputs, len(self.devices))
        run = pmap_program(start, (None, 0, split_axes(inputs)), 0, self.devices, static=static)
        return run(self.model, tokens, inputs)

    def advance(self, carry: C, inputs: RunInputs, chunk: int, is_first: bool) -> tuple[C, tuple[PyTree, ...]]:
        """Up to `chunk` more steps: (carry, records with leading axes [recorded steps, L, B])."""
        is_first = is_first and self.prefills  # else all chunks share one program
        if self.devices is None:
            return _advance(self.model, carry, inputs, self.sampler, self.spec, chunk, is_first)
        batch, inputs = inputs.mask.shape[0], split(inputs, len(self.devices))
        static = {"sampler": self.sampler, "spec": self.spec, "chunk": chunk, "is_first": is_first}
        in_axes = (None, 0, split_axes(inputs))
        run = pmap_program(advance, in_axes, (0, 2), self.devices, donate=(1,), static=static)
        carry, records = run(self.model, carry, inputs, compiler_options=compiler_options(self.model))
        return carry, jax.tree.map(partial(_one_batch, batch=batch), records)

    def joined(self, carry: C, batch: int) -> C:
        """The carry as one batch: its step, and the fields that have the batch first."""
        return carry if self.devices is None else join(carry, batch).replace(step=carry.step.max())

    def lower(self, batch: int, length: int, chunk: int) -> jax.stages.Lowered:
        """The program for shapes alone: the model's weights may be shapes too, on devices that are not there."""
        mesh = self.spec.mesh
        inputs, tokens = _input_shapes(batch, length), jax.ShapeDtypeStruct((batch, length), jnp.int32)
        if mesh is not None:
            inputs, tokens = _on_mesh(inputs, mesh), _on_mesh(tokens, mesh)
        carry = jax.eval_shape(partial(start, sampler=self.sampler, spec=self.spec), self.model, tokens, inputs)
        carry = carry if mesh is None else _on_mesh(carry, mesh)
        return _advance.lower(self.model, carry, inputs, self.sampler, self.spec, chunk, self.prefills)

    def shapes(self, tokens: Int[Array, "B S"], inputs: RunInputs, chunk: int) -> tuple[Carry, tuple[PyTree, ...]]:
        """(carry, records of a chunk) as shapes; nothing is allocated."""
        static = {"sampler": self.sampler, "spec": self.spec}
        carry = jax.eval_shape(partial(start, **static), self.model, tokens, inputs)
        run = partial(advance, **static, chunk=chunk, is_first=self.prefills)
        return carry, jax.eval_shape(run, self.model, carry, inputs)[1]


def _input_shapes(batch: int, length: int) -> RunInputs:
    real = jax.ShapeDtypeStruct((batch, length), bool)
    keys = jax.eval_shape(lambda: sequence_keys(jnp.zeros(batch, jnp.uint32)))
    policy = jax.ShapeDtypeStruct((batch,), jnp.int32)
    return RunInputs(real, real, Draws(keys), policy)  # pyright: ignore[reportArgumentType]


def _on_mesh(tree: PyTree, mesh: Mesh) -> PyTree:
    """Shapes with the sharding that arrays of a run have."""

    def place(x: PyTree, batch: int | None = 0, heads: int | None = None) -> PyTree:
        def one(s: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=layout_of(s.shape, mesh, batch, heads))

        return jax.tree.map(one, x)

    return by_field(tree, place) if dataclasses.is_dataclass(tree) else place(tree)


def _one_batch(x: Array, batch: int) -> Array:
    """[T, L, devices, B / devices, …] -> [T, L, B, …]."""
    if x.ndim < 4 or x.shape[2] * x.shape[3] != batch:
        raise JaxsinkError("with devices=…, every record needs the batch as its first axis: [B, ...] per layer.")
    return merge_batch(x, 2, batch)


def replicate(model: Transformer, devices: Sequence[Device]) -> Transformer:
    """The model with a copy of its weights on each device, once: pmap would make them anew for every chunk of steps."""
    everywhere = NamedSharding(Mesh(np.array(devices), ("devices",)), PartitionSpec())
    return jax.device_put(model, everywhere)
