"""The evaluation engine: questions in batches of one shape, all conditions in turns, results kept as they come.

    with stop_on_sigterm() as is_stopped:
        evaluate(Evaluation(model, exam, conditions((0, 1, 5, 10), SELECTIONS), Path("out")), is_stopped)
    summarise(Path("out"), exam.tokenizer.token)

Questions are sorted into buckets by the length of their prompt. A bucket's batches all have the same shape, so each bucket
compiles once; a last batch that is short is filled up with repeats, which are thrown away. A question's seed is its own,
so neither the batch, nor the number of devices, nor an interruption changes its answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxsink.config import ModelConfig
from jaxsink.errors import JaxsinkError
from jaxsink.evals.batching import batch_size, buckets, full_batches, round_up
from jaxsink.evals.conditions import Conditions, intervention
from jaxsink.evals.exam import Exam, Question
from jaxsink.evals.manifest import claim, manifest
from jaxsink.evals.results import RESULTS, SPEED, Key, LineFile, file_of, read_results
from jaxsink.evals.score import Score
from jaxsink.evals.sinks import SinkCounter, recorder, recording_sampler
from jaxsink.evals.stop import IsStopped, StoppedError, never
from jaxsink.model import Model
from jaxsink.parallel.mesh import DATA, mesh_of
from jaxsink.progress import progress
from jaxsink.sampling.generate import generate
from jaxsink.sampling.generation import Generation
from jaxsink.sampling.spread import copied

ROWS = 80
STREAM = 16  # steps between two looks at the stop flag; also the steps of which a device holds records


@dataclass(frozen=True)
class Evaluation:
    """A model, what it is asked under which conditions, and where the results go.

    eps: of Eq. 3, for the sinks that are counted along; None counts none. rows: of a batch over all devices, about; the
    conditions take turns in it. devices: deal rows out by pmap; a model on a mesh uses that instead. shard: (2, 4) is the
    second of four processes, which does every fourth question. Rows, devices and shard may change from run to run.
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
            raise JaxsinkError(f"a batch needs at least one row, not {self.rows}.")

    @cached_property
    def share(self) -> int:
        """In how many parts a batch is cut; each must hold whole turns of the conditions."""
        mesh = mesh_of(self.model)
        return mesh.shape[DATA] if mesh is not None else len(self.devices or (None,))

    @cached_property
    def placed(self) -> Model:
        """The model where and as the batches need it, put there once for all of them."""
        if self.devices is not None:
            return copied(self.model, self.devices)
        on_cpu = jax.default_backend() == "cpu" and mesh_of(self.model) is None
        return self.model.unrolled() if on_cpu else self.model

    @property
    def config(self) -> ModelConfig:
        return self.model.config


@dataclass(frozen=True)
class Batch:
    """Questions of one bucket that are asked together."""

    width: int  # of the padded prompts
    filled: tuple[Question, ...]  # with the repeats that fill it up
    questions: tuple[Question, ...]  # without
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
        cost = run.exam.sampler.length
        start, asked, total = time.monotonic(), 0, sum(len(batch.questions) for batch in left)
        with progress([(batch.width + cost) * len(batch.filled) for batch in left]) as (begin, end):
            for batch in left:
                begun = time.monotonic()
                rate = f", {asked / (begun - start):.3g} questions/s" if asked else ""
                begin(f"{asked} of {total} questions{rate}, prompts of up to {batch.width} tokens")
                tokens = ask(run, batch, done, results, is_stopped)
                seconds = round(time.monotonic() - begun, 3)
                questions = len(batch.questions)
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
        size = batch_size(len(together), run.rows // len(run.conditions), run.share)
        left = [q for q in together if any((q.index, label) not in done for label in run.conditions)]
        for place, (filled, real) in enumerate(full_batches(left, size)):
            yield Batch(width, tuple(filled), tuple(filled[:real]), place == 0)


def ask(run: Evaluation, batch: Batch, done: set[Key], results: LineFile, is_stopped: IsStopped) -> int:
    """Generate, grade and keep one batch; the number of tokens that were written."""
    out = answers(run, batch, is_stopped)
    if run.exam.gold:
        return keep_likelihoods(run, batch, done, results, out)
    texts = decoded(np.asarray(out.response), run)
    steps, written = np.asarray(out.steps), np.asarray(out.committed_at) >= 0
    counter = None if run.eps is None else SinkCounter.of(out, run.config.mask_id, run.config.heads)
    turns = len(run.conditions)
    with graded(batch.questions, texts, turns) as scores:
        for place, question in enumerate(batch.questions):
            mine = scores[place * turns : (place + 1) * turns]
            if is_stopped() and not all(score.done() for score in mine):
                raise StoppedError
            lines = []
            for row, (label, score) in enumerate(zip(run.conditions, mine, strict=True), place * turns):
                if (question.index, label) not in done:
                    line = result(question, label, texts[row], score.result(), int(steps[row]))
                    lines.append(line if counter is None else {**line, "sinks": counter.row(row)})
            results.append(lines)
    return int(written[: len(batch.questions) * turns].sum())


def keep_likelihoods(run: Evaluation, batch: Batch, done: set[Key], results: LineFile, out: Generation) -> int:
    """Keep how likely the published answers of one batch were; the number of their tokens."""
    log_prob = np.asarray(out.log_prob, np.float64)[:, out.prompt_length :]
    tokens = 0
    for place, question in enumerate(batch.questions):
        lines = []
        for row, label in enumerate(run.conditions, place * len(run.conditions)):
            tokens += len(question.gold)
            if (question.index, label) not in done:
                total = float(log_prob[row, : len(question.gold)].sum())
                fixed = {"index": question.index, "task_id": question.task_id, "condition": label}
                lines.append({**fixed, "log_prob": total, "tokens": len(question.gold)})
        results.append(lines)
    return tokens


def answers(run: Evaluation, batch: Batch, is_stopped: IsStopped) -> Generation:
    """The whole batch: every question once per condition, its rows side by side."""
    asked = [question for question in batch.filled for _ in run.conditions]

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
        devices=run.devices,
    )


def decoded(response: np.ndarray, run: Evaluation) -> list[str]:
    """The texts of i32[B,gen], each up to its first end token."""
    ends = np.isin(response, [token for token in (*run.config.eos_ids, run.config.eot_id) if token is not None])
    stop = np.where(ends.any(axis=1), ends.argmax(axis=1), response.shape[1])
    return [run.exam.tokenizer.decode(row[:length]) for row, length in zip(response, stop, strict=True)]


class graded:  # noqa: N801 - reads as what it gives
    """Scores of all answers to some questions, computed in threads: a generated program is waited for, not computed."""

    def __init__(self, questions: Sequence[Question], texts: Sequence[str], turns: int) -> None:
        self.jobs = [
            (question.grade, texts[n * turns + t]) for n, question in enumerate(questions) for t in range(turns)
        ]
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
