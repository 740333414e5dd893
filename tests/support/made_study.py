"""A small study directory whose numbers are made up, for tests of the report."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np

EVIL = '</script><b id="evil">&amp;"\''
QUESTION = ["Tom", " has", " 3", " apples", " and", " buys", " 4", " more", ".", " How", " many", "?", "\n"]
ANSWER = [
    "Tom",
    " starts",
    " with",
    " 3",
    " apples",
    ".",
    "\n",
    "He",
    " buys",
    " 4",
    " more",
    ",",
    " so",
    " 3",
    " +",
    " 4",
    " =",
    " 7",
    ".",
    "\n",
    "####",
    " 7",
    "\n",
    "<|end|>",
    "<|end|>",
    "<|end|>",
    "<|end|>",
    "<|end|>",
]
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="300" height="120" '
    'viewBox="0 0 300 120"><g id="figure_1"><g id="patch_1"><path d="M0 0H300V120H0z" style="fill: #ffffff"/></g>'
    '<defs><path id="tick" d="M0 0V4" style="stroke: #000000"/></defs><use xlink:href="#tick" x="9" y="90"/>'
    '<path d="M10 110 L80 40 L150 70 L290 15" fill="none" stroke="#0072b2" stroke-width="3"/></g></svg>'
)
VALUES = {
    "box": [0.0, 0.0, 1.0, 1.0],
    "title": "",
    "bars": [],
    "images": [],
    "x": {"limits": [0, 10], "log": False, "label": "step", "names": {}},
    "y": {"limits": [1, 100], "log": True, "label": "received", "names": {}},
    "points": [{"label": "mini-llada", "x": [2.0, 5.0, 8.0], "y": [3.0, 10.0, None]}],
}
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


MOVING = (1, 1)  # layer and head whose sink moves


def make_run(
    path: Path, kind: str, tokens: list[str] | None = None, problem: str = "Problem 1", condition: str = ""
) -> dict:
    """A run whose sink moves from right to left in one head (dlm), or sits on the first token; a condition hides it."""
    tokens = QUESTION + ANSWER if tokens is None else tokens
    size, prompt = len(tokens), min(len(QUESTION), len(tokens) // 2)
    new, layers, heads = size - prompt, 3, 2
    noise = np.random.default_rng(7)
    committed = np.full(size, -1, np.int32)
    committed[prompt:] = np.arange(new) if kind == "arm" else noise.permutation(new)
    scores = noise.gamma(2.0, 0.25, (new, layers, heads, size))
    scores[..., 0] += 6 + 4 * noise.random((new, layers, heads))
    if kind == "dlm":
        scores[:, *MOVING, 0] -= 6
        scores[np.arange(new), *MOVING, size - 1 - np.arange(new) * (size - 1) // new] += 9
    for step in range(new):
        if kind == "arm":
            scores[step, :, :, committed >= step] = 0
        if condition and step % 2:
            scores[step, :, :, 0] = 0
    share = np.clip(noise.random(scores.shape), 0.2, 0.8)
    arrays = {
        "scores": scores.astype(np.float16),
        "committed_at": committed,
        "steps": np.arange(new, dtype=np.int32),
        "tokens": np.array(tokens),
        "prompt_length": np.array(prompt, np.int32),
        "problem": np.array(problem),
        "condition": np.array(condition),
        "model": np.array("mini-llama" if kind == "arm" else "mini-llada"),
        "kind": np.array(kind),
    }
    if kind == "dlm":
        arrays["masked"] = (scores * share).astype(np.float16)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return arrays


TEST = {
    "model": "mini-llada",
    "expected": "greater",
    "value": 0.61,
    "low": 0.55,
    "high": 0.67,
    "problems": 30,
    "comparisons": [
        {
            "null": "steps shuffled",
            "null_value": 0.4567,
            "difference": 0.1533,
            "low": 0.1,
            "high": 0.2,
            "p": 0.0123,
            "p_opposite": 1.0,
        }
    ],
    "p": 0.0369,
    "verdict": "supported",
    "why": "",
}


def make_study(path: Path, evil: str = "") -> Path:
    verdicts = ("supported", "refuted", "undecided", "not testable here", "undecided")
    for folder in ("experiments", "figures"):
        (path / folder).mkdir(parents=True)
    manifest = {"jaxsink": "0.1.0", "created": "2026-11-16T07:00:00Z", "models": {"mini-llada": {}, "mini-llama": {}}}
    (path / "manifest.json").write_text(
        json.dumps(manifest | {"settings": {"note": evil, "eps": 2.5}, "machine": {"cores": 2}})
    )
    table = {"title": f"Accuracy{evil}", "columns": ["model", "K", "accuracy"], "note": f"95 % intervals.{evil}"}
    rows = [["mini-llada", 0, 0.9123456], ["mini-llama", 1, "0.02 [0.01, 0.04]"], [f"x{evil}", 5, None]]
    for name, verdict in zip(("fig1", "fig2", "table1", "fig10", "dose"), verdicts, strict=True):
        experiment = {
            "name": name,
            "title": f"{name}: where the largest sink is{evil}",
            "question": f"Do sinks move while text is unmasked?{evil}",
            "paper": f"In LLaDA they drift to the right; in an autoregressive model they stay on the first token.{evil}",
            "found": f"The largest sink changes its position in 61 % [55, 67] of the steps of mini-llada.{evil}",
            "verdict": verdict,
            "figures": [f"{name}.svg"],
            "tables": [table | {"rows": rows}],
            "tests": [TEST | {"statistic": f"share of steps in which the largest sink moves{evil}"}],
        }
        (path / "experiments" / f"{name}.json").write_text(json.dumps(experiment))
        (path / "figures" / f"{name}.svg").write_text(SVG)
        (path / "figures" / f"{name}.json").write_text(json.dumps([VALUES]))
        (path / "figures" / f"{name}.png").write_bytes(PIXEL)
    tokens = [*QUESTION, evil, *ANSWER] if evil else None
    make_run(path / "player" / "a-llada.npz", "dlm", tokens)
    make_run(path / "player" / "a-llada-hidden.npz", "dlm", tokens, condition="top sink hidden")
    make_run(path / "player" / "b-llama.npz", "arm")
    make_run(path / "player" / "c-llada.npz", "dlm", [*QUESTION[:8], *ANSWER[:9]], problem="Problem 2")
    return path
