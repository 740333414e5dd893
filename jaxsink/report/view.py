"""What the player and the animation open with: the generations, and for each the layer and head to look at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.report.played import PlayedGeneration

AVERAGE = -1  # instead of a layer or head: the mean over all of them


@dataclass(frozen=True)
class View:
    """A generation as one layer and head of it sees it."""

    generation: PlayedGeneration
    layer: int
    head: int

    @property
    def scores(self) -> np.ndarray:
        """f32[T, S]."""
        scores = self.generation.parts["scores"].astype(np.float32)
        scores = scores.mean(1) if self.layer == AVERAGE else scores[:, self.layer]
        return scores.mean(1) if self.head == AVERAGE else scores[:, self.head]

    @property
    def label(self) -> str:
        layer = "all layers" if self.layer == AVERAGE else f"layer {self.layer}"
        head = "all heads" if self.head == AVERAGE else f"head {self.head}"
        return f"{self.generation.label} · {layer}, {head}"


def movement(generation: PlayedGeneration, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """(jumps, distance), int[L, H] each: how often and how far the largest sink of a head moves from step to step."""
    there = generation.exists()[:, None]
    others = np.maximum(there.sum(-1, keepdims=True) - 1, 1)
    ways = []
    for layer in range(
        generation.parts["scores"].shape[1]
    ):  # one at a time: a long generation of a large model is many gigabytes
        scores = np.where(there, generation.parts["scores"][:, layer].astype(np.float32), 0.0)
        sinks = there & (scores - (scores.sum(-1, keepdims=True) - scores) / others > eps)
        position = np.where(sinks.any(-1), np.where(sinks, scores, -1.0).argmax(-1), -1)
        both = (position[1:] >= 0) & (position[:-1] >= 0)
        ways.append(np.where(both, abs(np.diff(position, axis=0)), 0))
    way = np.stack(ways)  # [L, T-1, H]
    return (way > 0).sum(1), way.sum(1)


def most_moving(generation: PlayedGeneration, eps: float) -> tuple[int, int, int]:
    """(jumps, layer, head) of the head whose largest sink moves most often, and of those farthest."""
    jumps, distance = movement(generation, eps)
    best = max(np.ndindex(jumps.shape), key=lambda index: (jumps[index], distance[index]))
    return int(jumps[best]), *best


def opening(generations: list[PlayedGeneration], eps: float) -> list[View]:
    """The diffusion generation whose sink moves most; beside it the same with its sinks hidden, or else another model."""
    plain = [generation for generation in generations if not generation.condition] or generations
    candidates = [generation for generation in plain if generation.kind == "dlm"] or plain
    if not candidates:
        return []
    found = {generation.name: most_moving(generation, eps) for generation in candidates}
    first = max(candidates, key=lambda generation: found[generation.name][0])
    same = [generation for generation in generations if generation.problem == first.problem and generation is not first]
    twins = [generation for generation in same if generation.model == first.model]
    others = [generation for generation in same if generation.kind != first.kind and not generation.condition]
    return views([first, *(twins or others)[:1]], eps)


def views(
    generations: list[PlayedGeneration], eps: float, layer: int | None = None, head: int | None = None
) -> list[View]:
    """A view of each: the given layer and head, or those whose sink moves most; the same for generations of one model."""
    made: list[View] = []
    for generation in generations:
        twin = next((view for view in made if view.generation.model == generation.model), None)
        _, found_layer, found_head = (0, twin.layer, twin.head) if twin else most_moving(generation, eps)
        view = View(generation, found_layer if layer is None else layer, found_head if head is None else head)
        _, layers, heads, _ = generation.parts["scores"].shape
        for name, value, count in (("layer", view.layer, layers), ("head", view.head, heads)):
            if not AVERAGE <= value < count:
                raise JaxsinkError(f"{generation.model} has {name}s 0 to {count - 1}, and no {name} {value}.")
        made.append(view)
    return made


def choose_generation(generations: list[PlayedGeneration], name: str, eps: float) -> PlayedGeneration:
    """By the name of its file, or by its model: then the problem at which a sink moves most."""
    for generation in generations:
        if generation.name == name:
            return generation
    of_model = [generation for generation in generations if generation.model == name and not generation.condition]
    if of_model:
        return max(of_model, key=lambda generation: most_moving(generation, eps)[0])
    known = ", ".join(generation.name for generation in generations) or "none"
    raise JaxsinkError(f'there is no generation "{name}"; there are: {known}.')
