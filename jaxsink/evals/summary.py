"""The figures of an evaluation, from its lines alone: accuracies or likelihoods with intervals, paired tests, other
outcomes, sink tokens, speed.

Only questions that are finished under every condition count, because conditions are compared on the same questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import Comparison, Named, comparisons
from jaxsink.evals.outcomes import compared_outcomes, summed_up
from jaxsink.evals.paper import published
from jaxsink.evals.results import read_evaluation, read_results, read_speed
from jaxsink.evals.sinks import frequent_tokens, pool
from jaxsink.evals.statistics import (
    bootstrap,
    clustered_mean,
    clustered_share,
    mcnemar,
    paired_difference,
    paired_shares,
    wilson,
)
from jaxsink.runs.atomic import write_json
from jaxsink.runs.files import interpreting, read_json

FILE = "results.json"
Answers = list[dict[str, Any]]  # of one condition, in order of question


def summarise(folder: Path, name_of: Callable[[int], str]) -> dict[str, Any]:
    """Sum up all shards, write results.json, and return what it says; `name_of` gives a token id's text."""
    with interpreting(folder):
        results = summed(folder, read_evaluation(folder), name_of)
    write_json(folder / FILE, results)
    return results


def summed(folder: Path, manifest: JsonObject, name_of: Callable[[int], str]) -> dict[str, Any]:
    """What results.json is to say."""
    known = {one.name: one for one in Named.all_of(manifest)}
    by_condition, total = finished(folder, list(manifest["conditions"]))
    count = len(next(iter(by_condition.values())))
    setting = manifest["exam"]["setting"]
    gold = bool(manifest["exam"].get("gold"))
    results: dict[str, Any] = {
        "exam": manifest["exam"]["name"],
        "gold": gold,
        "benchmark": manifest["exam"]["benchmark"],
        "subject": setting.get("model") or manifest["model"]["family"],  # what tables call the model
        "model": manifest["model"],
        "questions": total,
        "finished": count,
        "seed": manifest["seed"],
        "eps": manifest["eps"],
        "conditions": [],
        "tests": [],
        "sinks": {},
        "throughput": throughput(folder),
    }
    if count:
        for label, answers in by_condition.items():
            about = {"condition": label, "k": known[label].k, "select": known[label].select}
            if gold:
                results["conditions"].append({**about, "total": len(answers), **by_share(perplexity, answers)})
                continue
            line = {**about, **accuracies(answers), "outcomes": summed_up(answers)}
            results["conditions"].append(line | against_published(line, manifest, complete=count == total))
            if manifest["eps"] is not None:
                results["sinks"][label] = sinks(answers, name_of)
        test = compared_likelihoods if gold else compared
        results["tests"] = [test(pair, by_condition) for pair in comparisons(list(known.values()))]
    return results


def finished(folder: Path, labels: list[str]) -> tuple[dict[str, Answers], int]:
    """(answers to the questions that are complete, by condition; how many questions there are to be)."""
    found = read_results(folder, labels)
    indices = sorted({index for index, _ in found})
    complete = [index for index in indices if all((index, label) in found for label in labels)]
    by_condition = {label: [found[index, label] for index in complete] for label in labels}
    return by_condition, read_evaluation(folder)["exam"]["questions"]


def accuracies(answers: Answers) -> dict[str, Any]:
    """The score that counts with its 95 % interval (Wilson's, or by clusters), and the strict and flexible ones where a
    benchmark has them."""
    right = sum(answer["correct"] for answer in answers)
    share, low, high = wilson(right, len(answers))
    clusters = repeated(answers)
    if clusters is not None:
        low, high = clustered_share([answer["correct"] for answer in answers], clusters).interval()
        low, high = max(0.0, low), min(1.0, high)
    both = {
        name: sum(answer[name] for answer in answers) / len(answers)
        for name in ("strict", "flexible")
        if name in answers[0]
    }
    return {"right": right, "total": len(answers), "accuracy": share, "low": low, "high": high, **both}


def repeated(answers: Answers) -> list[str] | None:
    """What each question really asks, if some ask the same; None where all differ."""
    clusters = [str(answer.get("cluster", number)) for number, answer in enumerate(answers)]
    return clusters if len(set(clusters)) < len(clusters) else None


def against_published(line: Mapping[str, Any], manifest: Mapping[str, Any], complete: bool) -> dict[str, Any]:
    """The published accuracy in per cent where there is one, and p of ours being the same.

    Only a complete run is tested: questions are asked in order of length, so those that come first are no fair sample.
    """
    ways = ("K = 0", f"K = {line['k']}, top", f"K = {line['k']}, top, ranked on clean maps")
    asked_as_published = line["condition"] in ways
    known = published(manifest["exam"]["name"], line["k"], manifest["reported"]) if asked_as_published else None
    if known is None:
        return {"reported": None, "p_reported": None}
    return {"reported": known.percent, "p_reported": known.p(line["right"], line["total"]) if complete else None}


def read_summary(folder: Path) -> dict[str, Any]:
    """What `summarise` wrote last, if it is of all answers that are there."""
    manifest = read_evaluation(folder)
    results = read_json(folder / FILE) if (folder / FILE).exists() else {}
    with interpreting(folder):
        there = len(next(iter(finished(folder, list(manifest["conditions"]))[0].values())))
        whole = {"finished", "subject", "tests", "gold"} <= set(results)
        whole = whole and (results["gold"] or all("outcomes" in line for line in results["conditions"]))
    if not whole or results["finished"] != there:
        raise JaxsinkError(
            f"{folder} has answers that are not summed up; do so with `jaxsink evaluate MODEL {manifest['exam']['name']} "
            f"--out {folder} --summary`."
        )
    if results["gold"]:
        raise JaxsinkError(f"{folder} holds perplexities (--gold), and Table 1 is of answers; name runs without it.")
    return results


def compared(pair: Comparison, by_condition: Mapping[str, Answers]) -> dict[str, Any]:
    """McNemar's exact test of two conditions (a clustered one where questions repeat), and how other outcomes differ."""
    first, second = ([answer["correct"] for answer in by_condition[label]] for label in pair[:2])
    only_first, only_second, p = mcnemar(first, second)
    clusters = repeated(by_condition[pair[0]])
    if clusters is not None:
        p = paired_shares(first, second, clusters).p_two_sided()
    others = compared_outcomes(pair, by_condition)
    return {**pair._asdict(), "gained": only_first, "lost": only_second, "p": p, "outcomes": others}


def by_share(figures: Callable[..., dict[str, Any]], *conditions: Answers) -> dict[str, Any]:
    """figures(*lines) of all tokens; and under "t" by the share of masked ones, where a diffusion model filled them in."""
    shares = conditions[0][0].get("t", ())
    parts = {share: figures(*([line["t"][share] for line in lines] for lines in conditions)) for share in shares}
    return {**figures(*conditions), **({"t": parts} if parts else {})}


def perplexity(lines: Answers) -> dict[str, Any]:
    """Per token of the given answers, and the mean divergence from the unmasked model (nats); the bootstrap's 95 %
    intervals over questions."""
    sums = np.array([[line["log_prob"], line["kl"] * line["tokens"], line["tokens"]] for line in lines])

    def of(values: np.ndarray, axis: int) -> np.ndarray:
        totals = values.sum(axis=axis)
        means = totals[..., :2] / totals[..., 2:]
        return np.stack([np.exp(-means[..., 0]), means[..., 1]], axis=-1)

    (value, kl), (low, kl_low), (high, kl_high) = (end.tolist() for end in bootstrap(sums, of))
    figures = {"tokens": int(sums[:, 2].sum()), "perplexity": value, "low": low, "high": high}
    return {**figures, "kl": kl, "kl_low": kl_low, "kl_high": kl_high}


def compared_likelihoods(pair: Comparison, by_condition: Mapping[str, Answers]) -> dict[str, Any]:
    """Mean difference of the log-probability per token, over questions, and the sign-flip test of it; a clustered test
    where questions repeat."""
    clusters = repeated(by_condition[pair[0]])

    def tested(*lines: Answers) -> dict[str, Any]:
        first, second = ([line["log_prob"] / line["tokens"] for line in one] for one in lines)
        difference, low, high, p = paired_difference(first, second)
        if clusters is not None:
            gap = clustered_mean(np.subtract(first, second), clusters)
            (low, high), p = gap.interval(), gap.p_two_sided()
        return {"difference": difference, "low": low, "high": high, "p": p}

    return {**pair._asdict(), **by_share(tested, *(by_condition[label] for label in pair[:2]))}


def sinks(answers: Answers, name_of: Callable[[int], str]) -> dict[str, Any]:
    """How many sinks a head has, how often the first token is one of them, and Table 2."""
    pooled = pool(answer["sinks"] for answer in answers)
    return {
        "per_head": pooled["total"] / max(1, pooled["maps"]),
        "on_first_token": pooled["first"] / max(1, pooled["total"]),
        "tokens": frequent_tokens(pooled, name_of),
    }


def throughput(folder: Path) -> dict[str, Any]:
    """Speed of one process, from the batches that did not compile, if there are any."""
    lines = read_speed(folder)
    warm = [line for line in lines if not line["first"]] or lines
    seconds = sum(line["seconds"] for line in warm)
    return {
        "seconds": round(sum(line["seconds"] for line in lines), 3),
        "questions_per_second": sum(line["questions"] for line in warm) / seconds if seconds else None,
        "tokens_per_second": sum(line["tokens"] for line in warm) / seconds if seconds else None,
        "with_compiling": any(line["first"] for line in warm),
    }
