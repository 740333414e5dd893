"""One compiled training step, data-parallel over the devices of a mesh.

Everything random in a step follows from (seed, step), and the draws do not depend on how devices share the batch: one device
or eight give the same result up to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsink.nn.transformer import Model
from jaxsink.parallel import DATA, make_mesh
from jaxsink.tasks.batches import PROMPT, Batch
from jaxsink.training.losses import causal_loss, diffusion_loss, opened_mask
from jaxsink.training.optimizer import make_optimizer, schedule
from jaxsink.training.settings import Settings

LEAST = 0.2  # the largest noise level at the start of a ramp
MIXED = 4  # one sequence in so many is predicted as a whole when settings say "mixed"


class State(NamedTuple):
    """All that a run carries from step to step."""

    model: Model  # unrolled, float32
    optimizer: Any
    step: Array  # i32[], steps done


class Metrics(NamedTuple):
    loss: Array | float
    gradient: Array | float  # norm, before clipping
    rate: Array | float


StepFunction = Callable[[State, Batch, int], tuple[State, Metrics]]


def start(model: Model, settings: Settings, mesh: Mesh) -> State:
    """The state before the first step, a copy on every device."""
    model = model.astype(jnp.float32).unrolled()
    state = State(model, make_optimizer(settings).init(model), jnp.zeros((), jnp.int32))  # pyright: ignore[reportArgumentType]
    return jax.device_put(state, NamedSharding(mesh, PartitionSpec()))


def data_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """All devices, or those given, along the data axis."""
    devices = list(devices or jax.devices())
    return make_mesh(len(devices), 1, devices)


def loss_of(model: Model, batch: Batch, step: Array, settings: Settings, opening: bool) -> Array:
    """The objective's loss at a step; `opening`: some pairs of tokens are still hidden from each other."""
    model = model.astype(settings.dtype)
    tokens, real = jnp.asarray(batch.tokens), jnp.asarray(batch.real)
    starts = row_starts(settings, tokens.shape[0])
    if settings.objective == "causal":
        return causal_loss(model, tokens, real, starts)
    for_noise, for_mask = jax.random.split(jax.random.fold_in(jax.random.key(settings.seed), step))
    visible = None
    if opening:
        visible = opened_mask(for_mask, tokens.shape[1], step / settings.opening_steps)
    most = noise_limit(step, settings)
    return diffusion_loss(model, for_noise, tokens, real, starts, settings.noise, visible, most)


def row_starts(settings: Settings, batch: int) -> tuple[int, ...]:
    """Where the part of each sequence begins that is to be predicted."""
    whole = {"response": (), "mixed": range(0, batch, MIXED), "all": range(batch)}[settings.predict]
    return tuple(0 if number in whole else PROMPT for number in range(batch))


def noise_limit(step: Array, settings: Settings) -> Array | float:
    """The largest noise level of a step."""
    if not settings.ramp:
        return 1.0
    return jnp.minimum(1.0, LEAST + (1 - LEAST) * step / (settings.ramp * settings.steps))


def make_step(settings: Settings, mesh: Mesh) -> StepFunction:
    """f(state, batch, number of the step) -> (state after it, metrics). The old state's memory is used again."""
    optimizer, rate = make_optimizer(settings), schedule(settings)
    whole, by_row = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(DATA))

    def step_with(opening: bool) -> Any:
        def step(state: State, batch: Batch) -> tuple[State, Metrics]:
            loss, gradient = jax.value_and_grad(loss_of)(state.model, batch, state.step, settings, opening)
            update, rest = optimizer.update(gradient, state.optimizer, state.model)  # pyright: ignore[reportArgumentType]
            model: Any = optax.apply_updates(state.model, update)  # pyright: ignore[reportArgumentType]
            metrics = Metrics(loss, optax.tree.norm(gradient), jnp.asarray(rate(state.step)))
            return State(model, rest, state.step + 1), metrics

        return jax.jit(step, donate_argnums=0, in_shardings=(whole, by_row), out_shardings=whole)

    opening, opened = step_with(True), step_with(False)

    def run(state: State, batch: Batch, number: int) -> tuple[State, Metrics]:
        return (opening if number < settings.opening_steps else opened)(state, batch)

    return run
