"""What is looked at along the way: the loss on held-out data, and the sinks as they emerge."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from jaxsink.nn.forward import forward
from jaxsink.nn.transformer import Model
from jaxsink.recording.attention import received
from jaxsink.recording.norms import value_norm
from jaxsink.runs.atomic import new_file
from jaxsink.sinks.rules import Threshold, detect
from jaxsink.tasks.batches import Batch
from jaxsink.training.examples import weighted_loss
from jaxsink.training.step import Lesson

ALPHA = 0.3  # from here on a first token is a sink of its head (Gu et al.)
EPS = 3.0  # of Eq. 3
DRAWS = 2  # canvases of each held-out sequence, for diffusion models


@dataclass(frozen=True)
class Look:
    """What is seen of a model at a step; one line of sinks.csv.

    alpha_first      attention that the first token receives from a query that sees it, mean over heads
    heads_above      share of the heads in which that is above ALPHA
    sinks_per_head   keys that pass Eq. 3 with ε = 3
    largest_share    of a head's attention that its strongest key receives
    value_first      length of the first token's values over the mean of the others
    lost_every_row   nats per token of the second halves that are lost if no query sees the first token …
    lost_few_rows    … or if the queries of the second halves alone do not, as when only newest rows lose it
    """

    step: int
    validation_loss: float
    alpha_first: float
    heads_above: float
    sinks_per_head: float
    largest_share: float
    value_first: float
    lost_every_row: float = float("nan")  # runs begun by an older version did not look
    lost_few_rows: float = float("nan")


def look(model: Model, lesson: Lesson, held_out: Batch, step: int, size: int) -> Look:
    """At a model after so many steps. size: sequences that run together."""
    loss, some = validation_loss(model, lesson, held_out, size), first_of(held_out, size)
    every, few = (float(more) for more in lost_without_first(model, some, jnp.int32(0), plain(lesson)))
    figures = sink_figures(model, lesson, some)
    return Look(step=step, validation_loss=loss, lost_every_row=every, lost_few_rows=few, **figures)


def validation_loss(model: Model, lesson: Lesson, held_out: Batch, size: int) -> float:
    """Mean over held-out sequences, on canvases that are always the same; of a diffusion model the bound on log p."""
    lesson = plain(lesson)
    draws = 1 if lesson.settings.objective == "causal" else DRAWS
    total, count = 0.0, 0
    for number, part in enumerate(parts_of(held_out, size)):
        for draw in range(draws):
            found = _loss(model, part, jnp.int32(number * DRAWS + draw), lesson)
            total, count = total + len(part.tokens) * float(found), count + len(part.tokens)
    return total / count


def plain(lesson: Lesson) -> Lesson:
    """With all noise levels from the first step on."""
    return replace(lesson, settings=replace(lesson.settings, ramp=0.0))


@partial(jax.jit, static_argnames="lesson")
def lost_without_first(model: Model, batch: Batch, number: jax.Array, lesson: Lesson) -> Float[Array, "2"]:
    """Nats per token that the first token costs where it is hidden: from every query, and from those of the second half of
    each sequence alone. The loss is of what these predict; the first token goes on seeing itself."""
    example, length = lesson.example(batch, number), batch.tokens.shape[1]
    visible = lesson.visible(length, number, False)
    place, first = jnp.arange(example.tokens.shape[1]) % length, jnp.argmax(example.real, axis=1)[:, None]
    late = place >= first + example.real[:, :length].sum(axis=1, keepdims=True) // 2
    predicts = jnp.take_along_axis(late, example.outputs, axis=1)
    example = example._replace(weight=jnp.where(predicts, example.weight, 0.0))
    at_first = place == first

    def loss(without: Bool[Array, "B S"]) -> Float[Array, ""]:
        seen = ~(at_first[:, None, :] & (without & ~at_first)[:, :, None])
        return weighted_loss(model, example, seen if visible is None else seen & visible)

    nothing, every, few = (
        loss(jnp.broadcast_to(rows, late.shape)) for rows in (jnp.bool_(False), jnp.bool_(True), late)
    )
    return jnp.stack([every - nothing, few - nothing]) / example.weight.sum()


@partial(jax.jit, static_argnames="lesson")
def _loss(model: Model, batch: Batch, number: jax.Array, lesson: Lesson) -> jax.Array:
    return weighted_loss(model, lesson.example(batch, number), lesson.visible(batch.tokens.shape[1], number, False))


def parts_of(batch: Batch, size: int) -> Sequence[Batch]:
    """Parts of so many sequences, the last one possibly smaller."""
    return [Batch(*(x[start : start + size] for x in batch)) for start in range(0, len(batch.tokens), size)]


def first_of(batch: Batch, size: int) -> Batch:
    return Batch(*(x[:size] for x in batch))


def sink_figures(model: Model, lesson: Lesson, batch: Batch) -> dict[str, float]:
    """Of the attention on held-out text; of a diffusion model on text of which some tokens are masked."""
    tokens, real = batch.tokens, batch.real
    if lesson.config.is_diffusion:
        noised = lesson.example(batch, jnp.int32(0))  # which may have moved the padding
        tokens, real = (np.asarray(x)[:, : tokens.shape[1]] for x in (noised.tokens, noised.real))
    out = forward(model, tokens, real, record={"received": received(), "value": value_norm()})
    return of_attention(np.asarray(out.record["received"]), np.asarray(out.record["value"]), real)


def of_attention(
    scores: Float[np.ndarray, "L B H S"], values: Float[np.ndarray, "L B K S"], real: Bool[np.ndarray, "B S"]
) -> dict[str, float]:
    """The figures of `Look` that are about sinks."""
    count, first = real.sum(axis=1), np.argmax(real, axis=1)
    at_first = np.take_along_axis(scores, first[None, :, None, None], axis=-1)[..., 0]
    alpha = (at_first / count[None, :, None]).mean(axis=1)
    value = np.take_along_axis(values, first[None, :, None, None], axis=-1)[..., 0]
    others = (np.where(real[None, :, None], values, 0.0).sum(axis=-1) - value) / (count - 1)[None, :, None]
    with np.errstate(divide="ignore", invalid="ignore"):  # a training that comes to nothing says so itself
        shares, of_others = scores.max(axis=-1) / scores.sum(axis=-1), value / others
    found = np.asarray(detect(scores, Threshold(EPS), real))
    return {
        "alpha_first": float(alpha.mean()),
        "heads_above": float((alpha > ALPHA).mean()),
        "sinks_per_head": float(found.sum(axis=-1).mean()),
        "largest_share": float(shares.mean()),
        "value_first": float(of_others.mean()),
    }


def write_looks(path: Path, looks: Sequence[Look]) -> None:
    """As CSV, the file written anew."""
    with new_file(path) as partial_file, partial_file.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Look)], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: f"{value:.6g}" for name, value in asdict(one).items()} for one in looks)


def read_looks(path: Path, step: int) -> list[Look]:
    """Those up to a step; later ones belong to steps that will be taken again."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        lines = [{name: float(value) for name, value in line.items()} for line in csv.DictReader(file)]
    looks = [Look(**{**line, "step": int(line["step"])}) for line in lines]  # pyright: ignore[reportArgumentType]
    return [one for one in looks if one.step <= step]
