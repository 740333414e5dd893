"""Recorders by name, as `--record-what` and `plan --record` have them, and how much each keeps.

The table is read before JAX is there, for the command's help.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jaxsink
from jaxsink.errors import JaxsinkError

if TYPE_CHECKING:
    from jaxsink.nn.config import ModelConfig
    from jaxsink.nn.recorder import Recorder

TOP, EPS, LENS = 8, (1.0, 3.0, 10.0), 5


@dataclass(frozen=True)
class Shape:
    """The sizes that say how large a record is; queries: per step, and window: those from which it reads, None = all."""

    config: ModelConfig
    steps: int
    queries: int
    keys: int
    window: int | None = None

    @property
    def read(self) -> int:
        return self.queries if self.window is None else self.window


class Named(NamedTuple):
    """A recorder for a shape, and how many numbers it keeps per step and layer."""

    make: Callable[[Shape], Recorder]
    numbers: Callable[[Shape], int]
    of_pass: bool = False  # it keeps them once per step, of all layers together


NAMED = {
    "received": Named(lambda s: jaxsink.record.received(), lambda s: s.config.heads * s.keys),
    "by_query": Named(lambda s: jaxsink.record.received_by_query(), lambda s: 3 * s.config.heads * s.keys),
    "last_row": Named(lambda s: jaxsink.record.last_row(), lambda s: s.config.heads * s.keys),
    "top": Named(
        lambda s: jaxsink.record.received().then(jaxsink.reduce.top(min(TOP, s.keys))),
        lambda s: 2 * s.config.heads * min(TOP, s.keys),
    ),
    "counts": Named(
        lambda s: jaxsink.record.received().then(jaxsink.reduce.sink_counts(EPS)), lambda s: s.config.heads * len(EPS)
    ),
    "kinds": Named(
        lambda s: jaxsink.record.received().then(jaxsink.reduce.sum_by_kind()), lambda s: 3 * s.config.heads
    ),
    "contribution": Named(lambda s: jaxsink.record.contribution(), lambda s: s.config.heads * s.keys),
    "diagonal": Named(lambda s: jaxsink.record.diagonal(), lambda s: s.config.heads),
    "channels": Named(
        lambda s: jaxsink.record.channels().then(jaxsink.reduce.top_channels(min(TOP, s.config.width))),
        lambda s: 1 + 4 * min(TOP, s.config.width),
    ),
    "entropy": Named(lambda s: jaxsink.record.row_entropy(), lambda s: s.config.heads * s.queries),
    "key_norm": Named(lambda s: jaxsink.record.key_norm(), lambda s: s.config.kv_heads * s.keys),
    "value_norm": Named(lambda s: jaxsink.record.value_norm(), lambda s: s.config.kv_heads * s.keys),
    "hidden_max": Named(lambda s: jaxsink.record.hidden_max(), lambda s: 3 * s.queries),
    "lens": Named(lambda s: jaxsink.record.lens(min(LENS, s.config.vocab)), lambda s: (2 * LENS + 3) * s.queries),
    "lens_window": Named(
        lambda s: jaxsink.record.lens(min(LENS, s.config.vocab), "window"), lambda s: (2 * LENS + 3) * s.read
    ),
    "embedding": Named(lambda s: jaxsink.record.embedding(), lambda s: s.config.width * s.queries, of_pass=True),
    "residual_before": Named(lambda s: jaxsink.record.residual_before(), lambda s: s.config.width * s.queries),
    "residual": Named(lambda s: jaxsink.record.residual(), lambda s: s.config.width * s.queries),
    "residual_norm": Named(lambda s: jaxsink.record.residual_norm(), lambda s: s.queries),
    "attention_output": Named(lambda s: jaxsink.record.attention_output(), lambda s: s.config.width * s.queries),
    "mlp_output": Named(lambda s: jaxsink.record.mlp_output(), lambda s: s.config.width * s.queries),
    "head_values": Named(
        lambda s: jaxsink.record.head_values(), lambda s: s.config.heads * s.config.head_dim * s.queries
    ),
    "head_outputs": Named(
        lambda s: jaxsink.record.head_outputs(), lambda s: s.config.heads * s.config.width * s.queries
    ),
    "value_vectors": Named(
        lambda s: jaxsink.record.value_vectors(), lambda s: s.config.kv_heads * s.config.head_dim * s.keys
    ),
    "final_norm": Named(lambda s: jaxsink.record.final_norm(), lambda s: s.config.width * s.queries, of_pass=True),
    "maps": Named(lambda s: jaxsink.record.maps(), lambda s: s.config.heads * s.queries * s.keys),
}


def named_recorders(option: str, names: str | Sequence[str], shape: Shape) -> dict[str, Recorder]:
    """The recorders of these names, a list or a text with commas; option: what a message calls them."""
    parts = names.split(",") if isinstance(names, str) else names
    wanted = dict.fromkeys(name.strip().replace("-", "_") for name in parts if name.strip())
    for name in wanted:
        if name not in NAMED:
            raise JaxsinkError(f"{option}: {name!r} is not known; choose from {', '.join(NAMED)}.")
    if not wanted:
        raise JaxsinkError(f"{option} names nothing; choose from {', '.join(NAMED)}.")
    return {name: NAMED[name].make(shape) for name in wanted}


def step_bytes(names: Sequence[str], shape: Shape) -> int:
    """Of one step of such a record, in float32."""
    wanted = [NAMED[name] for name in names]
    return 4 * sum(one.numbers(shape) * (1 if one.of_pass else shape.config.layers) for one in wanted)
