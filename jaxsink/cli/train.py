"""The command `jaxsink train`: any model on any text, with a progress bar, interruptible anywhere."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.cli.main import Commands, add_command, resumable
from jaxsink.zoo.resolve import NAMES

EXAMPLES = """examples:
  jaxsink train mini-llama --out runs/mini-llama
  jaxsink train mini-dream --out runs/mini-dream --init runs/mini-llama/model
  jaxsink train mini-llada --out runs/short --devices 2 --steps 500 --seed 1 --json
  jaxsink train 4x128x4 --out runs/arm --data input.txt --tokenizer characters --steps 2000
  jaxsink train 4x128x4 --out runs/dlm --data input.txt --tokenizer bpe:1024 --objective diffusion --steps 4000
  jaxsink train 4x128x4 --out runs/stories --data stories --steps 2000
  jaxsink train runs/arm/model --out runs/adapted --data input.txt --objective adaptation --steps 1000
  jaxsink train mini-llada --out runs/lens --lens --steps 100
  jaxsink train ./llama --out runs/tuned --data train.jsonl --template '{question} {answer}' --lora 8 --steps 100

Running the same command again continues the run, whatever ended it, and gives the same weights as an uninterrupted run.
"""
NOT_PASSED = ("run", "model", "out", "json", "command")


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "train",
        run,
        "train or adapt a model: any size, any text, autoregressive or diffusion",
        "Train a model on texts, or a built-in one on generated word problems. DIR gets the model, models along the way, "
        "the loss curve (loss.csv), the sinks as they emerge (sinks.csv) and the figures (result.json).",
        EXAMPLES,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=f"{', '.join(NAMES)}; LAYERSxWIDTHxHEADS; the name of a published configuration; a .json file with a "
        "configuration; or a checkpoint to start from",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="directory of the run; continues what is there")
    add_data_options(parser.add_argument_group("data"))
    add_training_options(parser.add_argument_group("training"))
    add_objective_options(parser.add_argument_group("objective"))
    running = parser.add_argument_group("running")
    running.add_argument("--devices", type=int, metavar="N", help="devices that share each batch (default: all)")
    running.add_argument(
        "--problems", type=int, metavar="N", help="held-out problems of a built-in model (default: 1000)"
    )
    running.add_argument(
        "--tensorboard", action="store_true", default=None, help="also write DIR/tensorboard (an extra)"
    )
    running.add_argument(
        "--lens",
        action="store_true",
        default=None,
        help="leave MODEL as it is, and fit a tuned lens to it: DIR gets lens.safetensors for record.lens(tuned=...); "
        "takes --steps (default: 250), --batch, --learning-rate, --seed and data",
    )
    running.add_argument("--json", action="store_true", help="print the figures as JSON")


def add_data_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data",
        metavar="TEXT",
        action="append",
        help="a text or .jsonl file, a directory, tfds:NAME:SPLIT, or the word problems `stories`; may be repeated",
    )
    group.add_argument("--template", metavar="TEXT", help="how the fields of a record make a text (default: '{text}')")
    group.add_argument(
        "--tokenizer", metavar="NAME", help="characters, bpe:SIZE, or a checkpoint (default: the model's)"
    )
    group.add_argument("--length", type=int, metavar="S", help="tokens of a sequence (default: 256)")
    group.add_argument("--validation", type=float, metavar="PART", help="of the data that is held out (default: 0.1)")
    group.add_argument("--no-bos", dest="bos", action="store_false", default=None, help="windows do not begin with bos")


def add_training_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--steps", type=int, help="training steps; a built-in model has its own number")
    group.add_argument("--batch", type=int, help="sequences per step")
    group.add_argument("--accumulate", type=int, metavar="PARTS", help="run a batch in so many parts, for memory")
    group.add_argument(
        "--optimizer", choices=("adamw", "muon"), help="of the matrices (default: adamw; built-in: muon)"
    )
    group.add_argument("--learning-rate", type=float, metavar="RATE", help="at its peak, after the warm-up")
    group.add_argument("--warmup", type=int, metavar="STEPS", help="steps until the peak; a half cosine follows")
    group.add_argument("--decay", type=float, help="weight decay of the layers' matrices")
    group.add_argument("--clip", type=float, metavar="NORM", help="largest norm of a gradient")
    group.add_argument("--lora", type=int, metavar="RANK", help="train adapters of this rank instead of the weights")
    group.add_argument("--seed", type=int, help="of the weights, the order of the data and the masks")
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="type of the arithmetic; training keeps weights in float32, and models are written in bfloat16",
    )
    group.add_argument("--init", metavar="MODEL", help='weights to start from, of the same size; "random" for none')
    group.add_argument("--checkpoints", type=int, metavar="N", help="how many models to keep along the way")


def add_objective_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--objective",
        choices=("causal", "diffusion", "adaptation", "block_diffusion"),
        help="next token; masked tokens; the same from an autoregressive model while its mask opens; masked tokens block by "
        "block (default: as the model is)",
    )
    group.add_argument("--block-length", type=int, metavar="N", help="of block diffusion (default: 16)")
    group.add_argument(
        "--opening", type=float, metavar="PART", help="of the run that opens the causal mask (adaptation)"
    )
    group.add_argument("--noise", choices=("count", "bernoulli"), help="how masks are drawn (diffusion)")
    group.add_argument("--ramp", type=float, metavar="PART", help="of the run over which more and more is masked")
    group.add_argument(
        "--predict",
        choices=("response", "mixed", "all"),
        help="built-in models: learn the answers only, in one sequence of four the questions too, or in all",
    )
    group.add_argument(
        "--extra-sink", action="store_true", default=None, help="add one token that sees itself only and that all see"
    )


def run(args: argparse.Namespace) -> int:
    import jaxsink

    given = {name: value for name, value in vars(args).items() if value is not None and name not in NOT_PASSED}
    with resumable(args.out, "steps so far", interrupts=True) as is_stopped:
        result = jaxsink.train(args.model, args.out, is_stopped=is_stopped, **given)
    show = lens_summary if args.lens else summary
    print(json.dumps(result) if args.json else show(Path(args.out), result))
    return 0


def lens_summary(out: Path, result: JsonObject) -> str:
    pairs = zip(result["kl_before"], result["kl"], strict=True)
    by_layer = ", ".join(f"{before:.2f} to {after:.2f}" for before, after in pairs)
    return f"{out / 'lens.safetensors'}: KL to the last layer, layer by layer, from {by_layer} nats on held-out data."


def summary(out: Path, result: JsonObject) -> str:
    said = [f"{result['validation_loss']:.3f} nats per token on held-out data"]
    if "accuracy" in result:
        found, (low, high) = result["accuracy"], result["accuracy"]["interval"]
        said.insert(
            0, f"{found['share']:.1%} of {found['total']} held-out problems (95 % interval {low:.1%} to {high:.1%})"
        )
    return (
        f"{out / 'model'}: {', '.join(said)}, after {result['steps']} steps in {result['minutes']:.0f} minutes "
        f"({result['tokens_per_second']:,.0f} tokens/s, {result['gflops']:.0f} GFLOP/s)."
    )
