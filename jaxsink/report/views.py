"""What the plots draw: one sequence without its padding, and the largest sinks of its heads, from any kind of source."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.parallel.hosts import to_host
from jaxsink.sampling.generation import Generation
from jaxsink.sampling.leaves import FRONT, HEAD_AND_POSITION, Leaf, leaves, names_of
from jaxsink.sinks.track import Tracks, track

if TYPE_CHECKING:
    from jaxsink.sinks.rules import Rule
    from jaxsink.text.tokenizer import Tokenizer

Source = Generation | Tracks | Any  # Any: a record f32[T,L,B,H,S]


@dataclass(frozen=True)
class Canvas:
    """One sequence: its real positions, the steps that it took, and what is known of its tokens."""

    real: np.ndarray  # i32[S], in the padded sequence
    taken: int  # recorded steps that it took, T
    steps: np.ndarray  # i32[T]
    committed_at: np.ndarray | None = None  # i32[S]
    prompt: int | None = None  # tokens before the response
    texts: list[str] | None = None  # [S]

    @property
    def stride(self) -> int:
        """Steps from one that was recorded to the next."""
        return int(self.steps[1] - self.steps[0]) if len(self.steps) > 1 else 1

    @property
    def position_label(self) -> str:
        return "position" if self.committed_at is None else "token position"


@dataclass(frozen=True)
class Received:
    """Attention received in one sequence; NaN where there is no token yet. heads is None for a mean over heads."""

    values: np.ndarray  # f32[T,L,H,S]
    layers: np.ndarray
    heads: np.ndarray | None


@dataclass(frozen=True)
class Largest:
    """The largest sink of every head, or its largest key where only that was recorded."""

    position: np.ndarray  # i32[T,L,B,H], in the padded sequence; -1 where there is none
    score: np.ndarray  # f32[T,L,B,H], 0 where there is none
    taken: np.ndarray  # i32[B]
    layers: np.ndarray
    heads: np.ndarray
    what: str = "sink"

    @property
    def jumps(self) -> np.ndarray:
        """i32[L,B,H]: how often it changes its position from one step to the next."""
        both = (self.position[1:] >= 0) & (self.position[:-1] >= 0)
        return (both & (self.position[1:] != self.position[:-1])).sum(axis=0)

    @property
    def mean_score(self) -> np.ndarray:
        """f32[L,B,H]: over the steps that each sequence took."""
        counted = np.arange(len(self.score))[:, None] < self.taken
        total = np.where(counted[:, None, :, None], self.score, 0).sum(axis=0)
        return total / np.maximum(self.taken, 1)[None, :, None]


def canvas_of(source: Source, sequence: int, tokenizer: Tokenizer | None = None) -> Canvas:
    if not isinstance(source, Generation):
        shape = np.shape(source.sinks if isinstance(source, Tracks) else source)
        _check_shape(shape, sequence)
        return Canvas(np.arange(shape[-1]), shape[0], np.arange(shape[0]))
    committed = np.asarray(source.committed_at)
    _check_sequence(sequence, len(committed))
    real, taken = np.flatnonzero(source.filled()[sequence]), int(source.recorded_of()[sequence])
    tokenizer = tokenizer or source.tokenizer
    texts = None if tokenizer is None else [tokenizer.token(i) for i in np.asarray(source.tokens)[sequence, real]]
    prompt = int((real < source.prompt_length).sum())
    return Canvas(real, taken, np.asarray(source.recorded_steps)[:taken], committed[sequence, real], prompt, texts)


def received_of(source: Source, canvas: Canvas, sequence: int, record: str | None) -> Received:
    if isinstance(source, Tracks):
        raise JaxsinkError("tracks hold no attention scores; give the generation, or its record.")
    if not isinstance(source, Generation):
        values = np.asarray(to_host(source))[:, :, sequence]
        return Received(values, *(np.arange(size) for size in values.shape[1:3]))
    leaf = received_leaf(source, record)
    values = leaf.host()[: canvas.taken, :, sequence][..., canvas.real]
    heads = leaf.labels.get("head")
    if heads is None:
        values = values[:, :, None]
    exists = source.real_at()[: canvas.taken, sequence][:, canvas.real]
    return Received(np.where(exists[:, None, None], values, np.nan), leaf.labels["layer"], heads)


def largest_of(source: Source, sequence: int | None, record: str | None, rule: Rule | None) -> Largest:
    """Of one sequence (then B = 1), or of all."""
    chosen = slice(None) if sequence is None else slice(sequence, sequence + 1)
    if isinstance(source, Tracks):
        _check_shape(np.shape(source.sinks), sequence or 0)
        position, score = (np.asarray(x)[:, :, chosen] for x in (source.position, source.score))
        return _largest(position, score, np.full(position.shape[2], len(position)))
    if not isinstance(source, Generation):
        _check_shape(np.shape(source), sequence or 0)
        tracks = track(np.asarray(to_host(source))[:, :, chosen], rule)
        return largest_of(tracks, None, None, None)
    _check_sequence(sequence or 0, len(np.asarray(source.mask)))
    taken = source.recorded_of()[chosen]
    top = None if _per_position(source, record) else top_leaves(source, record)
    if top is not None:
        score, position = (leaf.host()[:, :, chosen, :, 0] for leaf in top)
        position = np.where(score > 0, position, -1)
        return Largest(position, score, taken, top[0].labels["layer"], top[0].labels["head"], "key")
    leaf = received_leaf(source, record)
    if "head" not in leaf.dims:
        raise JaxsinkError(f"{leaf.name} is a mean over heads, so no head's sink is known; record received() itself.")
    tracks = track(leaf.host()[:, :, chosen], rule, source.real_at()[:, chosen], taken)
    position, score = np.asarray(tracks.position), np.asarray(tracks.score)
    return Largest(position, score, taken, leaf.labels["layer"], leaf.labels["head"])


def _largest(position: np.ndarray, score: np.ndarray, taken: np.ndarray) -> Largest:
    return Largest(position, score, taken, np.arange(position.shape[1]), np.arange(position.shape[3]))


def received_leaf(generation: Generation, name: str | None) -> Leaf:
    """The record with attention scores per position: by name, or what `received()` recorded, or the only one there is."""
    fitting = _per_position(generation, name)
    chosen = [leaf for leaf in fitting if leaf.recorder == "received"] or fitting
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        raise JaxsinkError(f"there are several records; choose one with record=: {', '.join(x.name for x in chosen)}.")
    there = ", ".join(leaf.shape_text for leaf in _readable(generation, name)) or "nothing with known axes"
    raise JaxsinkError(f"no record has a value per position, which this plot needs; there is {there}.")


def top_leaves(generation: Generation, name: str | None) -> tuple[Leaf, Leaf] | None:
    """(score, position) that `reduce.top` left, if it did; name: the recorder's, for a choice."""
    names = names_of(generation)
    for score in names:
        front, _, last = score.rpartition(".")
        position = f"{front}.position".lstrip(".")
        if last == "score" and position in names and name in (None, front, score, position):
            return leaves(generation, score)[0], leaves(generation, position)[0]
    return None


def _per_position(generation: Generation, name: str | None) -> list[Leaf]:
    return [leaf for leaf in _readable(generation, name) if leaf.dims in (HEAD_AND_POSITION, (*FRONT, "position"))]


def _readable(generation: Generation, name: str | None) -> list[Leaf]:
    """The leaves whose axes are known; those of a name, or of the dictionary of that name."""
    names = names_of(generation)
    wanted = names if name is None else [x for x in names if x == name or x.startswith(f"{name}.")]
    if not wanted:
        raise JaxsinkError(f"nothing was recorded as {name!r}; there is {', '.join(names)}.")
    found = []
    for each in wanted:
        with suppress(JaxsinkError):  # axes that cannot be told apart
            found += leaves(generation, each)
    return found


def _check_sequence(sequence: int, count: int) -> None:
    if not 0 <= sequence < count:
        raise JaxsinkError(f"sequence {sequence} does not exist; there are {count}, counted from 0.")


def _check_shape(shape: tuple[int, ...], sequence: int) -> None:
    if len(shape) != 5:
        raise JaxsinkError(
            f"a plot takes a Generation, or a record of [step, layer, sequence, head, position], not {list(shape)}."
        )
    _check_sequence(sequence, shape[2])
