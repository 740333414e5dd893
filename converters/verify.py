"""Check a written checkpoint: every tensor against the source, and logits against PyTorch where it has the family."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from jaxsink.checkpoints.storage import Reader, first_line
from jaxsink.errors import JaxsinkError
from jaxsink.nn.forward import forward

from .plan import Piece, Plan, read_piece
from .source import NUMPY, Source

GROUP_BYTES = 64 << 20  # compared at a time; both sides are in memory
TOKENS = (2, 24)  # batch and length of the compared sequences
TOLERANCE = 1e-4  # on float32 logits, relative to the largest of them where that is above 1


def compare_tensors(
    plan: Plan, source: Source, dtype: str, folder: Path, progress: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """Read every piece back and compare it, bit by bit, with the source."""
    reader = Reader(folder)
    done, total = 0, plan.bytes(dtype)
    for group in groups(plan.pieces):
        stored = reader.pieces({piece.name: np.empty(piece.shape, NUMPY[piece.dtype(dtype)]) for piece in group})
        for piece in group:
            expected = read_piece(plan, source, piece, dtype)
            if not same_bits(np.asarray(stored.pop(piece.name)), expected):
                raise JaxsinkError(f"verification failed: {piece.name!r} differs from tensor {piece.sources[0]!r}.")
            done += expected.nbytes
        progress("verifying", done, total)
    return {"tensors": len(plan.pieces)}


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


def groups(pieces: tuple[Piece, ...]) -> Iterator[list[Piece]]:
    """Pieces in order, in groups that are small enough to hold twice."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += math.prod(piece.shape) * 4  # at most
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def compare_logits(plan: Plan, path: Path, dtype: str, folder: Path) -> dict[str, Any]:
    """Largest difference of float32 logits from the PyTorch model, both with the converted (rounded) weights."""
    name = plan.family.transformers_class
    if name is None or not path.is_dir():
        return {"logits": f"not compared: transformers has no reference for this {plan.family.name} checkpoint"}
    if find_spec("transformers") is None or find_spec("torch") is None:
        return {"logits": "not compared: that needs the extra `parity`"}
    needed = 2 * 4 * plan.parameters
    if needed > free_memory():
        return {"logits": f"not compared: both models in float32 need {needed / 1e9:.0f} GB of memory"}
    length = min(TOKENS[1], plan.config.max_positions)
    tokens = np.random.default_rng(0).integers(0, plan.config.vocab, (TOKENS[0], length))
    try:
        theirs = torch_logits(name, path, dtype, tokens)
    except Exception as error:  # transformers may refuse what we accept; that is no fault of the checkpoint
        return {"logits": f"not compared: transformers does not run this checkpoint ({first_line(error)})"}
    ours = np.asarray(forward(Reader(folder).model("float32", None), tokens).logits)
    difference = float(np.abs(ours - theirs).max())
    if not difference <= TOLERANCE * max(1.0, float(np.abs(theirs).max())):
        raise JaxsinkError(f"verification failed: logits differ from PyTorch's by {difference:.2e}.")
    return {"logits": f"within {difference:.1e} of PyTorch", "difference": difference}


def torch_logits(name: str, path: Path, dtype: str, tokens: np.ndarray) -> np.ndarray:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    reference = getattr(transformers, name).from_pretrained(path, local_files_only=True, dtype=torch.float32)
    reference.eval()
    with torch.no_grad():
        for weight in reference.parameters():  # not the whole module: rotary frequencies are not weights
            weight.copy_(weight.to(getattr(torch, dtype)))
        return reference(torch.from_numpy(tokens)).logits.numpy()


def free_memory() -> float:
    """Bytes available without swapping; infinite where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return math.inf
