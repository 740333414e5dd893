"""The evaluation engine: questions under all conditions in batches of few shapes, results kept as they come.

    job = Evaluation(model, exam, conditions((0, 1, 5, 10), SELECTIONS))
    evaluate(job, Path("out"))                       # goes on where it stopped
    summarise(Path("out"), exam.tokenizer.token)

Questions are sorted into buckets by the length of their prompt (see jaxsink.evals.layout). A bucket's batches all have the
same shape, so each bucket compiles once; a batch that is short is filled up with repeats, which are thrown away. A
sequence is one question under one condition, and a batch takes as many as fit, so the conditions of a question may
lie on several devices or in two batches. A question's seed is its own, so neither the batch, nor the number of devices, nor
an interruption changes its answer.

Where published answers are given (`Exam.gold`), nothing is asked: a diffusion model fills them in, an autoregressive one is
given them in one pass (jaxsink.evals.likelihood.denoising), or made to write them where keys are hidden from its newest row.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from jaxsink.evals.batching import buckets, full_batches, round_up
from jaxsink.evals.conditions import Condition, intervention, programs
from jaxsink.evals.job import Asked, Evaluation, Keep
from jaxsink.evals.layout import STREAM, batch_rows
from jaxsink.evals.likelihood.denoising import score_all
from jaxsink.evals.outcomes import outcomes
from jaxsink.evals.results import KIND, RESULTS, SPEED, Key, Result, about, identity, likelihood, read_results
from jaxsink.evals.sinks import SinkCounter, recorder, recording_sampler
from jaxsink.runs.progress import progress
from jaxsink.runs.run import Run
from jaxsink.runs.stopping import IsStopped, StoppedError, never
from jaxsink.sampling.generate import generate
from jaxsink.sampling.generation import Generation, before_end, end_ids
from jaxsink.sandbox.runner import kill_all
from jaxsink.tasks.exam import Question
from jaxsink.tasks.score import Score

LOOK_EVERY = 0.2  # seconds


@dataclass(frozen=True)
class Batch:
    """Sequences of one bucket that are asked together."""

    width: int  # of the padded prompts
    conditions: tuple[Condition, ...]  # that one program has
    filled: tuple[Asked, ...]  # with the repeats that fill it up
    asked: tuple[Asked, ...]  # without
    first: bool  # of its bucket in this process, so that its time includes the compiling


def evaluate(job: Evaluation, folder: Path, is_stopped: IsStopped = never) -> None:
    """Ask what has no result in the folder yet. Raises StoppedError soon after `is_stopped()` turns true; nothing that
    was finished is lost."""
    decides, facts = identity(job.model, job.exam, job.conditions, job.eps, job.seed)
    with (
        Run.open(folder, KIND, decides, facts, job.shard[0]) as run,
        run.lines(RESULTS) as results,
        run.lines(SPEED) as speed,
    ):
        done = read_results(folder, [str(one) for one in job.conditions])
        ask_all(job, results.append, speed.append, done, is_stopped)


def ask_all(
    job: Evaluation,
    keep: Keep,
    keep_speed: Keep = lambda lines: None,
    done: Collection[Key] = (),
    is_stopped: IsStopped = never,
) -> None:
    """Ask everything but what is done; results go to `keep`, question by question."""
    if job.in_passes:
        score_all(job, keep, keep_speed, done, is_stopped)
    left = list(batches(job, done))
    cost, turns = job.exam.sampler.response_length, len(job.conditions)
    start, asked, total = time.monotonic(), 0.0, sum(len(batch.asked) for batch in left) / turns
    with progress([(batch.width + cost) * len(batch.filled) for batch in left]) as (begin, end):
        for batch in left:
            begun = time.monotonic()
            rate = f", {asked / (begun - start):.3g} questions/s" if asked else ""
            size = f"{len(batch.filled)} sequences of {batch.width} + {cost} tokens"
            begin(f"{asked:.0f} of {total:.0f} questions{rate}, {size}")
            tokens = ask(job, batch, keep, is_stopped)
            seconds = round(time.monotonic() - begun, 3)
            questions = len(batch.asked) / turns
            keep_speed([{"seconds": seconds, "questions": questions, "tokens": tokens, "first": batch.first}])
            asked += questions
            end()


def batches(job: Evaluation, done: Collection[Key] = ()) -> Iterator[Batch]:
    """What is left for this shard, longest prompts first: if memory does not suffice, that shows at once.

    A bucket's shape follows from all its questions, not from those that are left.
    """
    number, count = job.shard
    questions = job.exam.questions[number - 1 :: count]
    for width, together in buckets(questions, lambda question: round_up(len(question.prompt), job.exam.bucket)):
        for wanted in programs(job.in_steps) if job.in_steps else ():
            rows = batch_rows(len(together) * len(wanted), job.rows, job.share)
            left = [(q, one) for q in together for one in wanted if (q.index, str(one)) not in done]
            for number, (filled, real) in enumerate(full_batches(left, rows)):
                yield Batch(width, wanted, tuple(filled), tuple(filled[:real]), number == 0)


def ask(job: Evaluation, batch: Batch, keep: Keep, is_stopped: IsStopped) -> int:
    """Generate, grade and keep one batch; the number of tokens that it committed."""
    out = answers(job, batch, is_stopped).on_host()
    if job.exam.gold:
        return keep_likelihoods(batch, keep, out)
    response = np.asarray(out.response).tolist()
    texts = decoded(response, job)
    ends = end_ids(job.config)
    steps, committed = np.asarray(out.steps), np.asarray(out.committed_at) >= 0
    counter = None if job.eps is None else SinkCounter.of(out, job.config.mask_id, job.config.heads)
    with graded(batch.asked, texts) as scores:
        for numbers in by_question(batch):
            wait_for([scores[number] for number in numbers], is_stopped)
            lines = []
            for number in numbers:
                question, condition = batch.asked[number]
                line = result(question, condition, texts[number], scores[number].result(), int(steps[number]))
                line |= outcomes(response[number], texts[number], ends)
                lines.append(line if counter is None else {**line, "sinks": counter.sequence(number)})
            keep(lines)
    return int(committed[: len(batch.asked)].sum())


def by_question(batch: Batch) -> Iterator[list[int]]:
    """The sequences of each question, which lie side by side."""
    for _, numbers in groupby(range(len(batch.asked)), key=lambda number: batch.asked[number][0].index):
        yield list(numbers)


def keep_likelihoods(batch: Batch, keep: Keep, out: Generation) -> int:
    """Keep how likely the published answers of one batch were; the number of their tokens."""
    known = [np.asarray(x, np.float64)[:, out.prompt_length :] for x in (out.log_prob, out.divergence) if x is not None]
    for numbers in by_question(batch):
        lines = []
        for number in numbers:
            question, condition = batch.asked[number]
            written = slice(len(question.gold))
            figures = likelihood(*(values[number, written] for values in known))
            lines.append({**about(question, condition), **figures})
        keep(lines)
    return sum(len(question.gold) for question, _ in batch.asked)


def answers(job: Evaluation, batch: Batch, is_stopped: IsStopped) -> Generation:
    """The whole batch, padding sequences included."""
    asked = [question for question, _ in batch.filled]

    def look(*_: Any) -> None:
        if is_stopped():
            raise StoppedError

    eps = None if job.exam.gold else job.eps
    return generate(
        job.placed,
        [list(question.prompt) for question in asked],
        recording_sampler(job.exam.sampler, eps),
        record=recorder(eps),
        force=[question.gold for question in asked] if job.exam.gold else None,
        intervene=intervention(batch.conditions),
        seed=[job.seed + question.index for question in asked],
        stream=STREAM,
        pad_to=job.exam.bucket,
        listener=look,
        devices=job.used_devices,
        policies=[batch.conditions.index(condition) for _, condition in batch.filled],
    )


def decoded(response: list[list[int]], job: Evaluation) -> list[str]:
    """The texts of token ids, each up to its first end token."""
    ends = end_ids(job.config)
    return [job.exam.tokenizer.decode(before_end(ids, ends)) for ids in response]


class graded:  # noqa: N801 - reads as what it gives
    """Scores of all answers of a batch, computed in threads: a generated program is waited for, not computed."""

    def __init__(self, asked: Sequence[Asked], texts: Sequence[str]) -> None:
        self.jobs = [(question.grade, text) for (question, _), text in zip(asked, texts, strict=False)]
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1)

    def __enter__(self) -> list[Future[Score]]:
        return [self.pool.submit(grade, text) for grade, text in self.jobs]

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        if error[0] is not None:
            kill_all()  # nobody waits for what these programs would give
        self.pool.shutdown()


def wait_for(scores: Sequence[Future[Score]], is_stopped: IsStopped) -> None:
    """A program may take longer than a stop may: it is looked for all the while."""
    stopped = is_stopped()
    while wait(scores, timeout=0 if stopped else LOOK_EVERY).not_done:
        if stopped:
            raise StoppedError
        stopped = is_stopped()


def result(question: Question, condition: Condition, text: str, score: Score, steps: int) -> Result:
    """A line of the results; what a benchmark does not have is left out."""
    scored = {name: value for name, value in asdict(score).items() if value is not None}
    return {**about(question, condition), "text": text, **scored, "steps": steps}
