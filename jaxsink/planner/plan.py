"""`jaxsink.plan`: memory, time and cost of evaluations, or of a single run, on TPU slices and GPUs, by names.

jaxsink.plan("llada-8b-instruct", tpu=["v5e:2x4", "v6e:2x4"], gpu="h100:8").totals
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.load import describe
from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError, option
from jaxsink.evals.prepare import benchmark_questions
from jaxsink.evals.settings import SETTINGS, EvalSetting, get_setting
from jaxsink.nn.config import ModelConfig
from jaxsink.parallel.mesh import parse_mesh
from jaxsink.planner.cost import Hours, price_of
from jaxsink.planner.evaluation import EvaluationPlan, plan_evaluation
from jaxsink.planner.gpu import parse_gpus
from jaxsink.planner.job import Job
from jaxsink.planner.planner import Plan, make_plan
from jaxsink.planner.topology import Topology
from jaxsink.planner.tpu import parse_slice
from jaxsink.planner.workload import Workload, published_workload
from jaxsink.recording.named import Shape, named_recorders
from jaxsink.runs.progress import stage
from jaxsink.sampling.options import FIELDS, Sampling, of_sampler, with_options
from jaxsink.sampling.registry import family_sampler
from jaxsink.sinks.mask import MaskSinks
from jaxsink.tasks.exam import benchmark_exam
from jaxsink.text.tokenizer import Tokenizer
from jaxsink.zoo.presets import PRESETS
from jaxsink.zoo.resolve import NAMES

BATCH, PROMPT, RESPONSE = 16, 256, 256  # of a single run, where nobody says anything else
OF_RUNS = ("batch", "prompt", "every", "gen", "record", "mask", "backend")
OF_EVALUATIONS = ("rows", "data_file", "train_file")


class Options(Sampling, total=False):
    """What `plan` takes beside model and slices; those of the sampler are in `Sampling`.

    dtype       of the weights: "bfloat16" (default), "float32" or "int8"
    mesh        "DxM", batch x weights over the devices; None: the best that fits
    price       dollars per chip and hour; None: those of the chips' tables, which are an assumption
    search      look for the cheapest mesh or the largest batch; False compiles one only, which is faster

    setting     evaluations, by name; None: those that Table 1 has of the model
    rows        the most sequences of a batch; None: the cheapest
    data_file, train_file  of the benchmark, to count its prompts with the model's own tokenizer

    batch, prompt, gen  sequences and tokens of a single run (16, 256, 256)
    record      names of recorders, or "none" (default: top); every: n-th step
    mask        hide the top K sinks of each head
    backend     of the attention; unrolled: one program per layer
    mask_id, ignore_settings  as for `load`
    """

    dtype: str
    mesh: str | None
    search: bool
    price: float | None
    setting: str | Sequence[str] | None
    rows: int | None
    data_file: str | os.PathLike[str] | None
    train_file: str | os.PathLike[str] | None
    batch: int | None
    prompt: int | None
    gen: int | None
    record: str | Sequence[str] | None
    every: int | None
    mask: int | None
    backend: str | None
    unrolled: bool
    mask_id: int | None
    ignore_settings: Sequence[str]


@dataclass(frozen=True)
class Planned:
    """evaluations: one plan for each slice and setting; runs: one for each slice. One of them is empty."""

    model: str
    evaluations: tuple[EvaluationPlan, ...] = ()
    runs: tuple[Plan, ...] = ()
    price: float | None = None

    @property
    def totals(self) -> list[JsonObject]:
        """Hours and dollars on each slice on which everything fits."""
        return totals(self.runs or self.evaluations, self.price)

    def to_dict(self) -> JsonObject:
        plans = [plan.to_dict() for plan in self.runs or self.evaluations]
        return {"model": self.model, "plans": plans, "totals": self.totals}


OPTION_RANGES = {
    **dict.fromkeys(("rows", "batch", "prompt", "gen", "every", "steps", "block"), at_least(1)),
    **dict.fromkeys(("price", "mask", "mask_id"), at_least(0)),
}


@checked(**OPTION_RANGES)
def plan(
    model: str | os.PathLike[str],
    tpu: str | Sequence[str] = (),
    gpu: str | Sequence[str] = (),
    **options: Unpack[Options],
) -> Planned:
    """What evaluations of a model, or a single run of its sampler, need and take, by the compilers of TPUs and GPUs.

    Args:
        model: a published or built-in name, a hub id or a checkpoint; its weights are not read
        tpu: slices such as "v5e:2x4"; needs libtpu (the extra `tpu`), and no TPU
        gpu: such as "h100" or "h100:8"; needs JAX's CUDA plugin (the extra `cuda`), and no GPU
        **options: see `Options`; with any of a single run, that is planned, and otherwise evaluations

    Examples:
        >>> planned = jaxsink.plan("mini-llada", "v5e:1x1", batch=1, gen=8, search=False)
        >>> planned.runs[0].compiled.fits
        True
    """
    model = os.fspath(model)
    price, mesh = options.get("price"), options.get("mesh")
    slices = find_topologies(tpu, gpu)
    config = describe(model, options.get("mask_id"), options.get("ignore_settings", ()))[0]
    shape = None if mesh is None else parse_mesh(mesh)
    single, names = single_options(options), options.get("setting")
    settings = [] if single and names is None else find_settings(names, model, config)
    if settings and single:
        raise JaxsinkError(f"{single[0]} is of a single run, and --setting of an evaluation; give one of them.")
    if not settings and (unfit := [name for name in OF_EVALUATIONS if options.get(name) is not None]):
        raise JaxsinkError(f"{option(unfit[0])} is of an evaluation; name one with --setting.")
    search = options.get("search", True)
    works = [] if not settings else make_workloads(model, config, settings, options)
    job = None if settings else make_job(config, options)
    with stage("planning") as task:

        def say(text: str) -> None:
            task.update(what=text)

        if job is not None:
            runs = tuple(make_plan(job, topology, shape, search, say) for topology in slices)
            return Planned(model, runs=runs, price=price)
        evaluations = tuple(
            plan_evaluation(work, topology, shape, options.get("rows"), search, say)
            for topology in slices
            for work in works
        )
    return Planned(model, evaluations, price=price)


def find_topologies(tpu: str | Sequence[str], gpu: str | Sequence[str]) -> list[Topology]:
    found = [parse_slice(name) for name in dict.fromkeys(listed(tpu))]
    found += [parse_gpus(name) for name in dict.fromkeys(listed(gpu))]
    if not found:
        raise JaxsinkError(
            "say for what to plan: --tpu with slices such as v5e:2x4, or --gpu with GPUs such as h100:8."
        )
    return found


def listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def single_options(options: Options) -> list[str]:
    """Those of a single run that were given, as the command line spells them."""
    found = [option(name) for name in (*OF_RUNS, *FIELDS) if options.get(name) is not None]
    return [*found, "--unrolled"] if options.get("unrolled") else found


def find_settings(names: str | Sequence[str] | None, model: str, config: ModelConfig) -> list[EvalSetting]:
    """Those that were named; else those of Table 1 for the model of that name, or of the same kind and vocabulary."""
    if names is not None:
        return [get_setting(name) for name in dict.fromkeys(listed(names))]
    study = [setting for setting in SETTINGS.values() if setting.name.endswith("/study")]
    subjects = list(dict.fromkeys(setting.name.split("/")[0] for setting in study))
    alike = [s for s in subjects if (PRESETS[s].family, PRESETS[s].vocab) == (config.family, config.vocab)]
    subject = model if model in subjects else next(iter(alike if model not in NAMES else []), None)
    return [setting for setting in study if setting.name.split("/")[0] == subject]


def make_workloads(
    model: str, config: ModelConfig, settings: Sequence[EvalSetting], options: Options
) -> list[Workload]:
    """The evaluations, with the lengths of their prompts by the model's own tokenizer, if the benchmark's file was given."""
    lengths, data_file = None, options.get("data_file")
    if data_file is not None:
        if len(settings) > 1:
            raise JaxsinkError(f"--data-file is of one benchmark; name one of {', '.join(s.name for s in settings)}.")
        examples, train = benchmark_questions(settings[0], data_file, options.get("train_file"))
        exam = benchmark_exam(settings[0], examples, Tokenizer.load(model), config, train)
        lengths = [len(question.prompt) for question in exam.questions]
    return [published_workload(setting, config, options.get("dtype", "bfloat16"), lengths) for setting in settings]


def make_job(config: ModelConfig, options: Options) -> Job:
    mask, record = options.get("mask"), options.get("record")
    job = Job(
        config,
        with_options(config, family_sampler(config), options.get("gen") or RESPONSE, **of_sampler(options)),
        options.get("batch") or BATCH,
        options.get("prompt") or PROMPT,
        every=options.get("every") or 1,
        dtype=options.get("dtype", "bfloat16"),
        backend=options.get("backend"),
        unrolled=options.get("unrolled", False),
        intervene=None if mask is None else MaskSinks(mask),
    )
    if config.positions == "learned" and job.length > config.max_positions:
        raise JaxsinkError(f"{job.length} tokens are more than the {config.max_positions} this model has learned.")
    if record is not None and [name.strip() for name in listed(record)] == ["none"]:
        return job
    window = job.sampler.window(config)
    shape = Shape(config, job.steps, 1 if job.is_autoregressive else job.length, job.length, window)
    return job.replace(record=named_recorders("--record", "top" if record is None else record, shape))


def totals(plans: Sequence[EvaluationPlan | Plan], price: float | None) -> list[JsonObject]:
    """Hours and dollars of all settings together, or of the single run, for each slice on which all of them fit."""
    found = []
    slices: dict[str, Topology] = {plan.topology.name: plan.topology for plan in plans}
    for name, topology in slices.items():
        hours = [plan.hours for plan in plans if plan.topology.name == name]
        known = [one for one in hours if one is not None]
        if len(known) < len(hours):
            continue
        total, hourly = Hours.sum(known), price_of(topology, price)
        dollars = None if hourly is None else {key: value * hourly for key, value in total.to_dict().items()}
        per_chip = None if hourly is None else hourly / topology.chips
        line = {topology.chip.accelerator: name, "hours": total.to_dict(), "dollars": dollars}
        found.append({**line, "price_per_chip_hour": per_chip})
    return found
