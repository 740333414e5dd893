"""What the player and the animation open with: the runs, and for each the layer and head to look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.reporting.runs import Run

AVERAGE = -1  # instead of a layer or head: the mean over all of them


@dataclass(frozen=True)
class View:
    """A run as one layer and head of it sees it."""

    run: Run
    layer: int
    head: int

    @property
    def scores(self) -> np.ndarray:
        """f32[T, S]."""
        scores = self.run.parts["scores"].astype(np.float32)
        scores = scores.mean(1) if self.layer == AVERAGE else scores[:, self.layer]
        return scores.mean(1) if self.head == AVERAGE else scores[:, self.head]

    @property
    def label(self) -> str:
        layer = "all layers" if self.layer == AVERAGE else f"layer {self.layer}"
        head = "all heads" if self.head == AVERAGE else f"head {self.head}"
        return f"{self.run.label} · {layer}, {head}"


def movement(run: Run, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """(jumps, distance), int[L, H] each: how often and how far the largest sink of a head moves from step to step."""
    there = run.exists()[:, None]
    others = np.maximum(there.sum(-1, keepdims=True) - 1, 1)
    ways = []
    for layer in range(run.parts["scores"].shape[1]):  # one at a time: a long run of a large model is many gigabytes
        scores = np.where(there, run.parts["scores"][:, layer].astype(np.float32), 0.0)
        sinks = there & (scores - (scores.sum(-1, keepdims=True) - scores) / others > eps)
        position = np.where(sinks.any(-1), np.where(sinks, scores, -1.0).argmax(-1), -1)
        both = (position[1:] >= 0) & (position[:-1] >= 0)
        ways.append(np.where(both, abs(np.diff(position, axis=0)), 0))
    way = np.stack(ways)  # [L, T-1, H]
    return (way > 0).sum(1), way.sum(1)


def most_moving(run: Run, eps: float) -> tuple[int, int, int]:
    """(jumps, layer, head) of the head whose largest sink moves most often, and of those farthest."""
    jumps, distance = movement(run, eps)
    best = max(np.ndindex(jumps.shape), key=lambda index: (jumps[index], distance[index]))
    return int(jumps[best]), *best


def opening(runs: list[Run], eps: float) -> list[View]:
    """The diffusion run whose sink moves most; beside it the same with its sinks hidden, or else another model."""
    plain = [run for run in runs if not run.condition] or runs
    candidates = [run for run in plain if run.kind == "dlm"] or plain
    if not candidates:
        return []
    found = {run.name: most_moving(run, eps) for run in candidates}
    first = max(candidates, key=lambda run: found[run.name][0])
    same = [run for run in runs if run.problem == first.problem and run is not first]
    twins = [run for run in same if run.model == first.model]
    others = [run for run in same if run.kind != first.kind and not run.condition]
    return views([first, *(twins or others)[:1]], eps)


def views(runs: list[Run], eps: float, layer: int | None = None, head: int | None = None) -> list[View]:
    """A view of each run: the given layer and head, or those whose sink moves most; the same for runs of one model."""
    made: list[View] = []
    for run in runs:
        twin = next((view for view in made if view.run.model == run.model), None)
        _, found_layer, found_head = (0, twin.layer, twin.head) if twin else most_moving(run, eps)
        view = View(run, found_layer if layer is None else layer, found_head if head is None else head)
        _, layers, heads, _ = run.parts["scores"].shape
        for name, value, count in (("layer", view.layer, layers), ("head", view.head, heads)):
            if not AVERAGE <= value < count:
                raise JaxsinkError(f"{run.model} has {name}s 0 to {count - 1}, and no {name} {value}.")
        made.append(view)
    return made


def choose_run(runs: list[Run], name: str, eps: float) -> Run:
    """By the name of its file, or by its model: then the problem at which a sink moves most."""
    for run in runs:
        if run.name == name:
            return run
    of_model = [run for run in runs if run.model == name and not run.condition]
    if of_model:
        return max(of_model, key=lambda run: most_moving(run, eps)[0])
    known = ", ".join(run.name for run in runs) or "none"
    raise JaxsinkError(f'there is no generation "{name}"; there are: {known}.')
