"""The results of an evaluation, and what it is of.

DIR/manifest.json         model, exam, conditions, ε and seed
DIR/results-0001.jsonl    answers and scores of shard 1
DIR/speed-0001.jsonl      how long its batches took
DIR/results.json          the summary
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checks import at_least, check_value
from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import Condition
from jaxsink.nn.fingerprint import fingerprint
from jaxsink.nn.quantization import weights_dtype
from jaxsink.nn.transformer import Model
from jaxsink.runs.lines import Line, read_lines
from jaxsink.runs.run import MANIFEST, read_manifest
from jaxsink.tasks.exam import Exam, Question

KIND = "evaluation"
RESULTS, SPEED = "results", "speed"
Key = tuple[int, str]
"""(index of the question, text of the condition)"""
Result = dict[str, Any]
"""A line of the results."""
NEEDED: dict[str, Any] = {"index": int, "condition": str}
KINDS: dict[str, Any] = {  # of what else a line may hold
    "cluster": str,
    "correct": bool,
    "strict": bool,
    "flexible": bool,
    "text": str | None,
    "tokens": int,
}
MANIFEST_KINDS: dict[str, Any] = {"exam": dict, "model": dict, "conditions": dict, "eps": float | None, "seed": int}
EXAM_KINDS: dict[str, Any] = {"name": str, "questions": int, "setting": dict}


def identity(
    model: Model, exam: Exam, conditions: Sequence[Condition], eps: float | None, seed: int
) -> tuple[JsonObject, JsonObject]:
    """(what must be the same for an evaluation to go on, facts for the reader), on any number of devices."""
    decides = {
        "exam": {"name": exam.name, **exam.facts, "questions": len(exam.questions), "prompts_sha256": exam.digest},
        "model": {
            "fingerprint": fingerprint(model),
            "dtype": weights_dtype(model),
            "family": model.config.family,
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(model)),
        },
        "conditions": {str(condition): condition.to_dict() for condition in conditions},
        "eps": eps,
        "seed": seed,
    }
    return decides, {"reported": exam.reported}


def about(question: Question, condition: Condition) -> Result:
    """How every line begins. cluster: where questions differ in words alone."""
    line = {"index": question.index, "task_id": question.task_id, "condition": str(condition)}
    return line if question.cluster == question.task_id else {**line, "cluster": question.cluster}


def likelihood(log_prob: Float[np.ndarray, " N"], divergence: Float[np.ndarray, " N"] | None = None) -> Result:
    """How likely a model finds given tokens: the sum, their number, and the mean divergence from the unmasked model."""
    found = {"log_prob": float(log_prob.sum()), "tokens": len(log_prob)}
    return found if divergence is None else {**found, "kl": float(divergence.mean())}


def read_results(folder: Path) -> dict[Key, Result]:
    """Every answer once, by question and condition, in that order; two that differ are named."""
    found: dict[Key, Line] = {}
    for line in read_lines(folder, RESULTS):
        check_line(line)
        key = (line.value["index"], line.value["condition"])
        before = found.setdefault(key, line)
        if before is not line and (before.value != line.value or before.file == line.file):
            raise JaxsinkError(
                f"{line} answers question {key[0]} under {key[1]} again, as {before} did; remove one of the two lines."
            )
    return {key: line.value for key, line in sorted(found.items())}


def check_line(line: Line) -> None:
    """Every field is of its kind."""
    for name, kind in NEEDED.items():
        check_value(f"{line}: {name}", line.value.get(name), kind, at_least(0))
    for name, kind in KINDS.items():
        if name in line.value:
            check_value(f"{line}: {name}", line.value[name], kind)


def read_evaluation(folder: Path) -> JsonObject:
    """The manifest of an evaluation; every field that figures are made of is of its kind."""
    manifest = read_manifest(folder, KIND)
    for name, kind in MANIFEST_KINDS.items():
        check_value(f"{folder / MANIFEST}: {name}", manifest.get(name), kind)
    for name, kind in EXAM_KINDS.items():
        check_value(f"{folder / MANIFEST}: exam {name}", manifest["exam"].get(name), kind, at_least(0))
    return manifest
