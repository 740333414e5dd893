"""What Table 1 takes: all questions under all conditions, from the estimated step of one batch.

A run is every question of GSM8K and HumanEval, K = 0, 1, 5 and 10 keys hidden, top, random and bottom: ten conditions. The
step is estimated for one shape; for the shapes of the benchmarks it is taken to reach the same share of the roofline.
Prompts are assumed as long as their text suggests (3.7 characters per token). Answers that end early are counted in full,
loading and compiling are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxsink.config import ModelConfig
from jaxsink.evals.conditions import conditions
from jaxsink.evals.exam import BUCKET
from jaxsink.evals.settings import SETTINGS, EvalSetting
from jaxsink.plan.job import Job
from jaxsink.plan.roofline import roofline
from jaxsink.plan.topology import Topology
from jaxsink.sinks.mask import SELECTIONS

QUESTIONS = {"gsm8k": 1319, "humaneval": 164}
QUESTION_TOKENS = {"gsm8k": 65, "humaneval": 122}
SHOT_TOKENS = 150  # a solved question of GSM8K
FRAME_TOKENS = 30  # chat template and instruction
KEYS_HIDDEN = (0, 1, 5, 10)
# The model of the study whose settings a family follows; the others follow that of their kind.
STUDIED = {"llada": "llada-8b-instruct", "dream": "dream-7b-instruct", "mmada": "mmada-8b-mixcot"}


@dataclass(frozen=True)
class Bill:
    """Table 1 for one model on one slice."""

    settings: tuple[str, ...]
    hours: float
    dollars: float | None
    price: float | None  # per chip and hour

    def to_dict(self) -> dict[str, Any]:
        return {
            "settings": list(self.settings), "conditions": len(all_conditions()), "hours": self.hours,
            "dollars": self.dollars, "price_per_chip_hour": self.price,
        }  # fmt: skip


def all_conditions() -> Mapping[str, Any]:
    return conditions(KEYS_HIDDEN, SELECTIONS)


def study_settings(config: ModelConfig) -> list[EvalSetting]:
    by_kind = "llama-3.1-8b-instruct" if config.attention == "causal" else "llada-8b-instruct"
    name = STUDIED.get(config.family, by_kind)
    return [SETTINGS[f"{name}/{benchmark}/study"] for benchmark in QUESTIONS]


def prompt_tokens(setting: EvalSetting) -> int:
    """As the engine pads it."""
    asked = 1 + setting.opening.count("{question}")
    tokens = FRAME_TOKENS + len(setting.preface) // 4 + asked * QUESTION_TOKENS[setting.benchmark]
    return -(-(tokens + setting.shots.total * SHOT_TOKENS) // BUCKET) * BUCKET


def table_1(job: Job, topology: Topology, read: float, step: float, price: float | None) -> Bill:
    """`step`: estimated seconds of the job's step; `read`: as for `roofline`; `price`: None takes the list price."""
    share = roofline(job, topology, read).limit / step
    seconds, settings = 0.0, study_settings(job.config)
    for setting in settings:
        asked = job.replace(sampler=sampler_like(job, setting), prompt=prompt_tokens(setting))
        batches = QUESTIONS[setting.benchmark] * len(all_conditions()) / job.batch
        seconds += batches * asked.steps * roofline(asked, topology, read).limit / share
    price = topology.chip.price if price is None else price
    hours = seconds / 3600
    dollars = None if price is None else hours * topology.chips * price
    return Bill(tuple(setting.name for setting in settings), hours, dollars, price)


def sampler_like(job: Job, setting: EvalSetting) -> Any:
    """The setting's sampler; for a kind of sampler the study does not have, the job's own at the setting's length."""
    wanted = setting.sampler()
    if type(wanted) is type(job.sampler):
        return wanted
    from dataclasses import replace

    length = "gen_length" if hasattr(job.sampler, "gen_length") else "max_new_tokens"
    return replace(job.sampler, **{length: wanted.length})
