"""Passes that score given tokens: the one program of all likelihoods that need no steps.

A sequence is an answer after its context, some of the answer's tokens masked for a diffusion model. Where keys are to be
hidden, a first pass over the same canvas finds them, and another one for each policy, with its keys hidden, is scored: there
is no step before to take them from. Both passes together give the divergence from the unmasked model.

A policy with rows="decoded" or "masked" hides keys from the queries of the masked tokens alone, and ranks by what these
look at. An autoregressive model is scored so where keys are hidden from all rows; and where the newest row loses the first
token, which takes no step to know: it then is hidden from the queries of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float32, Int, PyTree, Shaped, UInt32

from jaxsink.evals.batching import power_of_two, round_up
from jaxsink.evals.likelihood.divergence import divergence
from jaxsink.nn.attention import choose_backend
from jaxsink.nn.batch import Batch, Execution
from jaxsink.nn.compilation import compiler_options, model_jit
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.sharding import keep_layout
from jaxsink.nn.transformer import Model, Output
from jaxsink.parallel.hosts import to_host
from jaxsink.parallel.layout import put_batch
from jaxsink.parallel.mesh import Device, mesh_of
from jaxsink.parallel.pmap import merge_batch, pmap_program, split_batch
from jaxsink.recording.spec import RecordSpec, make_record_spec
from jaxsink.sampling import interventions
from jaxsink.sampling.interventions import HIDDEN_FROM_SOME, Intervention, Previous, drop_where, rows_of
from jaxsink.sampling.rng import sequence_keys

HEAD = 64  # positions whose logits are in memory at a time
NARROWEST = 8  # positions of an answer, so that short answers of all lengths share a program


class Row(NamedTuple):
    """One sequence to run. The answer's positions are the last ones, but for causal models, which do not see its end."""

    owner: int  # what its scores count for
    tokens: Int[np.ndarray, " S"]
    given: int  # how many of them are context
    answer: Sequence[int]
    scored: Bool[np.ndarray, " A"]  # as long as the answer
    seed: int
    weight: float = 1.0
    share: float = 0.0  # of the answer's tokens that are masked, where it was set

    def of_answer(self, values: np.ndarray) -> np.ndarray:
        """What counts of values [W] that stand at the right edge."""
        return values[len(values) - len(self.answer) :][self.scored]


class Shape(NamedTuple):
    """Padded sizes: of the sequence, and of the answer at its right edge."""

    length: int
    width: int

    @classmethod
    def of(cls, length: int, answer: int, bucket: int) -> Shape:
        width = max(power_of_two(answer), NARROWEST)
        return cls(max(round_up(length, bucket), width), width)


class Scores(NamedTuple):
    """By sequence and policy, in the order of the intervention's (C is 1 where there is one)."""

    log_prob: Float32[Array, "B *C W"]  # of the answers' tokens
    likeliest: Bool[Array, "B *C W"]  # no token is likelier
    divergence: Float32[Array, "B *C W"] | None  # from the unmasked model; None unless asked for


class Inputs(NamedTuple):
    """Rows as arrays."""

    tokens: Int[Array, "B S"]
    real: Bool[Array, "B S"]
    given: Bool[Array, "B S"]
    targets: Int[Array, "B W"]
    seeds: UInt32[Array, " B"]


class Pass(NamedTuple):
    """Static: what is done with the rows. cfg_scale: LLaDA's guidance. diverge: also compare with the unmasked model."""

    intervene: Intervention | None = None
    cfg_scale: float = 0.0
    diverge: bool = False


class Plan(NamedTuple):
    """Static: a pass for one model and shape."""

    how: Pass
    spec: RecordSpec
    execution: Execution


def run_rows(
    model: Model, rows: Sequence[Row], shape: Shape, how: Pass, devices: Sequence[Device] | None = None
) -> Scores:
    """The scores of all rows, on the host, with the answers at the right edge."""
    config, mesh = model.config, mesh_of(model)
    needs = None if how.intervene is None else interventions.needs(how.intervene)
    execution = Execution(choose_backend(None, shape.length, shape.length, mesh), mesh)
    plan = Plan(how, make_record_spec(config, None, needs), execution)
    inputs = jax.tree.map(lambda x: put_batch(x, mesh), as_inputs(config, rows, shape))
    if devices is None:
        return to_host(_score(model, inputs, plan))
    run = pmap_program(score, (None, 0), 0, devices, static={"plan": plan})
    found = run(model, split_batch(inputs, 0, len(devices)), compiler_options=compiler_options(model))
    return to_host(merge_batch(found, 0, len(rows)))


def as_inputs(config: ModelConfig, rows: Sequence[Row], shape: Shape) -> Inputs:
    """On the host; padded on the left."""
    length, width = shape
    tokens = np.full((len(rows), length), config.pad_id or 0, np.int32)
    real = np.zeros((len(rows), length), bool)
    given, targets = real.copy(), np.zeros((len(rows), width), np.int32)
    for sequence, row in enumerate(rows):
        start = length - len(row.tokens)
        tokens[sequence, start:] = row.tokens
        real[sequence, start:] = True
        given[sequence, start : start + row.given] = True
        targets[sequence, width - len(row.answer) :] = row.answer
    seeds = np.array([row.seed & 0xFFFFFFFF for row in rows], np.uint32)
    return Inputs(tokens, real, given, targets, seeds)  # pyright: ignore[reportArgumentType]


def score(model: Model, inputs: Inputs, plan: Plan) -> Scores:
    """Log-probabilities of the targets, with each policy's keys hidden; a policy that is None takes no pass of its own."""
    config, how = model.config, plan.how
    (batch, length), width = inputs.tokens.shape, inputs.targets.shape[1]
    outputs = jnp.maximum(jnp.arange(length - width, length) - config.shift_logits, 0)
    some = None if how.intervene is None else queries_that_lose_keys(config, inputs, rows_of(how.intervene))

    def run(tokens: Array, drop: Array | None, recorders: tuple[Recorder, ...] = ()) -> Output:
        canvas = Batch.make(config, tokens, inputs.real, prompt=inputs.given)
        canvas = canvas._replace(outputs=jnp.broadcast_to(outputs, (batch, width)), hidden_from=some)
        return model(canvas, drop=drop, recorders=recorders, execution=plan.execution, head=False)

    def scored(drop: Array | None, masked: Array) -> Scores:
        states = {"masked": masked, **({"unmasked": first.hidden} if how.diverge else {})}
        if how.cfg_scale:
            states["unguided"] = run(jnp.where(inputs.given, config.mask_id or 0, inputs.tokens), drop).hidden
        return in_chunks(model, states, inputs.targets, how.cfg_scale)

    def hiding(policy: Array) -> Scores:
        drop = keys_to_hide(config, inputs, plan, first.record, policy)
        return scored(drop, run(inputs.tokens, drop).hidden)

    first = run(inputs.tokens, None, plan.spec.needs)
    policies = (None,) if how.intervene is None else getattr(how.intervene, "policies", (how.intervene,))
    numbers = [number for number, policy in enumerate(policies) if policy is not None]
    found: list[Scores | None] = [None] * len(policies)
    if len(numbers) < len(policies):
        plain = scored(None, first.hidden)
        found = [plain if policy is None else None for policy in policies]
    if numbers:
        hidden = lax.map(hiding, jnp.array(numbers))
        for place, number in enumerate(numbers):
            found[number] = jax.tree.map(lambda x, place=place: x[place], hidden)
    return keep_layout(jax.tree.map(lambda *parts: jnp.stack(parts, axis=1), *found), plan.execution.mesh)


_score = model_jit(static=("plan",))(score)


def queries_that_lose_keys(config: ModelConfig, inputs: Inputs, rows: str | None) -> Bool[Array, "B S"] | None:
    """Those of masked tokens ("masked"), or from which these are read ("decoded"); of an autoregressive model those that
    have lost keys when they were the newest, all from the answer's first token on. None: all."""
    if config.attention == "causal" and rows != "all":
        return inputs.real & ~inputs.given
    if rows not in HIDDEN_FROM_SOME:
        return None
    masked = inputs.real & (inputs.tokens == config.mask_id)
    if rows == "masked" or not config.shift_logits:
        return masked
    return jnp.pad(masked[:, 1:], ((0, 0), (0, 1)))


def keys_to_hide(
    config: ModelConfig, inputs: Inputs, plan: Plan, record: PyTree, policy: Int[Array, ""]
) -> Shaped[Array, "L B H S"]:
    """What one of the intervention's policies makes of a pass in which nothing is hidden."""
    assert plan.how.intervene is not None
    batch, length = inputs.tokens.shape
    previous = Previous(
        record=jax.tree.unflatten(plan.spec.needs_treedef, record),
        step=jnp.int32(1),
        tokens=inputs.tokens,
        mask=inputs.real,
        prompt=inputs.given,
        keys=sequence_keys(inputs.seeds),
        drop=jnp.zeros((config.layers, batch, config.heads, length), bool),
        policy=jnp.full(batch, policy),
    )
    return drop_where(plan.how.intervene(previous), inputs.real[None, :, None, :])


def in_chunks(model: Model, states: dict[str, Array], targets: Int[Array, "B W"], cfg_scale: float) -> Scores:
    """The head over hidden states [B,W,E], some positions at a time; scores [B,W]."""
    batch, width = targets.shape
    chunk = min(width, HEAD)  # both are powers of two

    def head(part: tuple[dict[str, Array], Array]) -> Scores:
        states, target = part
        logits = {name: model.logits(hidden) for name, hidden in states.items()}
        scores = logits["masked"]
        if cfg_scale:
            scores = logits["unguided"] + (cfg_scale + 1) * (scores - logits["unguided"])
        picked = jnp.take_along_axis(scores, target[..., None], axis=-1)[..., 0]
        apart = divergence(logits["unmasked"], scores) if "unmasked" in logits else None
        return Scores(picked - jax.nn.logsumexp(scores, axis=-1), scores.argmax(axis=-1) == target, apart)

    def cut(x: Array) -> Array:
        return jnp.moveaxis(x.reshape(batch, width // chunk, chunk, *x.shape[2:]), 1, 0)

    found = lax.map(head, (jax.tree.map(cut, states), cut(targets)))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(batch, width), found)
