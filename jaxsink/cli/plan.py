"""The command `jaxsink plan`: what a run would need and take on TPU slices, by the TPU compiler, without a TPU."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jaxsink.cli.main import Commands, add_reading_options, reading_options
from jaxsink.cli.sampler_options import SAMPLER_OPTIONS, add_sampler_options, make_sampler, option, positive
from jaxsink.errors import JaxsinkError
from jaxsink.runs.progress import stage

if TYPE_CHECKING:
    from jaxsink.evals.settings import EvalSetting
    from jaxsink.nn.config import ModelConfig
    from jaxsink.planner.job import Job
    from jaxsink.planner.topology import Topology

Mesh = tuple[int, int]  # (data, model)

EXAMPLES = """examples:
  jaxsink plan llada-8b-instruct --tpu v5e:2x4                     Table 1: which mesh and batch, hours and cost
  jaxsink plan llada-8b-instruct --tpu v5e:2x4 v6e:2x4             several slices side by side
  jaxsink plan llada-8b-instruct --tpu v5e:2x4 --setting llada-8b-instruct/gsm8k/study --rows 32 --mesh 8x1 --no-search
  jaxsink plan dream-7b-instruct --tpu v5e:2x4 --prompt 256 --gen 256 --batch 16 --record received --every 4
  jaxsink plan mini-llada --tpu v5e:1x1 --batch 1 --gen 64 --no-search --json
  jaxsink plan llama-3.1-8b --tpu v5e:2x2 --batch 32 --mesh 1x4

Without options of a single run, the evaluations of the model that Table 1 has are planned (or those of --setting): their
own batches, ten conditions, in the shapes that `jaxsink evaluate` uses. --batch, --prompt, --gen and the like plan one run.

The program is compiled for the slice with shapes instead of weights: nothing is allocated or run, and no TPU is needed,
only its compiler (extra `tpu`). Slices: v5e:1x1 2x2 2x4 4x4 …, v6e:1x1 2x2 2x4 …, v4:2x2x1 …, v5p:2x2x1 …,
tpu7x:2x2x1 …. Times are the compiler's estimates; collectives, kernels and sorts, for which it gives none, are ours.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "plan",
        help="memory, time and cost of a run on TPU slices, without a TPU",
        description="Compile evaluations, or a single run of the sampler, for TPU slices, and say what fits, what fills the "
        "memory of each device, the cheapest mesh and batch or the largest batch, the estimated time of a step against the "
        "chip's roofline, and what Table 1 would take and cost.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a published model (such as llada-8b-instruct), a built-in one, a hub id, or a checkpoint",
    )
    parser.add_argument("--tpu", metavar="SLICE", nargs="+", required=True, help="slices such as v5e:2x4")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32", "int8"),
        default="bfloat16",
        help="of the weights (default: %(default)s)",
    )
    exam = parser.add_argument_group("evaluations")
    exam.add_argument("--setting", metavar="NAME", nargs="+", help="such as llada-8b-instruct/gsm8k/study")
    exam.add_argument(
        "--rows", metavar="N", type=positive, help="the most sequences of a batch (default: the cheapest)"
    )
    exam.add_argument(
        "--data-file", metavar="FILE", help="the benchmark's file, to count its prompts with the model's own tokenizer"
    )
    exam.add_argument(
        "--train-file", metavar="FILE", help="its training split, for settings with examples in the prompt"
    )
    exam.add_argument("--price", metavar="X", type=float, help="dollars per chip and hour (default: list prices)")
    add_run_options(parser.add_argument_group("a single run"))
    add_sampler_options(
        parser.add_argument_group("its sampling (each model's sampler has some of these)"), "--gen", Default(256)
    )
    how = parser.add_argument_group("planning")
    how.add_argument("--mesh", metavar="DxM", help="batch x weights over the devices (default: the best that fits)")
    how.add_argument("--no-search", action="store_true", help="compile one mesh and batch only (faster)")
    how.add_argument("--json", action="store_true", help="print as JSON")
    add_reading_options(parser)
    parser.set_defaults(run=run)


class Default(int):
    """A number that nobody gave."""


def add_run_options(group: Any) -> None:
    group.add_argument(
        "--batch", metavar="N", type=positive, default=Default(16), help="sequences (default: %(default)s)"
    )
    group.add_argument(
        "--prompt", metavar="N", type=positive, default=Default(256), help="tokens (default: %(default)s)"
    )
    group.add_argument(
        "--record",
        metavar="NAMES",
        help="statistics of every step, as in `jaxsink generate --record-what`; none for none (default: top)",
    )
    group.add_argument(
        "--every", metavar="N", type=positive, default=Default(1), help="record every N-th step (default: %(default)s)"
    )
    group.add_argument("--mask", metavar="K", type=positive, help="hide the top K sinks of each head")
    group.add_argument("--backend", help="attention backend (default: by size)")
    group.add_argument("--unrolled", action="store_true", help="one program per layer: compiles far longer")


def run(args: argparse.Namespace) -> int:
    os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX starts: a real TPU, if there is one, stays free
    from jaxsink.checkpoints.load import describe
    from jaxsink.parallel.mesh import parse_mesh
    from jaxsink.planner.topology import parse_topology

    if args.price is not None and args.price < 0:
        raise JaxsinkError(f"--price must not be negative, and is {args.price}.")
    slices = [parse_topology(name) for name in dict.fromkeys(args.tpu)]
    config = describe(args.model, **reading_options(args))[0]
    mesh = None if args.mesh is None else parse_mesh(args.mesh)
    single = run_options(args)
    settings = [] if single and args.setting is None else find_settings(args.setting, args.model, config)
    if settings and single:
        raise JaxsinkError(f"{single[0]} is of a single run, and --setting of an evaluation; give one of them.")
    if settings:
        return plan_settings(args, slices, config, settings, mesh)
    unfit = [f"--{name}" for name in ("rows", "data_file", "train_file", "price") if getattr(args, name) is not None]
    if unfit:
        raise JaxsinkError(f"{unfit[0].replace('_', '-')} is of an evaluation; name one with --setting.")
    return plan_run(args, slices, config, mesh)


def run_options(args: argparse.Namespace) -> list[str]:
    """Those of a single run that were given."""
    numbers = {"--batch": args.batch, "--prompt": args.prompt, "--every": args.every, "--gen": args.tokens}
    found = [name for name, value in numbers.items() if not isinstance(value, Default)]
    names = ("record", "mask", "backend", *SAMPLER_OPTIONS)
    found += [option(name) for name in names if getattr(args, name) is not None]
    return [*found, "--unrolled"] if args.unrolled else found


def plan_run(args: argparse.Namespace, slices: list[Topology], config: ModelConfig, mesh: Mesh | None) -> int:
    from jaxsink.cli.plan_tables import show
    from jaxsink.planner.planner import make_plan

    job, plans = make_job(args, config), []
    with telling() as say:
        for topology in slices:
            plans.append(make_plan(job, topology, mesh, not args.no_search, say))
    if args.json:
        print(json.dumps({"model": args.model, "plans": [plan.to_dict() for plan in plans]}, indent=2))
    else:
        show(args.model, plans)
    return 0


def plan_settings(
    args: argparse.Namespace,
    slices: list[Topology],
    config: ModelConfig,
    settings: list[EvalSetting],
    mesh: Mesh | None,
) -> int:
    from jaxsink.cli.plan_tables import show_evaluations, totals
    from jaxsink.planner.evaluation import plan_evaluation
    from jaxsink.planner.workload import published_workload

    lengths = count_prompts(args, settings, config)
    works = [published_workload(setting, config, args.dtype, lengths) for setting in settings]
    plans = []
    with telling() as say:
        for topology in slices:
            for work in works:
                plans.append(plan_evaluation(work, topology, mesh, args.rows, not args.no_search, say))
    if args.json:
        found = {"plans": [plan.to_dict() for plan in plans], "totals": totals(plans, args.price)}
        print(json.dumps({"model": args.model, **found}, indent=2))
    else:
        show_evaluations(args.model, plans, args.price)
    return 0


def find_settings(names: list[str] | None, model: str, config: ModelConfig) -> list[EvalSetting]:
    """Those that were named; else those of Table 1 for the model of that name, or of the same kind and vocabulary."""
    from jaxsink.evals.settings import SETTINGS, get_setting
    from jaxsink.zoo.presets import PRESETS
    from jaxsink.zoo.resolve import NAMES

    if names is not None:
        return [get_setting(name) for name in dict.fromkeys(names)]
    study = [setting for setting in SETTINGS.values() if setting.name.endswith("/study")]
    subjects = list(dict.fromkeys(setting.name.split("/")[0] for setting in study))
    alike = [s for s in subjects if (PRESETS[s].family, PRESETS[s].vocab) == (config.family, config.vocab)]
    subject = model if model in subjects else next(iter(alike if model not in NAMES else []), None)
    return [setting for setting in study if setting.name.split("/")[0] == subject]


def count_prompts(args: argparse.Namespace, settings: list[EvalSetting], config: ModelConfig) -> list[int] | None:
    """Tokens of every prompt by the model's own tokenizer, if the benchmark's file was given."""
    if args.data_file is None:
        return None
    if len(settings) > 1:
        raise JaxsinkError(f"--data-file is of one benchmark; name one of {', '.join(s.name for s in settings)}.")
    from jaxsink.evals.prepare import benchmark_questions
    from jaxsink.text.tokenizer import Tokenizer

    examples, train = benchmark_questions(settings[0], args.data_file, args.train_file)
    from jaxsink.tasks.exam import benchmark_exam

    exam = benchmark_exam(settings[0], examples, Tokenizer.load(args.model), config, train)
    return [len(question.prompt) for question in exam.questions]


def make_job(args: argparse.Namespace, config: ModelConfig) -> Job:
    from jaxsink.cli.shared import WHAT, Shape, record_names
    from jaxsink.planner.job import Job
    from jaxsink.sinks.mask import MaskSinks

    job = Job(
        config,
        make_sampler(args, config),
        args.batch,
        args.prompt,
        every=args.every,
        dtype=args.dtype,
        backend=args.backend,
        unrolled=args.unrolled,
        intervene=None if args.mask is None else MaskSinks(args.mask),
    )
    if config.positions == "learned" and job.length > config.max_positions:
        raise JaxsinkError(f"{job.length} tokens are more than the {config.max_positions} this model has learned.")
    wanted = "top" if args.record is None else args.record
    if wanted.strip() == "none":
        return job
    shape = Shape(config, job.steps, 1 if job.is_autoregressive else job.length, job.length)
    return job.replace(record={name: WHAT[name][0](shape) for name in record_names("--record", wanted)})


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Says what is being compiled; compiling takes seconds."""
    with stage("planning") as task:
        yield lambda text: task.update(what=text)
