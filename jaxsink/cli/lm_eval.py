"""The command `jaxsink lm-eval`: lm-evaluation-harness with the model `jaxsink` in it."""

from __future__ import annotations

import argparse

from jaxsink.cli.main import Commands
from jaxsink.errors import install_hint

EXAMPLES = """examples:
  jaxsink lm-eval --model jaxsink --model_args pretrained=./llada,steps=256,gen_length=256,block_length=32 \\
      --tasks gsm8k --apply_chat_template --batch_size 16
  jaxsink lm-eval --model jaxsink --model_args pretrained=./llada,k=1,select=top --tasks arc_challenge --batch_size 32
  jaxsink lm-eval run --help        all options, which are lm-eval's own
  jaxsink lm-eval ls tasks

docs/lm-eval.md lists the model arguments.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "lm-eval",
        help="any task of lm-evaluation-harness, with --model jaxsink",
        description="The command lm_eval of lm-evaluation-harness, with the model `jaxsink` added to those it has. Needs "
        f"the extra `eval`: {install_hint('eval')}.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prefix_chars="\0",  # so that options, which are not ours, come through as they are
        add_help=False,
        usage="jaxsink lm-eval --model jaxsink --model_args pretrained=MODEL,NAME=VALUE --tasks TASK [OPTIONS OF LM-EVAL]",
    )
    parser.add_argument("arguments", nargs="*", metavar="OPTIONS", help=argparse.SUPPRESS)
    parser.set_defaults(run=run, show_help=parser.print_help)


def run(args: argparse.Namespace) -> int:
    if args.arguments in ([], ["-h"], ["--help"]):
        args.show_help()
        return 0
    import jaxsink
    from jaxsink.runs.compile_cache import enable_compilation_cache

    enable_compilation_cache()
    jaxsink.lm_eval(args.arguments)
    return 0
