"""How likely models find published answers, with and without keys hidden, wherever that takes no steps.

**Diffusion.** Of every answer a share t = 0.25, 0.5 and 0.75 of the tokens is masked, on several canvases that follow from
seed, question and t alone: every condition sees the same ones. A block-causal model (SDAR) fills in block by block, each
given what stands before it.

**Autoregressive.** One canvas: the answer after its prompt. K = 0, keys that are hidden from all rows, and the first token
are scored so; what else is hidden from the newest row depends on the step before (engine.py).

A sequence is a canvas. All of one shape share a program, in which a first pass ranks the keys, and one more for each
condition, with its keys hidden, is scored (passes.py). A question's figures are kept when all its canvases are done, so a
killed run loses one batch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from math import gcd

import numpy as np

from jaxsink.evals.batching import buckets, full_batches
from jaxsink.evals.conditions import Condition, intervention, programs
from jaxsink.evals.job import Evaluation, Keep
from jaxsink.evals.layout import BUCKET, batch_rows
from jaxsink.evals.likelihood.canvases import SHARES, masked_share
from jaxsink.evals.likelihood.passes import Pass, Row, Scores, Shape, run_rows
from jaxsink.evals.likelihood.scoring import Pair, masked_row, pieces, whole_row
from jaxsink.evals.results import Key, Result, about, likelihood
from jaxsink.runs.progress import progress
from jaxsink.runs.stopping import IsStopped, StoppedError
from jaxsink.tasks.exam import Question


@dataclass(frozen=True)
class Bucket:
    """Questions of one shape under the conditions of one program that they have no result for."""

    shape: Shape
    conditions: tuple[Condition, ...]
    questions: tuple[Question, ...]
    canvases: int  # of all questions
    rows: int  # of a batch

    @property
    def batches(self) -> int:
        return -(-self.canvases // self.rows)


@dataclass
class Tally:
    """Scores of one question under one condition, by share of masked tokens (0 where none is)."""

    missing: int  # canvases
    scores: dict[float, list[np.ndarray]] = field(
        default_factory=dict
    )  # [1,N] log-probabilities; [2,N] and divergences

    def add(self, row: Row, *values: np.ndarray) -> None:
        """values: log-probabilities at the right edge, and divergences if they are known."""
        self.missing -= 1
        self.scores.setdefault(row.share, []).append(np.stack([row.of_answer(value) for value in values]))

    def figures(self) -> Result:
        """Of all canvases together, and by share."""

        def of(shares: Collection[float]) -> Result:
            parts = [part for share in shares for part in self.scores[share]]
            return likelihood(*np.concatenate(parts, axis=1).astype(np.float64))

        shares = sorted(self.scores)
        by_share = {"t": {str(share): of([share]) for share in shares}} if shares != [0.0] else {}
        return {**of(shares), **by_share}


def score_all(job: Evaluation, keep: Keep, keep_speed: Keep, done: Collection[Key], is_stopped: IsStopped) -> None:
    """Score everything but what is done; results go to `keep`, batch by batch."""
    work = list(bucketed(job, done))
    with progress([one.shape.length * one.rows for one in work for _ in range(one.batches)]) as (begin, end):
        for bucket in work:
            tallies = [[Tally(canvas_count(job, q)) for _ in bucket.conditions] for q in bucket.questions]
            how = Pass(intervention(bucket.conditions), diverge=job.exam.diverges)
            for number, (batch, real) in enumerate(full_batches(bucket_rows(job, bucket), bucket.rows)):
                if is_stopped():
                    raise StoppedError
                begun = time.monotonic()
                begin(f"{bucket.rows} canvases of {bucket.shape.length} tokens")
                scores = run_rows(job.placed, batch, bucket.shape, how, job.used_devices)
                add_up(tallies, batch[:real], scores)
                lines = finished_lines(bucket, tallies, batch[:real])
                if lines:
                    keep(lines)
                finished = len(lines) / len(job.conditions)
                keep_speed([speed_of(begun, finished, len(bucket.conditions), batch[:real], number == 0)])
                end()


def speed_of(begun: float, questions: float, conditions: int, rows: list[Row], first: bool) -> Result:
    tokens = conditions * int(sum(row.scored.sum() for row in rows))
    return {"seconds": round(time.monotonic() - begun, 3), "questions": questions, "tokens": tokens, "first": first}


def bucketed(job: Evaluation, done: Collection[Key] = ()) -> Iterator[Bucket]:
    """What is left for this shard, longest sequences first; the size of a batch follows from all questions of the shape."""
    number, count = job.shard
    questions = job.exam.questions[number - 1 :: count]
    for shape, together in buckets(questions, lambda question: shape_of(job, question)):
        total = sum(canvas_count(job, question) for question in together)
        for wanted in programs(job.in_passes):
            by_left: dict[tuple[Condition, ...], list[Question]] = {}
            for question in together:
                left = tuple(one for one in wanted if (question.index, str(one)) not in done)
                by_left.setdefault(left, []).append(question)
            for left, asked in by_left.items():
                canvases = sum(canvas_count(job, question) for question in asked)
                if left:
                    yield Bucket(shape, left, tuple(asked), canvases, batch_rows(total, job.rows, job.share))


def parts_of(job: Evaluation, question: Question) -> list[Pair]:
    return list(pieces(Pair(question.prompt, question.gold), job.config.block_length))


def canvas_count(job: Evaluation, question: Question) -> int:
    if not job.config.is_diffusion:
        return 1
    return len(parts_of(job, question)) * len(SHARES) * job.exam.canvases


def shape_of(job: Evaluation, question: Question) -> Shape:
    """All parts of an answer are padded to the length of the whole, so that they are done together."""
    longest, multiple = max(len(part.answer) for part in parts_of(job, question)), job.exam.bucket
    multiple = (
        multiple if multiple <= BUCKET else gcd(multiple, BUCKET)
    )  # a long prompt is no reason to pad as much again
    return Shape.of(len(question.prompt) + len(question.gold), longest, multiple)


def bucket_rows(job: Evaluation, bucket: Bucket) -> Iterator[Row]:
    for owner, question in enumerate(bucket.questions):
        for row in question_rows(job, question):
            yield row._replace(owner=owner)


def question_rows(job: Evaluation, question: Question) -> Iterator[Row]:
    """The canvases of a question, whatever the condition."""
    if not job.config.is_diffusion:
        yield whole_row(0, Pair(question.prompt, question.gold), job.seed + question.index)
        return
    for number, part in enumerate(parts_of(job, question)):
        for share in SHARES:
            origin = [(job.seed + question.index) & 0xFFFFFFFF, number, round(1000 * share)]
            seeds = np.random.SeedSequence(origin).generate_state(job.exam.canvases)
            canvases = masked_share(len(part.answer), share, job.exam.canvases, np.random.default_rng(origin))
            for masked, seed in zip(canvases, seeds.tolist(), strict=True):
                yield masked_row(job.config, 0, part, masked, seed)._replace(share=share)


def add_up(tallies: list[list[Tally]], rows: list[Row], scores: Scores) -> None:
    known = [np.asarray(values) for values in (scores.log_prob, scores.divergence) if values is not None]
    for place, row in enumerate(rows):
        for number, tally in enumerate(tallies[row.owner]):
            tally.add(row, *(values[place, number] for values in known))


def finished_lines(bucket: Bucket, tallies: list[list[Tally]], rows: list[Row]) -> list[Result]:
    """Of the questions whose last canvas is among these rows."""
    return [
        {**about(bucket.questions[owner], condition), **tally.figures()}
        for owner in dict.fromkeys(row.owner for row in rows)
        for condition, tally in zip(bucket.conditions, tallies[owner], strict=True)
        if tally.missing == 0
    ]
