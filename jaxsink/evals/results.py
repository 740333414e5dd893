"""The results of an evaluation, and what it is of.

DIR/manifest.json         model, exam, conditions, ε and seed
DIR/results-0001.jsonl    answers and scores of shard 1
DIR/speed-0001.jsonl      how long its batches took
DIR/results.json          the summary
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checks import ANY, Range, at_least, check_value, shown
from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import Condition
from jaxsink.nn.fingerprint import fingerprint
from jaxsink.nn.quantization import weights_dtype
from jaxsink.nn.transformer import Model
from jaxsink.runs.lines import Line, read_lines
from jaxsink.runs.run import MANIFEST, read_manifest
from jaxsink.sandbox.levels import Level
from jaxsink.tasks.exam import Exam, Question

KIND = "evaluation"
RESULTS, SPEED = "results", "speed"
Key = tuple[int, str]
"""(index of the question, text of the condition)"""
Result = dict[str, Any]
"""A line of the results."""
COUNT = at_least(0, 1 << 53)
Kinds = Mapping[str, tuple[Any, Range]]
"""What stands under a name, and between which numbers."""
NEEDED: Kinds = {"index": (int, COUNT), "condition": (str, ANY)}
LIKELIHOODS: Kinds = {
    "log_prob": (float, Range(-1e12, 1e12)),
    "kl": (float, Range(-1e12, 1e12)),
    "tokens": (int, COUNT),
}
KINDS: Kinds = {  # of what else a line may hold
    **LIKELIHOODS,
    **dict.fromkeys(("task_id", "cluster", "found"), (str, ANY)),
    **dict.fromkeys(("correct", "strict", "flexible", "empty"), (bool, ANY)),
    "sandbox": (Level, ANY),
    "text": (str | None, ANY),
    "steps": (int, COUNT),
    "unfinished": (bool | None, ANY),
    "zlib": (float | None, at_least(0, 1e6)),
    "repeated": (float, at_least(0, 1)),
    "sinks": (dict, ANY),
    "t": (dict, ANY),
}
SINK_KINDS: Kinds = {
    **dict.fromkeys(("maps", "total", "first"), (int, COUNT)),
    "layers": (Sequence[int], COUNT),
    **dict.fromkeys(("tokens", "places"), (dict[str, int], COUNT)),
}
SPEED_KINDS: Kinds = {
    "first": (bool, ANY),
    "seconds": (float, at_least(0, 1e9)),
    "questions": (float, COUNT),
    "tokens": (int, COUNT),
}
MANIFEST_KINDS: Kinds = {
    **dict.fromkeys(("exam", "model", "conditions"), (dict, ANY)),
    "eps": (float | None, at_least(0)),
    "seed": (int, ANY),
    "reported": (float | None, at_least(0, 100)),
}
EXAM_KINDS: Kinds = {
    **dict.fromkeys(("name", "benchmark"), (str, ANY)),
    "questions": (int, COUNT),
    "setting": (dict, ANY),
}
CONDITION_KINDS: Kinds = {"k": (int | float | None, at_least(0)), "select": (str | None, ANY)}


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


def read_results(folder: Path, conditions: Collection[str] | None = None) -> dict[Key, Result]:
    """Every answer once, by question and condition, in that order; two that differ are named.

    conditions: those that there can be.
    """
    found: dict[Key, Line] = {}
    for line in read_lines(folder, RESULTS):
        check_line(line)
        key = (line.value["index"], line.value["condition"])
        if conditions is not None and key[1] not in conditions:
            raise JaxsinkError(f"{line}: condition is {shown(key[1])}, which the {MANIFEST} of this run does not have.")
        before = found.setdefault(key, line)
        if before is not line and (before.value != line.value or before.file == line.file):
            raise JaxsinkError(
                f"{line} answers question {key[0]} under {key[1]} again, as {before} did; remove one of the two lines."
            )
    return {key: line.value for key, line in sorted(found.items())}


def check_line(line: Line) -> None:
    """Every field is of its kind, and between its numbers."""
    check_kinds(line, line.value, NEEDED, needed=True)
    check_kinds(line, line.value, KINDS)
    if "sinks" in line.value:
        check_kinds(f"{line}: sinks", line.value["sinks"], SINK_KINDS, needed=True)
    for share, figures in line.value.get("t", {}).items():
        check_kinds(f"{line}: t {share}", check_value(f"{line}: t {share}", figures, dict), LIKELIHOODS)


def read_speed(folder: Path) -> list[Result]:
    """How long each batch took."""
    lines = list(read_lines(folder, SPEED))
    for line in lines:
        check_kinds(line, line.value, SPEED_KINDS, needed=True)
    return [line.value for line in lines]


def read_evaluation(folder: Path) -> JsonObject:
    """The manifest of an evaluation; every field that figures are made of is of its kind."""
    manifest = read_manifest(folder, KIND)
    check_kinds(folder / MANIFEST, manifest, MANIFEST_KINDS, needed=True)
    check_kinds(f"{folder / MANIFEST}: exam", manifest["exam"], EXAM_KINDS, needed=True)
    check_kinds(f"{folder / MANIFEST}: exam", manifest["exam"], {"gold": (bool, ANY)})
    check_kinds(f"{folder / MANIFEST}: exam setting", manifest["exam"]["setting"], {"model": (str, ANY)})
    check_kinds(f"{folder / MANIFEST}: model", manifest["model"], {"family": (str, ANY)}, needed=True)
    if not manifest["conditions"]:
        raise JaxsinkError(f"{folder / MANIFEST}: conditions must be one or more, and there is none.")
    for name, about in manifest["conditions"].items():
        where = f"{folder / MANIFEST}: conditions {shown(name)}"
        check_kinds(where, check_value(where, about, dict), CONDITION_KINDS, needed=True)
    return manifest


def check_kinds(where: object, values: Mapping[str, Any], kinds: Kinds, needed: bool = False) -> None:
    """needed: what is missing is wrong, unless it may be None."""
    for name, (kind, allowed) in kinds.items():
        if needed or name in values:
            check_value(f"{where}: {name}", values.get(name), kind, allowed)
