"""Recorders by name, as `--record-what` and `plan --record` have them, and how much each keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.recorder import Recorder
from jaxsink.recording import recorders
from jaxsink.recording import reductions as reduce

TOP, EPS = 8, (1.0, 3.0, 10.0)


@dataclass(frozen=True)
class Shape:
    """The sizes that say how large a record is; queries: per step."""

    config: ModelConfig
    steps: int
    queries: int
    keys: int


class Named(NamedTuple):
    """A recorder for a shape, and how many numbers it keeps per step and layer."""

    make: Callable[[Shape], Recorder]
    numbers: Callable[[Shape], int]


NAMED = {
    "received": Named(lambda s: recorders.received(), lambda s: s.config.heads * s.keys),
    "by_query": Named(lambda s: recorders.received_by_query(), lambda s: 3 * s.config.heads * s.keys),
    "last_row": Named(lambda s: recorders.last_row(), lambda s: s.config.heads * s.keys),
    "top": Named(
        lambda s: recorders.received().then(reduce.top(min(TOP, s.keys))),
        lambda s: 2 * s.config.heads * min(TOP, s.keys),
    ),
    "counts": Named(lambda s: recorders.received().then(reduce.sink_counts(EPS)), lambda s: s.config.heads * len(EPS)),
    "kinds": Named(lambda s: recorders.received().then(reduce.sum_by_kind()), lambda s: 3 * s.config.heads),
    "entropy": Named(lambda s: recorders.row_entropy(), lambda s: s.config.heads * s.queries),
    "key_norm": Named(lambda s: recorders.key_norm(), lambda s: s.config.kv_heads * s.keys),
    "value_norm": Named(lambda s: recorders.value_norm(), lambda s: s.config.kv_heads * s.keys),
    "hidden_max": Named(lambda s: recorders.hidden_max(), lambda s: 3 * s.queries),
    "maps": Named(lambda s: recorders.maps(), lambda s: s.config.heads * s.queries * s.keys),
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
    return 4 * shape.config.layers * sum(NAMED[name].numbers(shape) for name in names)
