"""The evaluation engine: questions under all conditions in batches of few shapes, results kept as they come.

    with stop_on_sigterm() as is_stopped:
        evaluate(Evaluation(model, exam, conditions((0, 1, 5, 10), SELECTIONS), Path("out")), is_stopped)
    summarise(Path("out"), exam.tokenizer.token)

Questions are sorted into buckets by the length of their prompt (see jaxsink.evals.layout). A bucket's batches all have the
same shape, so each bucket compiles once; a batch that is short is filled up with repeats, which are thrown away. A
sequence is one question under one condition, and a batch takes as many as fit, so the conditions of a question may
lie on several devices or in two batches. A question's seed is its own, so neither the batch, nor the number of devices, nor
an interruption changes its answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.evals.batching import buckets, full_batches, round_up
from jaxsink.evals.conditions import Conditions, intervention
from jaxsink.evals.layout import ROWS, STREAM, batch_rows
from jaxsink.evals.manifest import claim, manifest
from jaxsink.evals.results import RESULTS, SPEED, Key, LineFile, file_of, read_results
from jaxsink.evals.sinks import SinkCounter, recorder, recording_sampler
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.transformer import Model
from jaxsink.parallel.mesh import DATA, mesh_of
from jaxsink.runs.progress import progress
from jaxsink.runs.stopping import IsStopped, StoppedError, never
from jaxsink.sampling.execution import replicate
from jaxsink.sampling.generate import generate
from jaxsink.sampling.generation import Generation
from jaxsink.tasks.exam import Exam, Question
from jaxsink.tasks.score import Score

Asked = tuple[Question, str]  # a question, and the label of the condition under which it is asked


@dataclass(frozen=True)
class Evaluation:
    """A model, what it is asked under which conditions, and where the results go.

    eps: of Eq. 3, for the sinks that are counted; None counts none. rows: the most sequences of a batch, over all
    devices. devices: split the batch by pmap; a model on a mesh uses that instead. shard: (2, 4) is the second of four
    processes, which does every fourth question. Rows, devices and shard may change from run to run.
    """

    model: Model
    exam: Exam
    conditions: Conditions
    folder: Path
    seed: int = 0
    eps: float | None = 3.0
    rows: int = ROWS
    devices: Sequence[Any] | None = None
    shard: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        number, count = self.shard
        if not 1 <= number <= count:
            raise JaxsinkError(f"shard {number}/{count} does not exist; shards are counted from 1 to their number.")
        if self.rows < 1:
            raise JaxsinkError(f"a batch needs at least one sequence, not {self.rows}.")
        batch_rows(1, self.rows, self.share)

    @cached_property
    def share(self) -> int:
        """In how many parts a batch is cut."""
        mesh = mesh_of(self.model)
        return mesh.shape[DATA] if mesh is not None else len(self.used_devices or (None,))

    @cached_property
    def used_devices(self) -> Sequence[Any] | None:
        """No more than there are sequences for."""
        return None if self.devices is None else self.devices[: self.rows]

    @cached_property
    def placed(self) -> Model:
        """The model where and as the batches need it, put there once for all of them."""
        if self.used_devices is not None:
            return replicate(self.model, self.used_devices)
        on_cpu = jax.default_backend() == "cpu" and mesh_of(self.model) is None
        return self.model.unrolled() if on_cpu else self.model

    @property
    def config(self) -> ModelConfig:
        return self.model.config


@dataclass(frozen=True)
class Batch:
    """Sequences of one bucket that are asked together."""

    width: int  # of the padded prompts
    filled: tuple[Asked, ...]  # with the repeats that fill it up
    asked: tuple[Asked, ...]  # without
    first: bool  # of its bucket in this process, so that its time includes the compiling


def evaluate(run: Evaluation, is_stopped: IsStopped = never) -> None:
    """Ask what has no result yet. Raises StoppedError soon after `is_stopped()` turns true; nothing finished is lost."""
    claim(run.folder, manifest(run.model, run.exam, run.conditions, run.eps, run.seed))
    number = run.shard[0]
    with (
        LineFile(file_of(run.folder, RESULTS, number)) as results,
        LineFile(file_of(run.folder, SPEED, number)) as speed,
    ):
        done = set(read_results(run.folder))
        left = list(batches(run, done))
        cost, turns = run.exam.sampler.response_length, len(run.conditions)
        start, asked, total = time.monotonic(), 0.0, sum(len(batch.asked) for batch in left) / turns
        with progress([(batch.width + cost) * len(batch.filled) for batch in left]) as (begin, end):
            for batch in left:
                begun = time.monotonic()
                rate = f", {asked / (begun - start):.3g} questions/s" if asked else ""
                size = f"{len(batch.filled)} sequences of {batch.width} + {cost} tokens"
                begin(f"{asked:.4g} of {total:.4g} questions{rate}, {size}")
                tokens = ask(run, batch, results, is_stopped)
                seconds = round(time.monotonic() - begun, 3)
                questions = len(batch.asked) / turns
                speed.append([{"seconds": seconds, "questions": questions, "tokens": tokens, "first": batch.first}])
                asked += questions
                end()


def batches(run: Evaluation, done: set[Key]) -> Iterator[Batch]:
    """What is left for this shard, longest prompts first: if memory does not suffice, that shows at once.

    A bucket's shape follows from all its questions, not from those that are left.
    """
    number, count = run.shard
    questions = run.exam.questions[number - 1 :: count]
    for width, together in buckets(questions, lambda question: round_up(len(question.prompt), run.exam.bucket)):
        rows = batch_rows(len(together) * len(run.conditions), run.rows, run.share)
        left = [(q, label) for q in together for label in run.conditions if (q.index, label) not in done]
        for number, (filled, real) in enumerate(full_batches(left, rows)):
            yield Batch(width, tuple(filled), tuple(filled[:real]), number == 0)


def ask(run: Evaluation, batch: Batch, results: LineFile, is_stopped: IsStopped) -> int:
    """Generate, grade and keep one batch; the number of tokens that it committed."""
    out = answers(run, batch, is_stopped)
    if run.exam.gold:
        return keep_likelihoods(batch, results, out)
    texts = decoded(np.asarray(out.response), run)
    steps, committed = np.asarray(out.steps), np.asarray(out.committed_at) >= 0
    counter = None if run.eps is None else SinkCounter.of(out, run.config.mask_id, run.config.heads)
    with graded(batch.asked, texts) as scores:
        for numbers in by_question(batch):
            if is_stopped() and not all(scores[number].done() for number in numbers):
                raise StoppedError
            lines = []
            for number in numbers:
                question, label = batch.asked[number]
                line = result(question, label, texts[number], scores[number].result(), int(steps[number]))
                lines.append(line if counter is None else {**line, "sinks": counter.sequence(number)})
            results.append(lines)
    return int(committed[: len(batch.asked)].sum())


def by_question(batch: Batch) -> Iterator[list[int]]:
    """The sequences of each question, which lie side by side."""
    for _, numbers in groupby(range(len(batch.asked)), key=lambda number: batch.asked[number][0].index):
        yield list(numbers)


def keep_likelihoods(batch: Batch, results: LineFile, out: Generation) -> int:
    """Keep how likely the published answers of one batch were; the number of their tokens."""
    log_prob = np.asarray(out.log_prob, np.float64)[:, out.prompt_length :]
    for numbers in by_question(batch):
        lines = []
        for number in numbers:
            question, label = batch.asked[number]
            total = float(log_prob[number, : len(question.gold)].sum())
            fixed = {"index": question.index, "task_id": question.task_id, "condition": label}
            lines.append({**fixed, "log_prob": total, "tokens": len(question.gold)})
        results.append(lines)
    return sum(len(question.gold) for question, _ in batch.asked)


def answers(run: Evaluation, batch: Batch, is_stopped: IsStopped) -> Generation:
    """The whole batch, padding sequences included."""
    asked = [question for question, _ in batch.filled]
    numbers = {label: number for number, label in enumerate(run.conditions)}

    def look(*_: Any) -> None:
        if is_stopped():
            raise StoppedError

    eps = None if run.exam.gold else run.eps
    end = run.config.eos_ids[:1]
    return generate(
        run.placed,
        [list(question.prompt) for question in asked],
        recording_sampler(run.exam.sampler, eps),
        record=recorder(eps),
        force=[[*question.gold, *end] for question in asked] if run.exam.gold else None,
        intervene=intervention(run.conditions),
        seed=[run.seed + question.index for question in asked],
        stream=STREAM,
        pad_to=run.exam.bucket,
        listener=look,
        devices=run.used_devices,
        policies=[numbers[label] for _, label in batch.filled],
    )


def decoded(response: np.ndarray, run: Evaluation) -> list[str]:
    """The texts of i32[B,gen], each up to its first end token."""
    ends = np.isin(response, [token for token in (*run.config.eos_ids, run.config.eot_id) if token is not None])
    stop = np.where(ends.any(axis=1), ends.argmax(axis=1), response.shape[1])
    return [run.exam.tokenizer.decode(ids[:length]) for ids, length in zip(response, stop, strict=True)]


class graded:  # noqa: N801 - reads as what it gives
    """Scores of all answers of a batch, computed in threads: a generated program is waited for, not computed."""

    def __init__(self, asked: Sequence[Asked], texts: Sequence[str]) -> None:
        self.jobs = [(question.grade, text) for (question, _), text in zip(asked, texts, strict=False)]
        self.pool = ThreadPoolExecutor(os.cpu_count() or 1)

    def __enter__(self) -> list[Future[Score]]:
        return [self.pool.submit(grade, text) for grade, text in self.jobs]

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(cancel_futures=True)


def result(question: Question, label: str, text: str, score: Score, steps: int) -> dict[str, Any]:
    """A line of the results; what a benchmark does not have is left out."""
    scored = {name: value for name, value in asdict(score).items() if value is not None}
    return {
        "index": question.index,
        "task_id": question.task_id,
        "condition": label,
        "text": text,
        **scored,
        "steps": steps,
    }
