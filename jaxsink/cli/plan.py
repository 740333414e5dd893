"""The command `jaxsink plan`: what a run would need and take on TPU slices and GPUs, by their compilers, without either."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from jaxsink.cli.main import Commands, add_command, add_reading_options, reading_options
from jaxsink.cli.sampling import add_sampler_options, positive, sampler_options

PLAIN_OPTIONS = (
    *("dtype", "mesh", "setting", "rows", "data_file", "train_file", "price"),
    *("batch", "prompt", "gen", "record", "every", "mask", "backend", "unrolled"),
)
EXAMPLES = """examples:
  jaxsink plan llada-8b-instruct --tpu v5e:2x4                     Table 1: which mesh and batch, hours and cost
  jaxsink plan llada-8b-instruct --tpu v5e:2x4 v6e:2x4             several slices side by side
  jaxsink plan llada-8b-instruct --tpu v5e:2x4 --setting llada-8b-instruct/gsm8k/study --rows 32 --mesh 8x1 --no-search
  jaxsink plan dream-7b-instruct --tpu v5e:2x4 --prompt 256 --gen 256 --batch 16 --record received --every 4
  jaxsink plan mini-llada --tpu v5e:1x1 --batch 1 --gen 64 --no-search --json
  jaxsink plan llama-3.1-8b --tpu v5e:2x2 --batch 32 --mesh 1x4
  jaxsink plan llada-8b-instruct --gpu h100:8 --batch 16 --no-search --price 2.5
  jaxsink plan mini-llada --gpu rtx4090 l4 --dtype int8 --batch 1 --gen 64 --no-search

Without options of a single run, the evaluations of the model that Table 1 has are planned (or those of --setting): their
own batches, ten conditions, in the shapes that `jaxsink evaluate` uses. --batch, --prompt, --gen and the like plan one run.

The program is compiled with shapes instead of weights: nothing is allocated or run, and no TPU or GPU is needed, only its
compiler (extra `tpu` or `cuda`). Slices: v5e:1x1 2x2 2x4 4x4 …, v6e:1x1 2x2 2x4 …, v4:2x2x1 …, v5p:2x2x1 …,
tpu7x:2x2x1 …. GPUs, one (h100) or up to eight of a host (h100:8): b200, h200, h100, a100-80g, a100-40g, l40s, a6000, l4,
rtx5090, rtx4090, rtx3090. Times on TPUs are the compiler's estimates; collectives, kernels and sorts, for which it gives
none, are ours. Times on GPUs, for which the compiler has no estimate, are a wide range from the roofline.
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "plan",
        run,
        "memory, time and cost of a run on TPU slices and GPUs, without either",
        "Compile evaluations, or a single run of the sampler, for TPU slices and GPUs, and say what fits, what fills the "
        "memory of each device, the cheapest mesh and batch or the largest batch, the estimated time of a step against the "
        "chip's roofline, and what the run or Table 1 would take and cost.",
        EXAMPLES,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a published model (such as llada-8b-instruct), a built-in one, a hub id, or a checkpoint",
    )
    parser.add_argument("--tpu", metavar="SLICE", nargs="+", default=[], help="slices such as v5e:2x4")
    parser.add_argument(
        "--gpu", metavar="GPUS", nargs="+", default=[], help="such as h100, h100:8, a100-80g:4, rtx4090"
    )
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
    add_run_options(parser.add_argument_group("a single run"))
    add_sampler_options(
        parser.add_argument_group("its sampling (each model's sampler has some of these)"), "--gen", "256"
    )
    how = parser.add_argument_group("planning")
    how.add_argument("--mesh", metavar="DxM", help="batch x weights over the devices (default: the best that fits)")
    how.add_argument("--no-search", action="store_true", help="compile one mesh and batch only (faster)")
    how.add_argument(
        "--price", metavar="X", type=float, help="dollars per chip and hour (default: prices of 2025, an assumption)"
    )
    how.add_argument("--json", action="store_true", help="print as JSON")
    add_reading_options(parser)


def add_run_options(group: Any) -> None:
    group.add_argument("--batch", metavar="N", type=positive, help="sequences (default: 16)")
    group.add_argument("--prompt", metavar="N", type=positive, help="tokens (default: 256)")
    group.add_argument(
        "--record",
        metavar="NAMES",
        help="statistics of every step, as in `jaxsink generate --record-what`; none for none (default: top)",
    )
    group.add_argument("--every", metavar="N", type=positive, help="record every N-th step (default: 1)")
    group.add_argument("--mask", metavar="K", type=positive, help="hide the top K sinks of each head")
    group.add_argument("--backend", help="attention backend (default: by size)")
    group.add_argument("--unrolled", action="store_true", help="one program per layer: compiles far longer")


def run(args: argparse.Namespace) -> int:
    os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX starts: a real TPU or GPU, if there is one, stays free
    import jaxsink
    from jaxsink.cli.plan_tables import show

    plain: Any = {name: getattr(args, name) for name in PLAIN_OPTIONS}
    search = not args.no_search
    planned = jaxsink.plan(
        args.model, args.tpu, args.gpu, search=search, **plain, **sampler_options(args), **reading_options(args)
    )
    if args.json:
        print(json.dumps(planned.to_dict(), indent=2))
    else:
        show(planned)
    return 0
