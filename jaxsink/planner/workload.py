"""An evaluation as work to be planned: the lengths of its prompts, its conditions, and the program that asks them.

work = published_workload(get_setting("llada-8b-instruct/gsm8k/study"), preset("llada-8b-instruct"))
work.buckets(rows=32, share=8)                          # the shapes in which `jaxsink evaluate` asks
work.job(bucket)                                        # the program that it runs for one of them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxsink.errors import JaxsinkError, a_model
from jaxsink.evals.conditions import Condition, conditions, intervention
from jaxsink.evals.layout import BUCKET, STREAM, Bucket, layout
from jaxsink.evals.likelihood.canvases import SHARES
from jaxsink.evals.prompt_lengths import COUNTED_WITH, estimated_lengths
from jaxsink.evals.settings import EvalSetting
from jaxsink.evals.sinks import recorder, recording_sampler
from jaxsink.nn.config import ModelConfig
from jaxsink.planner.job import Job
from jaxsink.sampling.base import Sampler
from jaxsink.sinks.mask import SELECTIONS
from jaxsink.tasks.exam import Exam

KEYS_HIDDEN = (0, 1, 5, 10)  # of Table 1


@dataclass(frozen=True)
class Workload:
    """All sequences of an evaluation, without weights and texts.

    lengths: tokens of the prompts, one per question. counted: with what they were counted. eps, dtype: as for `evaluate`.
    """

    name: str
    config: ModelConfig
    sampler: Sampler
    lengths: tuple[int, ...]
    conditions: tuple[Condition, ...]
    counted: str
    eps: float | None = 3.0
    dtype: str = "bfloat16"
    multiple: int = BUCKET
    gold: bool = False

    @property
    def sequences(self) -> int:
        return len(self.lengths) * len(self.conditions)

    def buckets(self, rows: int, share: int) -> tuple[Bucket, ...]:
        response = self.sampler.widest_response(self.config)
        return layout(self.lengths, len(self.conditions), response, rows, share, self.multiple)

    def job(self, bucket: Bucket) -> Job:
        """One batch of the bucket, as the engine runs it."""
        eps = None if self.gold else self.eps
        return Job(
            self.config,
            recording_sampler(self.sampler, eps),
            bucket.rows,
            bucket.prompt,
            record=recorder(eps),
            intervene=intervention(self.conditions),
            dtype=self.dtype,
            stream=STREAM,
            room=bucket.response,
        )


def table_1_conditions() -> tuple[Condition, ...]:
    return conditions(KEYS_HIDDEN, SELECTIONS)


def published_workload(
    setting: EvalSetting, config: ModelConfig, dtype: str = "bfloat16", lengths: Sequence[int] | None = None
) -> Workload:
    """A published setting on all its questions; lengths: of the prompts, if they were counted, else the stored ones."""
    sampler = setting.sampler()
    sampler.check(config)
    if setting.decoder != "autoregressive" and config.mask_id is None:
        raise JaxsinkError(f"{setting.name} is for a diffusion model, and {a_model(config.family)} has no mask token.")
    counted = "the model's tokenizer" if lengths is not None else COUNTED_WITH
    lengths = tuple(lengths) if lengths is not None else estimated_lengths(setting)
    work = Workload(setting.name, config, sampler, lengths, table_1_conditions(), counted, dtype=dtype)
    longest = work.buckets(1, 1)[0].length
    if config.positions == "learned" and longest > config.max_positions:
        raise JaxsinkError(
            f"{setting.name} needs {longest} positions, and this model has learned {config.max_positions}."
        )
    return work


def exam_workload(
    exam: Exam, config: ModelConfig, wanted: tuple[Condition, ...], eps: float | None, dtype: str
) -> Workload:
    """The evaluation that is about to run."""
    lengths = tuple(len(question.prompt) for question in exam.questions)
    if exam.denoises:  # each canvas is a sequence
        whole = [len(question.prompt) + len(question.gold) for question in exam.questions]
        lengths = tuple(length for length in whole for _ in range(exam.canvases * len(SHARES)))
    counted = "the model's tokenizer"
    return Workload(exam.name, config, exam.sampler, lengths, wanted, counted, eps, dtype, exam.bucket, exam.gold)
