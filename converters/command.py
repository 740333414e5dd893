"""The command `jaxsink convert`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from jaxsink.cli.main import Commands, add_command, add_reading_options, reading_options
from jaxsink.runs.progress import human_bytes
from jaxsink.runs.stopping import stop_on_sigterm

EXAMPLES = """examples:
  jaxsink convert ./LLaDA-8B-Instruct ./llada                      Hugging Face directory, types as stored
  jaxsink convert ./Llama-3.1-8B-Instruct ./llama --dtype bfloat16 --verify
  jaxsink convert SmolLM2-135M-Instruct.Q4_1.gguf ./smollm2        GGUF, dequantised, with its tokenizer
  jaxsink convert GSAI-ML/LLaDA-8B-Instruct ./llada-hub --revision main  from the hub, pinned to a commit

A conversion that is interrupted leaves nothing behind that loads; running it again starts afresh.
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "convert",
        run,
        "port PyTorch or GGUF weights into a jaxsink checkpoint",
        "Port a PyTorch or GGUF checkpoint into an Orbax checkpoint that jaxsink.load reads. Every tensor "
        "and every setting must be understood: what is missing, left over, mis-shaped or unknown is an error.",
        EXAMPLES,
    )
    parser.add_argument("src", metavar="SRC", help="Hugging Face directory, .gguf file, or hub id (owner/name)")
    parser.add_argument("dst", metavar="DST", help="directory to write, or gs://bucket/name; must not exist yet")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="type of the weights (default: as stored)"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read everything back and compare; logits too, with `parity`"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace DST once the new checkpoint is complete")
    parser.add_argument("--revision", help="hub revision (branch, tag or commit)")
    add_reading_options(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    import jaxsink

    with stop_on_sigterm("stopped by SIGTERM; nothing half-written was left.") as is_stopped:
        report = jaxsink.convert(
            args.src,
            args.dst,
            dtype=args.dtype,
            verify=args.verify,
            overwrite=args.overwrite,
            revision=args.revision,
            is_stopped=is_stopped,
            **reading_options(args),
        )
    if args.json:
        print(json.dumps(asdict(report), indent=2))
        return 0
    print(
        f"{report.target}: {report.family}, {report.parameters / 1e6:,.1f} M parameters, {report.dtype}, "
        f"{human_bytes(report.bytes)}, from {report.tensors} tensors"
    )
    for warning in report.warnings:
        print(f"note: {warning}")
    if report.verified is not None:
        print(f"verified: {report.verified['tensors']} arrays bit for bit; logits {report.verified['logits']}")
    return 0
