"""The command `jaxsink evaluate`: a benchmark with sinks masked and with controls; Tables 1 and 2 from one run."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxsink.checkpoints.gcs import local
from jaxsink.cli.main import (
    Commands,
    add_command,
    add_reading_options,
    add_sandbox_option,
    reading_options,
    resumable,
)
from jaxsink.cli.sampling import positive
from jaxsink.errors import JaxsinkError

PLAIN_OPTIONS = (
    *("limit", "subset", "subset_seed", "rank_on", "rule", "mask_rows", "gold", "canvases", "window", "seed"),
    *("rows", "devices", "mesh", "dtype", "allow_code_execution", "sandbox"),
)
EXAMPLES = """examples:
  jaxsink evaluate mini-llada task --out runs/llada --limit 200     built-in model and word problems, no data needed
  jaxsink evaluate ./llada llada-8b-instruct/gsm8k/study --out runs/gsm8k --rows 40 --mesh 8x1
  jaxsink evaluate mini-llada task --out runs/fair --k 0,1,3% --select top,partner,mass --limit 200     matched controls
  jaxsink evaluate ./smollm2 smollm2-135m-instruct/gsm8k/small --out runs/small --data-file gsm8k_test.jsonl --subset 200
  jaxsink evaluate ./smollm2 smollm2-135m-instruct/gsm8k/small --out runs/gold --gold --k 0,1 --select top,random,first
  jaxsink evaluate mini-llada task --out runs/filled --gold --limit 100      likelihood of the published answers
  jaxsink evaluate ./llada text --out runs/text --text book.txt --window 256
  jaxsink evaluate ./dream dream-7b-instruct/humaneval/study --out runs/code --allow-code-execution
  jaxsink evaluate ./llada llada-8b-instruct/gsm8k/study --out runs/gsm8k --shard 2/4      on the second of four hosts
  jaxsink evaluate ./llada llada-8b-instruct/gsm8k/study --out runs/gsm8k --summary --json

Running the same command again continues, whatever ended it, also on another number of devices or with other --rows.
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "evaluate",
        run,
        "accuracy or likelihood on a benchmark with attention sinks masked, with controls",
        "Ask a model the questions of a benchmark, unmasked and with its top-K sinks (or as many other keys) "
        "hidden, grade the answers, see whether they end, repeat themselves or are empty, and count which tokens are sinks; "
        "or, with --gold or --text, tell how likely the model finds given answers or a text. DIR gets a line per answer as "
        "it comes, a manifest, results.json, and Tables 1 and 2 beside the paper's (table1.csv, table2.csv, outcomes.csv, "
        "tables.json, tables.md). `jaxsink table1` puts several such directories together.",
        EXAMPLES,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a checkpoint, also gs://…, a hub id, or a built-in name (for the setting task)"
    )
    parser.add_argument(
        "setting", metavar="SETTING", help="a name such as llada-8b-instruct/gsm8k/study, task, or text"
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="directory of the run; continues what is there")
    add_question_options(parser.add_argument_group("questions"))
    add_condition_options(parser.add_argument_group("conditions"))
    add_running_options(parser.add_argument_group("running"))
    add_reading_options(parser)


def add_question_options(data: argparse._ArgumentGroup) -> None:
    data.add_argument("--data-file", metavar="FILE", help="the benchmark's published file, if it is here")
    data.add_argument(
        "--train-file", metavar="FILE", help="its training split, for settings with examples in the prompt"
    )
    data.add_argument("--data-dir", metavar="DIR", help="where prepared data is kept (default: as TFDS)")
    data.add_argument(
        "--text", metavar="FILE", help='for the setting text: a text file, or .jsonl with a "text" each line'
    )
    data.add_argument(
        "--window",
        type=positive,
        default=256,
        metavar="N",
        help="tokens of text at a time: the first half is given, the second scored (default: 256)",
    )
    some = data.add_mutually_exclusive_group()
    some.add_argument("--limit", type=positive, metavar="N", help="the first N questions")
    some.add_argument("--subset", type=positive, metavar="N", help="N questions drawn at random")
    data.add_argument("--subset-seed", type=int, default=0, metavar="S", help="of that draw (default: 0)")


def add_condition_options(what: argparse._ArgumentGroup) -> None:
    what.add_argument(
        "--k",
        default="0,1,5,10",
        metavar="K,K",
        help="keys to hide per head, or 3%% for a share of the tokens (default: %(default)s)",
    )
    what.add_argument(
        "--select",
        default="top,random,bottom",
        metavar="S,S",
        help="which: top, top_not_first or first tokens; of other keys bottom, random, partner (random, hidden as long as a "
        "sink) or mass (random, with as much attention) (default: %(default)s)",
    )
    what.add_argument(
        "--rank-on",
        choices=("masked", "clean"),
        default="masked",
        help="rank keys by the attention of the masked model, or of an extra unmasked pass (default: %(default)s)",
    )
    what.add_argument(
        "--rule",
        choices=("top_k", "threshold", "top_k_above"),
        help="threshold: hide all keys that pass Eq. 3 with --eps, whatever K; top_k_above: K of those; top_k: K (default)",
    )
    what.add_argument(
        "--mask-rows",
        choices=("all", "newest", "decoded", "masked"),
        help="whose attention is masked; autoregressive models: the newest query's (default), or that of all, which then "
        "run in every step; diffusion models: of all (default), of those being decoded, or of all masks",
    )
    what.add_argument(
        "--gold",
        action="store_true",
        help="ask nothing: perplexity of the published answers, and divergence from the unmasked model; a diffusion model "
        "fills them in with a share t = 0.25, 0.5, 0.75 of their tokens masked",
    )
    what.add_argument(
        "--canvases", type=positive, default=4, metavar="N", help="of a diffusion model, per answer and t (default: 4)"
    )
    sinks = what.add_mutually_exclusive_group()
    sinks.add_argument("--eps", type=eps, default=3.0, metavar="E", help="ε of Eq. 3 for counted sinks (default: 3)")
    sinks.add_argument("--no-sinks", action="store_true", help="do not count sinks")
    what.add_argument("--seed", type=int, default=0, help="of all draws; each question adds its index (default: 0)")


def add_running_options(how: argparse._ArgumentGroup) -> None:
    how.add_argument(
        "--rows",
        type=positive,
        metavar="N",
        help="the most sequences of a batch; each is a question under one condition (default: by memory; CPU: 80)",
    )
    where = how.add_mutually_exclusive_group()
    where.add_argument(
        "--devices", type=positive, metavar="N", help="devices that share each batch, each with all weights"
    )
    where.add_argument(
        "--mesh",
        metavar="DxM",
        help="cut batch x weights over D x M devices (default: all, by memory; CPU: see --devices)",
    )
    how.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16", "int8"),
        help="type of the weights; int8: of the layers' only (default: as stored; built-in models: float32)",
    )
    how.add_argument("--shard", default="1/1", metavar="I/N", help="do every N-th question, from the I-th on")
    how.add_argument(
        "--allow-code-execution", action="store_true", help="let programs that the model writes run, in a sandbox"
    )
    add_sandbox_option(how)
    how.add_argument("--summary", action="store_true", help="only sum up what is there")
    how.add_argument("--json", action="store_true", help="print the results as JSON")


def run(args: argparse.Namespace) -> int:
    folder = local(args.out, "--out")
    files = {name: getattr(args, name) for name in ("data_dir", "data_file", "train_file", "text")}
    for name, path in files.items():
        if path is not None:
            local(path, f"--{name.replace('_', '-')}")
    shard, k = parse_shard(args.shard), parse_counts(args.k)

    import jaxsink
    from jaxsink.runs.compile_cache import enable_compilation_cache

    enable_compilation_cache()
    with resumable(folder, "finished questions") as is_stopped:
        results = jaxsink.evaluate(
            args.model,
            args.setting,
            folder,
            summary=args.summary,
            is_stopped=is_stopped,
            say=lambda text: print(text, file=sys.stderr),
            k=k,
            select=[name.strip() for name in args.select.split(",") if name.strip()],
            eps=None if args.no_sinks else args.eps,
            shard=shard,
            **{name: getattr(args, name) for name in PLAIN_OPTIONS},
            **files,
            **reading_options(args),
        )
    return show(results, folder, args.json)


def eps(text: str) -> float:
    """For argparse: ε of Eq. 3."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return value


def parse_shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise JaxsinkError(f"--shard takes a number and how many there are, such as 2/4, not {text!r}.")
    return int(found[1]), int(found[2])


def parse_counts(text: str) -> list[int | float]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    found = [re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)%", part) for part in parts]
    if not parts or not all(one and (one[1] or 0 < float(one[2]) < 100) for one in found):
        raise JaxsinkError(f"--k takes whole numbers, or shares of the tokens, such as 0,1,5,3%, not {text!r}.")
    return [int(one[1]) if one[1] else float(one[2]) / 100 for one in found if one]


def show(results: Mapping[str, Any], folder: Path, as_json: bool) -> int:
    from jaxsink.cli.tables import print_run

    if as_json:
        print(json.dumps(results, indent=2))
    else:
        print_run(results, folder)
    return 0
