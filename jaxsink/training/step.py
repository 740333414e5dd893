"""One compiled training step, data-parallel over the devices of a mesh.

Everything random in a step follows from (seed, step), and the draws do not depend on how devices or parts share the batch:
one device or eight give the same result up to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Bool, Float, Int, PyTree

from jaxsink.nn.config import ModelConfig
from jaxsink.nn.transformer import Model
from jaxsink.parallel import DATA, make_mesh
from jaxsink.tasks.batches import Batch
from jaxsink.training.examples import (
    Example,
    block_example,
    block_visibility,
    causal_example,
    diffusion_example,
    opened_mask,
    weighted_loss,
)
from jaxsink.training.lora import Adapters, make_adapters, merged
from jaxsink.training.optimizer import make_optimizer, schedule
from jaxsink.training.settings import Settings

LEAST = 0.2  # the largest noise level at the start of a ramp
MIXED = 4  # one sequence in so many is predicted as a whole when settings say "mixed"


class State(NamedTuple):
    """All that a run carries from step to step."""

    trained: Model | Adapters  # the model, unrolled, float32; or what is added to it
    optimizer: PyTree
    step: Int[Array, ""]  # steps done


class Metrics(NamedTuple):
    loss: Float[Array, ""] | float
    gradient: Float[Array, ""] | float  # norm, before clipping
    rate: Float[Array, ""] | float


StepFunction = Callable[[State, Batch, int], tuple[State, Metrics]]


@dataclass(frozen=True)
class Lesson:
    """What a step teaches. prompt: positions before an answer begins, 0 for plain text."""

    config: ModelConfig
    settings: Settings
    prompt: int = 0

    def example(self, batch: Batch, step: Int[Array, ""]) -> Example:
        """What the model is shown at a step."""
        settings, config = self.settings, self.config
        tokens, real = jnp.asarray(batch.tokens), jnp.asarray(batch.real)
        starts = self.starts(tokens.shape[0])
        if settings.objective == "causal":
            return causal_example(config, tokens, real, starts, one_text=self.prompt > 0)
        noised = block_example if settings.objective == "block_diffusion" else diffusion_example
        key, _ = self.keys(step)
        return noised(config, key, tokens, real, starts, settings.noise, self.noise_limit(step))

    def visible(self, length: int, step: Int[Array, ""], opening: bool) -> Bool[Array, "S S"] | None:
        """Who sees whom, on top of the model's own pattern. opening: some pairs are still hidden from each other."""
        if self.settings.objective == "block_diffusion":
            assert self.config.block_length is not None
            return block_visibility(length, self.config.block_length)
        return opened_mask(self.keys(step)[1], length, step / self.settings.opening_steps) if opening else None

    def keys(self, step: Int[Array, ""]) -> tuple[Array, Array]:
        """(for the noise, for the opening mask)."""
        for_noise, for_mask = jax.random.split(jax.random.fold_in(jax.random.key(self.settings.seed), step))
        return for_noise, for_mask

    def starts(self, batch: int) -> tuple[int, ...]:
        """Where the part of each sequence begins that is to be predicted."""
        whole = {"response": (), "mixed": range(0, batch, MIXED), "all": range(batch)}[self.settings.predict]
        return tuple(0 if number in whole else self.prompt for number in range(batch))

    def noise_limit(self, step: Int[Array, ""]) -> Float[Array, ""] | float:
        """The largest noise level of a step."""
        if not self.settings.ramp:
            return 1.0
        return jnp.minimum(1.0, LEAST + (1 - LEAST) * step / (self.settings.ramp * self.settings.steps))


def start(model: Model, settings: Settings, mesh: Mesh) -> tuple[State, Model]:
    """(the state before the first step, the unrolled float32 model), a copy on every device."""
    model = model.astype(jnp.float32).unrolled()
    trained = make_adapters(model, settings.lora, settings.seed) if settings.lora else model
    state = State(trained, make_optimizer(settings).init(trained), jnp.zeros((), jnp.int32))  # pyright: ignore[reportArgumentType]
    return jax.device_put((state, model), NamedSharding(mesh, PartitionSpec()))


def whole_model(trained: Model | Adapters, base: Model | None) -> Model:
    """The model that is meant: itself, or the base with its adapters."""
    if isinstance(trained, Model):
        return trained
    assert base is not None
    return merged(base, trained)


def data_mesh(devices: Sequence[Any] | None = None) -> Mesh:
    """All devices, or those given, along the data axis."""
    devices = list(devices or jax.devices())
    return make_mesh(len(devices), 1, devices)


def loss_of(
    trained: Model | Adapters, base: Model | None, example: Example, visible: Bool[Array, "S S"] | None, dtype: str
) -> Float[Array, ""]:
    return weighted_loss(whole_model(trained, base).astype(dtype), example, visible)


def gradient_of(
    lesson: Lesson, trained: Model | Adapters, base: Model | None, batch: Batch, step: Int[Array, ""], opening: bool
) -> tuple[Float[Array, ""], PyTree]:
    """(loss, gradient) of a batch, part after part."""
    settings = lesson.settings
    example, visible = lesson.example(batch, step), lesson.visible(batch.tokens.shape[1], step, opening)

    def of_part(part: Example) -> tuple[Float[Array, ""], PyTree]:
        return jax.value_and_grad(loss_of)(trained, base, part, visible, settings.dtype)

    if settings.accumulate == 1:
        return of_part(example)
    parts = jax.tree.map(lambda x: x.reshape(settings.accumulate, -1, *x.shape[1:]), example)
    zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, trained))
    total, _ = lax.scan(lambda total, part: (jax.tree.map(jnp.add, total, of_part(part)), None), zero, parts)
    return total


def make_step(lesson: Lesson, base: Model | None, mesh: Mesh) -> StepFunction:
    """f(state, batch, number of the step) -> (state after it, metrics). The old state's memory is used again.

    base: the model that adapters are added to; None: the model itself is trained.
    """
    settings = lesson.settings
    optimizer, rate = make_optimizer(settings), schedule(settings)
    whole, by_sequence = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(DATA))

    def step(state: State, base: Model | None, batch: Batch, opening: bool) -> tuple[State, Metrics]:
        loss, gradient = gradient_of(lesson, state.trained, base, batch, state.step, opening)
        update, rest = optimizer.update(gradient, state.optimizer, state.trained)  # pyright: ignore[reportArgumentType]
        trained: Model | Adapters = optax.apply_updates(state.trained, update)  # pyright: ignore[reportAssignmentType, reportArgumentType]
        metrics = Metrics(loss, optax.tree.norm(gradient), jnp.asarray(rate(state.step)))
        return State(trained, rest, state.step + 1), metrics

    shardings = {"in_shardings": (whole, whole, by_sequence), "out_shardings": whole}
    compiled = jax.jit(step, donate_argnums=0, static_argnums=3, **shardings)

    def run(state: State, batch: Batch, number: int) -> tuple[State, Metrics]:
        return compiled(state, base, batch, number < settings.opening_steps)

    return run
