"""Harm done to a built-in model, one edit or one bit at a time, and what the reading of it makes of that.

Every outcome is one of

    refused   one sentence says what is wrong
    harmless  what loads is what was written: the place says nothing that is read
    wrong     something else loads
    possible  the same of an edit whose checksum was made to fit: the manifest of another model that could be
    broken    an error that is no sentence of ours
"""

from __future__ import annotations

import copy
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxsink
from jaxsink.checkpoints.integrity import MANIFEST, sealed
from jaxsink.errors import JaxsinkError
from jaxsink.zoo.resolve import resolve
from support.damage import places

MODEL = "mini-llada"
VALUES = (None, -1, 0, 10**9, 10**18, float("nan"), "", "foo", True, [], {})
REMOVED = object()
"""In place of a value."""
SEED = 0
Outcomes = dict[str, int]


def edited() -> Iterator[Any]:
    """The manifest with another value in each of its places, or without it; of the arrays' checksums one stands for all."""
    sound = json.loads((resolve(MODEL) / MANIFEST).read_text(encoding="utf-8"))
    first = next(iter(sound["checksums"]["arrays"]))
    for path in places(sound):
        if path[:2] == ("checksums", "arrays") and path[2:] not in ((), (first,)):
            continue
        for value in (*VALUES, REMOVED):
            values = copy.deepcopy(sound)
            node = reduce(getitem, path[:-1], values)
            if value is REMOVED:
                del node[path[-1]]
            else:
                node[path[-1]] = value
            if repr(values) != repr(sound):
                yield values


def outcome(read: Callable[[], bool]) -> str:
    """read: whether what is read is what was written."""
    try:
        return "harmless" if read() else "wrong"
    except JaxsinkError as error:
        return "refused" if "\n" not in str(error) else "broken"
    except Exception:
        return "broken"


def edits_of_the_manifest(folder: Path, fits: bool = False) -> Outcomes:
    """In a directory of its own. fits: make the checksum of the manifest fit, so that its fields alone are looked at."""
    model = copied(folder)
    seal = json.loads((model / MANIFEST).read_text(encoding="utf-8"))["checksums"]["manifest"]
    found: Counter[str] = Counter()
    for values in edited():
        sums = values.get("checksums")
        is_fitted = fits and isinstance(sums, dict) and sums.get("manifest") == seal
        (model / MANIFEST).write_text(json.dumps(sealed(values) if is_fitted else values), encoding="utf-8")
        came = outcome(lambda: jaxsink.load(model) is None)  # each says something else than was written
        found["possible" if is_fitted and came == "wrong" else came] += 1
    return dict(found)


def flips(folder: Path, part: str, count: int) -> Outcomes:
    """Bits at random of the files that a pattern names, and of them all alike."""
    model, sound = copied(folder), jaxsink.load(MODEL, dtype="bfloat16")
    files = [path for path in sorted(model.glob(part)) if path.is_file()]
    ends = np.cumsum([path.stat().st_size for path in files])
    found: Counter[str] = Counter()
    for place in np.random.default_rng(SEED).integers(0, 8 * ends[-1], count).tolist():
        number = int(np.searchsorted(ends, place // 8, side="right"))
        path, byte = files[number], place // 8 - int(ends[number] - files[number].stat().st_size)
        before = path.read_bytes()
        path.write_bytes(before[:byte] + bytes([before[byte] ^ 1 << place % 8]) + before[byte + 1 :])
        found[outcome(lambda: is_same(jaxsink.load(model), sound))] += 1
        path.write_bytes(before)
    return dict(found)


def is_same(one: jaxsink.Model, other: jaxsink.Model) -> bool:
    """Weights, configuration, sampler and tokenizer."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    said = [(m.config, m.origin.sampler, m.tokenizer.backend.to_str(), m.tokenizer.special) for m in (one, other)]
    return said[0] == said[1] and all(bool((a == b).all()) for a, b in pairs)


def copied(folder: Path) -> Path:
    return Path(shutil.copytree(resolve(MODEL), folder / "model"))
