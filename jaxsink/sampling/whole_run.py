"""A run from its start to what the caller gets: all steps at once, or in chunks whose records move to the host."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, PyTree

from jaxsink.errors import JaxsinkError
from jaxsink.nn.memory import explained, wait_on_cpu
from jaxsink.nn.pass_end import TunedLens
from jaxsink.nn.placed import Placed, Source
from jaxsink.nn.recorder import wants_targets
from jaxsink.parallel.hosts import to_host
from jaxsink.parallel.layout import put_batch
from jaxsink.parallel.mesh import DATA
from jaxsink.parallel.pmap import pad_batch
from jaxsink.recording.spec import fills
from jaxsink.sampling.base import filler_id
from jaxsink.sampling.execution import Program
from jaxsink.sampling.generation import Generation, end_ids
from jaxsink.sampling.inputs import Start
from jaxsink.sampling.leaves import Kept
from jaxsink.sampling.needs import bytes_needed
from jaxsink.sampling.prompts import known_tokenizer
from jaxsink.sampling.run import Carry, RunInputs
from jaxsink.sampling.run_options import Listener, RunOptions


def whole_run(
    program: Program,
    start: Start,
    how: RunOptions,
    *,
    seed: int | Sequence[int],
    policy: Int[np.ndarray, " B"],
    edits: tuple[tuple[Placed, ...], tuple[Source, ...]],
    tuned: TunedLens | None,
) -> Generation:
    """All steps of a program, which has no copies of the weights on its devices yet."""
    spec, devices = program.spec, program.devices
    share = len(devices) if devices is not None else 1 if spec.mesh is None else spec.mesh.shape[DATA]

    def place(x: np.ndarray, axis: int = 0) -> Array:
        return put_batch(pad_batch(x, axis, share), spec.mesh, axis)

    inputs = start.inputs(spec, program.model.config.vocab, place, seed, how.draws, policy, edits)
    inputs = dataclasses.replace(inputs, tuned=tuned)
    canvas = place(start.canvas)
    copied = Program.on(program.model, program.sampler, spec, devices)
    if wants_targets(spec.record.recorders):
        inputs = with_targets(copied, canvas, inputs, how, place)
    needed = partial(bytes_needed, program, canvas, inputs, how.stream or spec.total_steps)
    with explained("this run", needed):
        carry, records = run(copied, canvas, inputs, how.stream, how.listener, len(start.canvas))
        wait_on_cpu(carry.tokens)
    written = as_generation(copied, start, inputs, carry, records)
    if how.targets is None and inputs.targets is not None:
        say_if_other(to_host(written.tokens), to_host(inputs.targets)[: len(start.canvas)])
    return written


def with_targets(
    program: Program, canvas: Int[Array, "B S"], inputs: RunInputs, how: RunOptions, place: Callable[..., Array]
) -> RunInputs:
    """With the tokens that a lens ranks: the caller's, or those that a run without records writes."""
    if how.targets is not None:
        tokens = np.asarray(how.targets)
        if tokens.ndim != 2 or tokens.shape[1] != canvas.shape[1]:
            raise JaxsinkError(f"targets must be [batch, {canvas.shape[1]}], prompt and response, not {tokens.shape}.")
        return dataclasses.replace(inputs, targets=place(tokens.astype(np.int32)))
    nothing = program.spec.record._replace(recorders=(), treedef=jax.tree.structure(None))
    first = dataclasses.replace(program, spec=program.spec._replace(record=nothing))
    carry, _ = run(first, canvas, inputs, None, None, len(canvas))
    return dataclasses.replace(inputs, targets=place(to_host(carry.tokens)))


def say_if_other(tokens: Int[np.ndarray, "B S"], targets: Int[np.ndarray, "B S"]) -> None:
    """A program that records should round as one that does not; where it does not, ranks are those of other tokens."""
    count = int((tokens != targets).sum())
    if count:
        warnings.warn(
            f"the run that was recorded wrote {count} other tokens than the run before it, whose tokens the lens ranks; "
            "give targets= to choose.",
            stacklevel=4,
        )


def run(
    program: Program,
    canvas: Int[Array, "B S"],
    inputs: RunInputs,
    stream: int | None,
    listener: Listener | None,
    count: int,
) -> tuple[Carry, tuple[PyTree, ...]]:
    """All steps in one program, or chunk by chunk with the records of each moved to the host.

    count: the sequences that the listener is shown; the others only fill the batch up.
    """
    spec, batch = program.spec, len(canvas)
    carry = program.start(canvas, inputs)
    if stream is None:
        carry, records = program.advance(carry, inputs, spec.total_steps, is_first=True)
        return check_numbers(program.joined(carry, batch), count, program.model.config.vocab), records
    chunks, chunk, wanted = [], min(stream, spec.total_steps), spec.record.recorded(spec.total_steps)
    while len(chunks) * spec.record.recorded(chunk) < wanted and not bool(carry.done.all()):
        carry, records = program.advance(carry, inputs, chunk, is_first=not chunks)
        chunks.append(to_host(records))
        now = check_numbers(program.joined(carry, batch), count, program.model.config.vocab)
        if listener is not None:
            records = cut(chunks[-1], batch, count, axis=2)
            tell(listener, now, count, jax.tree.unflatten(spec.record.treedef, records))
    blank = tuple(map(fills, spec.record.recorders, chunks[0]))
    return program.joined(carry, batch), jax.tree.map(
        lambda fill, *parts: all_steps(parts, wanted, fill), blank, *chunks
    )


def check_numbers(carry: Carry, count: int, vocab: int) -> Carry:
    """The same carry, if nothing was chosen by logits that are no numbers, and all tokens are the model's."""
    broken = np.flatnonzero(to_host(carry.broken)[:count])
    if broken.size:
        tokens = to_host(carry.tokens)[broken[0]]
        strange = tokens[(tokens < 0) | (tokens >= vocab)]
        if strange.size:
            raise JaxsinkError(
                f"edit_tokens wrote token id {strange[0]} into sequence {broken[0]}, outside the model's vocabulary of "
                f"{vocab} rows."
            )
        raise JaxsinkError(
            f"the logits of sequence {broken[0]} became NaN or infinite in step {int(carry.step) - 1}, so there is nothing "
            "to choose by; look at the weights (jaxsink.load verifies them), at the type, and at what intervenes."
        )
    return carry


def tell(listener: Listener, carry: Carry, count: int, record: PyTree) -> None:
    """How far the sequences are; and the record of the last steps, to a listener that takes it."""
    more = {"record": record} if "record" in inspect.signature(listener).parameters else {}
    tokens, committed_at = to_host((carry.tokens, carry.committed_at))
    listener(int(carry.step), tokens[:count], committed_at[:count], **more)


def cut(tree: PyTree, filled: int, count: int, axis: int = 0) -> PyTree:
    """The first `count` of `filled` sequences, in arrays that have them at this axis."""

    def one(x: Array | np.ndarray) -> Array | np.ndarray:
        is_filled = count != filled and x.ndim > axis and x.shape[axis] == filled
        return x[(slice(None),) * axis + (slice(count),)] if is_filled else x

    return jax.tree.map(one, tree)


def all_steps(parts: tuple[np.ndarray, ...], count: int, fill: int) -> np.ndarray:
    """The chunks as one array of `count` recorded steps; `fill` stands for those that an early end left out."""
    joined = np.concatenate(parts)[:count]
    return np.concatenate([joined, np.full((count - len(joined), *joined.shape[1:]), fill, joined.dtype)])


def as_generation(
    program: Program, start: Start, inputs: RunInputs, carry: Carry, records: tuple[PyTree, ...]
) -> Generation:
    """What the caller gets, without the sequences that only filled the batch up."""
    sampler, spec, config = program.sampler, program.spec, program.model.config
    only = partial(cut, filled=inputs.mask.shape[0], count=len(start.canvas))
    tokens = only(carry.tokens)
    return Generation(
        tokens=jnp.where(tokens < 0, filler_id(config), tokens) if spec.forced else tokens,
        committed_at=only(carry.committed_at),
        record=jax.tree.unflatten(spec.record.treedef, only(records, axis=2)),
        mask=only(inputs.mask),
        steps=only(carry.steps),
        prompt_length=spec.prompt_length,
        recorded_steps=np.arange(0, spec.total_steps, spec.record.every),
        approximate=sampler.cache,
        log_prob=only(sampler.log_prob(carry)),
        divergence=only(sampler.divergence(carry)),
        commits=only(sampler.commits(carry), axis=1),
        autoregressive=sampler.is_autoregressive,
        recorders=jax.tree.unflatten(spec.record.treedef, map(Kept.of, spec.record.recorders)),
        tokenizer=known_tokenizer(program.model),
        end_ids=end_ids(config) if sampler.ends_at_eos else (),
        appending=sampler.appending(config),
    )
