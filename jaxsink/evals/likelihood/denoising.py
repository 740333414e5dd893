"""How well a diffusion model fills in published answers, with and without keys hidden.

Of every answer a share t = 0.25, 0.5 and 0.75 of the tokens is masked, on several canvases that follow from seed, question
and t alone: every condition sees the same ones. A sequence is one canvas under one condition. All of one shape share a
program, in which a first pass ranks the keys and a second one, with them hidden, is scored (passes.py); K = 0 hides nothing.
A block-causal model (SDAR) fills in block by block, each given what stands before it.

A question's figures under a condition are kept when all its canvases are done, so a killed run loses one batch.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from jaxsink.evals.batching import buckets, full_batches
from jaxsink.evals.conditions import Condition, intervention, programs
from jaxsink.evals.job import Asked, Evaluation, Keep
from jaxsink.evals.layout import batch_rows
from jaxsink.evals.likelihood.canvases import SHARES, masked_share
from jaxsink.evals.likelihood.passes import Pass, Row, Scores, Shape, run_rows
from jaxsink.evals.likelihood.scoring import Pair, masked_row, pieces
from jaxsink.evals.results import Key, Result, about, likelihood
from jaxsink.runs.progress import progress
from jaxsink.runs.stopping import IsStopped, StoppedError
from jaxsink.tasks.exam import Question


@dataclass(frozen=True)
class Bucket:
    """Questions of one shape under the conditions of one program."""

    shape: Shape
    conditions: tuple[Condition, ...]
    left: tuple[Asked, ...]  # that have no result yet
    canvases: int  # of all that is left
    rows: int  # of a batch

    @property
    def batches(self) -> int:
        return -(-self.canvases // self.rows)


@dataclass
class Tally:
    """Scores of one question under one condition, by share of masked tokens."""

    missing: int  # canvases
    log_prob: dict[float, list[np.ndarray]] = field(default_factory=lambda: {share: [] for share in SHARES})
    divergence: dict[float, list[np.ndarray]] = field(default_factory=lambda: {share: [] for share in SHARES})

    def add(self, row: Row, log_prob: np.ndarray, divergence: np.ndarray) -> None:
        self.missing -= 1
        self.log_prob[row.share].append(row.of_answer(log_prob))
        self.divergence[row.share].append(row.of_answer(divergence))

    def figures(self) -> Result:
        """Of all canvases together, and by share."""

        def of(shares: Collection[float]) -> Result:
            parts = ([x for share in shares for x in kept[share]] for kept in (self.log_prob, self.divergence))
            return likelihood(*(np.concatenate(part).astype(np.float64) for part in parts))

        return {**of(SHARES), "t": {str(share): of([share]) for share in SHARES}}


def score_all(job: Evaluation, keep: Keep, keep_speed: Keep, done: Collection[Key], is_stopped: IsStopped) -> None:
    """Score everything but what is done; results go to `keep`, batch by batch."""
    work = list(bucketed(job, done))
    with progress([one.shape.length * one.rows for one in work for _ in range(one.batches)]) as (begin, end):
        for bucket in work:
            tallies = [Tally(canvas_count(job, question)) for question, _ in bucket.left]
            how = Pass(intervention(bucket.conditions), diverge=True)
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
                keep_speed([speed_of(begun, len(lines) / len(job.conditions), batch[:real], number == 0)])
                end()


def speed_of(begun: float, questions: float, rows: list[Row], first: bool) -> Result:
    tokens = int(sum(row.scored.sum() for row in rows))
    return {"seconds": round(time.monotonic() - begun, 3), "questions": questions, "tokens": tokens, "first": first}


def bucketed(job: Evaluation, done: Collection[Key] = ()) -> Iterator[Bucket]:
    """What is left for this shard, longest sequences first; a bucket's shape follows from all its questions."""
    number, count = job.shard
    questions = job.exam.questions[number - 1 :: count]
    for shape, together in buckets(questions, lambda question: shape_of(job, question)):
        for wanted in programs(job.conditions):
            total = sum(canvas_count(job, question) for question in together) * len(wanted)
            left = [(q, one) for q in together for one in wanted if (q.index, str(one)) not in done]
            canvases = sum(canvas_count(job, question) for question, _ in left)
            if left:
                yield Bucket(shape, wanted, tuple(left), canvases, batch_rows(total, job.rows, job.share))


def parts_of(job: Evaluation, question: Question) -> list[Pair]:
    return list(pieces(Pair(question.prompt, question.gold), job.config.block_length))


def canvas_count(job: Evaluation, question: Question) -> int:
    return len(parts_of(job, question)) * len(SHARES) * job.exam.canvases


def shape_of(job: Evaluation, question: Question) -> Shape:
    """All parts of an answer are padded to the length of the whole, so that they are done together."""
    longest = max(len(part.answer) for part in parts_of(job, question))
    return Shape.of(len(question.prompt) + len(question.gold), longest, job.exam.bucket)


def bucket_rows(job: Evaluation, bucket: Bucket) -> Iterator[Row]:
    for owner, (question, condition) in enumerate(bucket.left):
        for row in question_rows(job, question):
            yield row._replace(owner=owner, policy=bucket.conditions.index(condition))


def question_rows(job: Evaluation, question: Question) -> Iterator[Row]:
    """The canvases of a question, whatever the condition."""
    for number, part in enumerate(parts_of(job, question)):
        for share in SHARES:
            origin = [(job.seed + question.index) & 0xFFFFFFFF, number, round(1000 * share)]
            seeds = np.random.SeedSequence(origin).generate_state(job.exam.canvases)
            canvases = masked_share(len(part.answer), share, job.exam.canvases, np.random.default_rng(origin))
            for masked, seed in zip(canvases, seeds.tolist(), strict=True):
                yield masked_row(job.config, 0, part, masked, seed)._replace(share=share)


def add_up(tallies: list[Tally], rows: list[Row], scores: Scores) -> None:
    log_prob = np.asarray(scores.log_prob)
    apart = np.zeros_like(log_prob) if scores.divergence is None else np.asarray(scores.divergence)
    for place, row in enumerate(rows):
        tallies[row.owner].add(row, log_prob[place], apart[place])


def finished_lines(bucket: Bucket, tallies: list[Tally], rows: list[Row]) -> list[Result]:
    """Of the questions whose last canvas is among these rows."""
    owners = dict.fromkeys(row.owner for row in rows)
    return [{**about(*bucket.left[n]), **tallies[n].figures()} for n in owners if tallies[n].missing == 0]
