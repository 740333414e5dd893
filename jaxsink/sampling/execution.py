"""Where a run's rows live: one compiled program on one device or a mesh, or one per device with the rows dealt out.

Both offer the same three functions, so that `generate` does not care: `start()`, `advance(carry, chunk, begin)`, and
`rows(carry)`, which gives the carry's arrays back as one batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxsink.errors import JaxsinkError
from jaxsink.nn.compilation import PmapProgram
from jaxsink.nn.transformer import Model
from jaxsink.parallel.pmap import merge_batch, split_batch
from jaxsink.sampling.diffusion import Given, Settings
from jaxsink.sampling.rng import Draws

PER_LAYER = ("seen", "drop", "cache", "clean", "sums")  # parts of a carry that nobody reads at the end


@dataclass(frozen=True)
class OneProgram:
    """jit; on a mesh, weights lie as loaded and rows along its data axis."""

    loop: Any
    model: Model
    tokens: Array
    given: Given
    settings: Settings

    def start(self) -> Any:
        begin = jax.jit(self.loop.start, static_argnames="settings")
        return begin(self.model, self.tokens, self.given, settings=self.settings)

    def advance(self, carry: Any, chunk: int, begin: bool) -> tuple[Any, Any]:
        return self.loop.advance(self.model, carry, self.given, self.settings, chunk, begin=begin)

    def rows(self, carry: Any) -> Any:
        return carry


@dataclass(frozen=True)
class Dealt:
    """pmap: every device holds the weights (see `copied`) and runs its share of the rows."""

    loop: Any
    model: Model
    tokens: Array
    given: Given
    settings: Settings
    devices: tuple[Any, ...]

    def start(self) -> Any:
        count = len(self.devices)
        return _pmapped_start(self.loop, self.settings, self.devices)(
            self.model, split_batch(self.tokens, 0, count), self._given()
        )

    def advance(self, carry: Any, chunk: int, begin: bool) -> tuple[Any, Any]:
        run = _pmapped_advance(self.loop, self.settings, chunk, begin, self.devices)
        carry, values = run(self.model, carry, self._given())
        batch = self.tokens.shape[0]

        def rows(x: Array) -> Array:
            if x.ndim < 4 or x.shape[2] * x.shape[3] != batch:
                raise JaxsinkError(
                    "with devices=…, every record needs the batch as its first axis: [B, ...] per layer."
                )
            return merge_batch(x, 2, batch)

        return carry, jax.tree.map(rows, values)

    def rows(self, carry: Any) -> Any:
        whole = {
            name: jax.tree.map(lambda x: merge_batch(x, 0, self.tokens.shape[0]), value)
            for name, value in carry._asdict().items()
            if name not in (*PER_LAYER, "step")
        }
        return carry._replace(**whole, step=carry.step.max())

    def _given(self) -> Given:
        count = len(self.devices)
        draws = self.given.draws
        by_step = {name: split_batch(getattr(draws, name), 1, count) for name in ("token", "remask", "transfer")}
        keys = draws.keys.reshape(count, -1)
        mask, prompt, policy = (
            split_batch(x, 0, count) for x in (self.given.mask, self.given.prompt, self.given.policy)
        )
        return Given(mask, prompt, Draws(keys, **by_step), policy)


def copied(model: Model, devices: Sequence[Any]) -> Model:
    """The model with a copy of its weights on each device, once: pmap would make them anew for every chunk of steps."""
    everywhere = NamedSharding(Mesh(np.array(devices), ("devices",)), PartitionSpec())
    return jax.device_put(model, everywhere)


GIVEN_AXES = Given(mask=0, prompt=0, draws=Draws(keys=0, token=1, remask=1, transfer=1), policy=0)  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _pmapped_start(loop: Any, settings: Settings, devices: tuple[Any, ...]) -> Any:
    return jax.pmap(partial(loop.start, settings=settings), in_axes=(None, 0, GIVEN_AXES), devices=devices)


@lru_cache(maxsize=64)
def _pmapped_advance(loop: Any, settings: Settings, chunk: int, begin: bool, devices: tuple[Any, ...]) -> Any:
    run = partial(loop.advance.__wrapped__, settings=settings, chunk=chunk, begin=begin)
    axes = (None, 0, GIVEN_AXES)
    return PmapProgram(jax.pmap(run, in_axes=axes, out_axes=(0, 2), devices=devices, donate_argnums=1))
