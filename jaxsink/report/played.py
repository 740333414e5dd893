"""Generations for the player: read from .npz files, and packed as base64 of small numbers for the page."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from jaxsink.arrays import check_axes, check_texts
from jaxsink.checks import at_least
from jaxsink.errors import JaxsinkError
from jaxsink.report.lensed import PlayedLens
from jaxsink.runs.files import interpreting
from jaxsink.sampling.record_file import LARGEST, read_arrays

PARTS = ("scores", "masked")  # attention from all queries, and from masked ones; the page subtracts for the others
NEEDED = ("scores", "committed_at", "steps", "tokens", "prompt_length", "model", "kind")
KINDS = {
    "committed_at": (Int[np.ndarray, " S"], at_least(-1, LARGEST)),
    "steps": (Int[np.ndarray, " T"], at_least(0, LARGEST)),
    "prompt_length": (Int[np.ndarray, ""], at_least(0, LARGEST)),
}
CODES = 255  # largest 8-bit code


@dataclass(frozen=True, eq=False)
class PlayedGeneration:
    """One generation; parts: name → float16[T, L, H, S], the attention each token receives."""

    name: str
    problem: str  # generations of the same problem can be compared
    model: str
    condition: str  # what was hidden from the model; empty: nothing
    kind: str  # "dlm" or "arm"
    prompt_length: int
    steps: np.ndarray  # int[T]
    committed_at: np.ndarray  # int[S]
    tokens: list[str]
    parts: dict[str, np.ndarray]
    lens: PlayedLens | None = None

    @property
    def label(self) -> str:
        return f"{self.model}, {self.condition}" if self.condition else self.model

    @property
    def text(self) -> tuple[str, str]:
        """(prompt, response)."""
        return "".join(self.tokens[: self.prompt_length]), "".join(self.tokens[self.prompt_length :])

    def shown_at(self, frame: int) -> np.ndarray:
        """bool[S]: which tokens are known once this frame's step is over; the last frame shows all of them."""
        last = frame == len(self.steps) - 1
        return self.committed_at <= (np.iinfo(np.int32).max if last else self.steps[frame])

    def exists(self) -> np.ndarray:
        """bool[T, S]: the tokens that each step's pass saw; an autoregressive model's come one by one."""
        return (self.kind == "dlm") | (self.committed_at < self.steps[:, None])

    def fresh_at(self, frame: int) -> np.ndarray:
        """bool[S]: those that were not known a frame before."""
        return self.shown_at(frame) & (self.committed_at > (self.steps[frame - 1] if frame else -1))


def read_generation(file: Path) -> PlayedGeneration:
    """Raises JaxsinkError with the file's name and what is wrong with it."""
    with interpreting(file):
        return _read_generation(file)


def _read_generation(file: Path) -> PlayedGeneration:
    data = read_arrays(file)
    missing = [key for key in NEEDED if key not in data]
    if missing:
        raise JaxsinkError(f"{file} lacks {', '.join(missing)}.")
    parts = {key: data[key] for key in PARTS if key in data}
    shape = parts["scores"].shape
    if len(shape) != 4 or 0 in shape:
        raise JaxsinkError(f"{file}: scores must be [steps, layers, heads, tokens], not {list(shape)}.")
    for key, array in parts.items():
        if array.shape != shape or array.dtype.kind != "f":
            raise JaxsinkError(f"{file}: {key} must be floats {list(shape)}, not {array.dtype} {list(array.shape)}.")
        parts[key] = to_half(array)
    check_texts(f"{file}: tokens", data["tokens"], (shape[3],))
    sizes = {"T": ("scores", shape[0]), "S": ("scores", shape[3])}
    for key, (hint, allowed) in KINDS.items():
        check_axes(key, data[key], hint, allowed, str(file), sizes)
    if (np.diff(data["steps"]) <= 0).any():
        raise JaxsinkError(f"{file}: steps must increase.")
    if str(data["kind"]) not in ("dlm", "arm"):
        raise JaxsinkError(f'{file}: kind is "{data["kind"]}", but must be "dlm" or "arm".')
    return PlayedGeneration(
        name=file.stem,
        **{key: str(data.get(key, "")) for key in ("problem", "model", "condition", "kind")},
        prompt_length=int(data["prompt_length"]),
        steps=data["steps"],
        committed_at=data["committed_at"],
        tokens=[str(token) for token in data["tokens"]],
        parts=parts,
        lens=None,
    )


def to_half(array: np.ndarray) -> np.ndarray:
    """float16 without NaN (a token that is not there yet receives nothing) and infinities; only 0 becomes 0."""
    kind = np.finfo(np.float16)
    values = np.clip(np.nan_to_num(array.astype(np.float32), nan=0.0, posinf=float(kind.max)), 0.0, float(kind.max))
    return np.where(values > 0, np.maximum(values, float(kind.smallest_subnormal)), 0.0).astype(np.float16)


@dataclass(frozen=True)
class Packing:
    """How numbers are stored: 16 bits as they are, or 8 bits on a logarithmic scale; every n-th step."""

    bits: int
    every: int

    def size(self, generations: list[PlayedGeneration]) -> int:
        """Characters of base64 that the generations take."""
        return sum(
            4 * -(-(-(-len(generation.steps) // self.every) * array[0].size * self.bits // 8) // 3)
            for generation in generations
            for array in generation.parts.values()
        )


def choose_packing(generations: list[PlayedGeneration], budget: int) -> Packing:
    """The most precise packing that stays within so many characters."""
    packing = Packing(16, 1)
    while packing.size(generations) > budget:
        if packing.bits == 8 and packing.every >= max(len(generation.steps) for generation in generations):
            raise JaxsinkError("the generations in the folder player are too large for one page; remove some of them.")
        packing = Packing(8, 1 if packing.bits == 16 else 2 * packing.every)
    return packing


def pack(generation: PlayedGeneration, packing: Packing) -> tuple[dict[str, Any], dict[str, str]]:
    """(what the player has to know, part → base64)."""
    keep = slice(None, None, packing.every)
    about: dict[str, Any] = {
        "name": generation.name,
        "problem": generation.problem,
        "model": generation.model,
        "condition": generation.condition,
        "kind": generation.kind,
        "promptLength": generation.prompt_length,
        "steps": generation.steps[keep].tolist(),
        "committedAt": generation.committed_at.tolist(),
        "tokens": generation.tokens,
        "shape": [len(generation.steps[keep]), *generation.parts["scores"].shape[1:]],
        "bits": packing.bits,
        "parts": {},
    }
    blobs = {}
    for name, array in generation.parts.items():
        top = float(array.max())
        about["parts"][name] = {"top": top}
        blobs[name] = base64.b64encode(encode(array[keep], top, packing.bits)).decode("ascii")
    if generation.lens is not None:
        lens = generation.lens.every(packing.every)
        about["lens"], blobs["lens"] = lens.about(), lens.blob()
    return about, blobs


def encode(array: np.ndarray, top: float, bits: int) -> bytes:
    """float16, little-endian; or codes c with value = expm1(c / 255 · log1p(top)), off by at most 1 % of 1 + value."""
    if bits == 16:
        return np.ascontiguousarray(array, "<f2").tobytes()
    scale = CODES / np.log1p(top) if top > 0 else 0.0
    return np.rint(np.log1p(array.astype(np.float32)) * scale).astype(np.uint8).tobytes()
