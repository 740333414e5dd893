"""A small evaluation put together by hand: one answer, whose checksum fits whatever it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxsink.runs.lines import encoded
from jaxsink.runs.run import about

MANIFEST: dict[str, Any] = {
    "exam": {"name": "task", "questions": 2, "setting": {}, "benchmark": "task", "gold": False},
    "model": {"family": "llama", "fingerprint": "x"},
    "conditions": {"K = 0": {"k": 0, "select": None}},
    "eps": 3.0,
    "seed": 0,
    "reported": None,
    **about("evaluation"),
}
SINKS = {"maps": 8, "total": 3, "first": 1, "layers": [1, 2], "tokens": {"5": 3}, "places": {"5": 4, "6": 1}}
ANSWER: dict[str, Any] = {
    "index": 0,
    "task_id": "a",
    "condition": "K = 0",
    "text": "3",
    "correct": True,
    "found": "3",
    "steps": 4,
    "sinks": SINKS,
}
SPEED: dict[str, Any] = {"first": True, "seconds": 1.5, "questions": 2, "tokens": 9}


def make_evaluation(
    folder: Path, manifest: dict[str, Any] = MANIFEST, results: dict[str, Any] = ANSWER, speed: dict[str, Any] = SPEED
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for name, line in (("results", results), ("speed", speed)):
        (folder / f"{name}-0001.jsonl").write_bytes(encoded(line))
    return folder
