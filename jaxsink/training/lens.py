"""Fitting a tuned lens: an affine map per layer, so that what the last layer predicts is read from every layer.

    result = fit_lens(model, data, LensSettings(steps=250))

Every layer's map begins as "nothing is added" and follows the gradient of KL(last layer ‖ this layer), averaged over the
queries that predict something: masked tokens at a random noise level of a diffusion model, every token of a causal one. The
model itself stays as it is. Layers are taken one after another, so that the logits of one layer are there at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax
from jaxtyping import Float, Float32, Int

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checks import above, at_least, check_fields
from jaxsink.errors import JaxsinkError
from jaxsink.nn.batch import Batch
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.context import select
from jaxsink.nn.pass_end import TunedLens
from jaxsink.nn.transformer import Model
from jaxsink.recording.tuned import save_lens
from jaxsink.recording.vectors import residual
from jaxsink.runs.atomic import write_json
from jaxsink.runs.stopping import IsStopped, StoppedError, never
from jaxsink.tasks.batches import Batch as Texts
from jaxsink.training.data import TrainingData
from jaxsink.training.examples import Example, causal_example, diffusion_example

HELD_OUT = 64  # sequences that the fit is judged by


@dataclass(frozen=True)
class LensSettings:
    steps: int = 250
    batch: int = 16
    learning_rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        ranges = {"steps": at_least(1), "batch": at_least(1), "learning_rate": above(0, 1), "seed": at_least(0)}
        check_fields(self, "train --lens", ranges)


class Fitted(NamedTuple):
    lens: TunedLens
    before: Float[np.ndarray, " L"]  # KL(last layer ‖ layer) in nats on held-out data, read plainly …
    after: Float[np.ndarray, " L"]  # … and through the lens


def nothing_added(config: ModelConfig) -> TunedLens:
    """The lens that reads plainly."""
    layers, width = config.layers, config.width
    return TunedLens(jnp.zeros((layers, width, width)), jnp.zeros((layers, width)))


def fit_lens(
    model: Model,
    data: TrainingData,
    settings: LensSettings,
    tell: Callable[[int, float], None] = lambda step, loss: None,
    is_stopped: IsStopped = never,
) -> Fitted:
    """tell: is called with the steps done and the loss of the last one."""
    config = model.config
    if config.time_conditioning is not None or config.attention == "block_causal":
        raise JaxsinkError(
            f"train --lens: not made for {config.family} models, whose passes need more than their tokens."
        )
    rate = optax.cosine_decay_schedule(settings.learning_rate, settings.steps)
    optimizer = optax.adam(rate)
    lens = nothing_added(config)
    state = optimizer.init(lens)

    @jax.jit
    def step(model: Model, lens: TunedLens, state: optax.OptState, example: Example):
        loss, slope = jax.value_and_grad(lambda lens: divergences(model, lens, example).mean())(lens)
        change, state = optimizer.update(slope, state)
        return optax.apply_updates(lens, change), state, loss

    held_out = make_example(config, data, data.validation(HELD_OUT), settings.seed, settings.steps)
    judge = jax.jit(divergences)
    before = np.asarray(judge(model, lens, held_out))
    for number in range(settings.steps):
        if is_stopped():
            raise StoppedError
        texts = data.batch(number, settings.batch, settings.seed)
        example = make_example(config, data, texts, settings.seed, number)
        lens, state, loss = step(model, lens, state, example)  # pyright: ignore[reportAssignmentType]
        tell(number + 1, float(loss))
    return Fitted(lens, before, np.asarray(judge(model, lens, held_out)))


def write_lens(fitted: Fitted, settings: LensSettings, place: Path) -> JsonObject:
    """The lens, and how well it reads."""
    place.mkdir(parents=True, exist_ok=True)
    save_lens(fitted.lens, place / "lens.safetensors")
    result: JsonObject = {
        "lens": str(place / "lens.safetensors"),
        "settings": asdict(settings),
        "kl_before": [round(float(kl), 6) for kl in fitted.before],
        "kl": [round(float(kl), 6) for kl in fitted.after],
    }
    write_json(place / "result.json", result)
    return result


def make_example(config: ModelConfig, data: TrainingData, texts: Texts, seed: int, step: int) -> Example:
    """What the model is shown; the first tokens of word problems are given, as they are when it answers."""
    tokens, real = jnp.asarray(texts.tokens), jnp.asarray(texts.real)
    starts = [data.prompt] * len(tokens)
    if not config.is_diffusion:
        return causal_example(config, tokens, real, starts, one_text=data.prompt > 0)
    key = jax.random.fold_in(jax.random.key(seed), step)
    return diffusion_example(config, key, tokens, real, starts, "count")


def divergences(model: Model, lens: TunedLens, example: Example) -> Float32[Array, " L"]:
    """KL(last layer ‖ layer) of each layer, read through the lens, in nats per query that predicts something."""
    batch = Batch.make(model.config, example.tokens, example.real)
    out = model(batch._replace(token_position=example.token_position), recorders=(residual(),))
    streams = lax.stop_gradient(select_of_layers(out.record[0], example.outputs))
    last = jax.nn.log_softmax(model.logits(model.norm(streams[-1].astype(model.dtype))))
    counts = (example.weight > 0).astype(jnp.float32)

    @jax.checkpoint
    def of_layer(part: tuple[Array, Array, Array]) -> Float32[Array, ""]:
        stream, change, bias = part
        one = TunedLens(change[None], bias[None]).moved(stream[None], None)[0]
        log_prob = jax.nn.log_softmax(model.logits(model.norm(one.astype(model.dtype))))
        apart = (jnp.exp(last) * (last - log_prob)).sum(axis=-1)
        return (apart * counts).sum() / jnp.maximum(counts.sum(), 1.0)

    return lax.map(of_layer, (streams, lens.change, lens.bias))


def select_of_layers(x: Float[Array, "L B Q E"], outputs: Int[Array, "B W"]) -> Float[Array, "L B W E"]:
    return jax.vmap(lambda layer: select(layer, outputs))(x)
