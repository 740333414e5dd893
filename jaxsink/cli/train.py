"""The command `jaxsink train`: one of the built-in models from nothing, with a progress bar, interruptible anywhere."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from jaxsink.cli.main import Commands, add_command, resumable
from jaxsink.zoo.resolve import NAMES

EXAMPLES = """examples:
  jaxsink train mini-llama --out runs/mini-llama
  jaxsink train mini-dream --out runs/mini-dream --init runs/mini-llama/model
  jaxsink train mini-llada --out runs/mini-llada --devices 2
  jaxsink train mini-llada --out runs/short --steps 500 --seed 1 --json

Running the same command again continues the run, whatever ended it, and gives the same weights as an uninterrupted run.
"""
OPTIONS = (
    *("steps", "batch", "learning_rate", "warmup", "decay", "clip", "seed", "dtype"),
    *("predict", "noise", "ramp", "opening", "init", "checkpoints", "extra_sink", "devices", "problems"),
)


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "train",
        run,
        "train one of the small built-in models",
        "Train a built-in model on generated word problems, and measure its accuracy on held-out ones. What "
        "is not given is as the shipped model was trained. DIR gets the model, models along the way, the loss curve "
        "(loss.csv) and the figures (result.json).",
        EXAMPLES,
    )
    parser.add_argument("name", metavar="NAME", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--out", metavar="DIR", required=True, help="directory of the run; continues what is there")
    how = parser.add_argument_group("training")
    how.add_argument("--steps", type=int, help="training steps")
    how.add_argument("--batch", type=int, help="problems per step")
    how.add_argument("--learning-rate", type=float, metavar="RATE", help="at its peak, after the warm-up")
    how.add_argument("--warmup", type=int, metavar="STEPS", help="steps until the peak; a half cosine follows")
    how.add_argument("--decay", type=float, help="weight decay of the layers' matrices")
    how.add_argument("--clip", type=float, metavar="NORM", help="largest norm of a gradient")
    how.add_argument("--seed", type=int, help="of the weights, the problems and the masks")
    how.add_argument(
        "--predict",
        choices=("response", "mixed", "all"),
        help="learn the answers only, in one sequence of four the questions too, or in all",
    )
    how.add_argument("--noise", choices=("count", "bernoulli"), help="how masks are drawn (diffusion)")
    how.add_argument("--ramp", type=float, metavar="PART", help="part of the run over which more and more is masked")
    how.add_argument("--opening", type=float, metavar="PART", help="part of the run that opens the causal mask (Dream)")
    how.add_argument(
        "--init", metavar="MODEL", help="model of the same size to start from: a directory, a hub id or a built-in name"
    )
    how.add_argument(
        "--extra-sink", action="store_true", help="add one token that sees itself only and that all others see"
    )
    how.add_argument("--dtype", choices=("float32", "bfloat16"), help="type of the arithmetic; weights stay float32")
    how.add_argument("--checkpoints", type=int, metavar="N", help="how many models to keep along the way")
    running = parser.add_argument_group("running")
    running.add_argument("--devices", type=int, metavar="N", help="devices that share each batch (default: all)")
    running.add_argument("--problems", type=int, default=1000, metavar="N", help="held-out problems (default: 1000)")
    running.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    import jaxsink

    given = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    with resumable(args.out, "steps so far") as is_stopped:
        result = jaxsink.train(args.name, args.out, is_stopped=is_stopped, **given)
    print(json.dumps(result) if args.json else summary(Path(args.out), result))
    return 0


def summary(out: Path, result: dict[str, Any]) -> str:
    found = result["accuracy"]
    low, high = found["interval"]
    return (
        f"{out / 'model'}: {found['share']:.1%} of {found['total']} held-out problems (95 % interval {low:.1%} to "
        f"{high:.1%}), after {result['steps']} steps in {result['minutes']:.0f} minutes "
        f"({result['tokens_per_second']:,.0f} tokens/s)."
    )
