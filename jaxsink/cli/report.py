"""The command `jaxsink report`: a study, or recorded generations, as one HTML page and an animation for slides."""

from __future__ import annotations

import argparse
import json

from jaxsink.cli.main import Commands, add_command

EXAMPLES = """examples:
  jaxsink report ./study                                   writes ./study/report.html
  jaxsink report ./study --out sinks.html --gif sinks.gif
  jaxsink report ./study --show mini-llada,mini-llama --layer 2 --head 0 --gif sinks.gif
  jaxsink report run.npz                                   a run of `jaxsink generate … --record run.npz`: writes run.html
  jaxsink report run.npz other.npz --json                  two of them side by side

The page needs nothing but a browser: no server, no network. Generations are named after their files in DIR/player.
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "report",
        run,
        "make a page (and an animation) of a study's results, or of a recorded run",
        "Make one self-contained HTML page: a player that shows tokens being unmasked while the attention they "
        "receive glows, and of a study also the verdicts, every figure and every table.",
        EXAMPLES,
    )
    parser.add_argument(
        "source",
        metavar="DIR|RUN.npz",
        nargs="+",
        help="directory that `jaxsink study` wrote, or files that `jaxsink generate --record` wrote",
    )
    parser.add_argument(
        "--out", metavar="FILE.html", help="where to write the page (default: DIR/report.html, RUN.html)"
    )
    parser.add_argument("--gif", metavar="FILE.gif", help="also write an animation for slides")
    parser.add_argument(
        "--show",
        metavar="NAME[,NAME]",
        help="the generations, or models, that the page opens with and the animation shows (default: a diffusion model "
        "whose sink moves, and the same with its sinks hidden)",
    )
    for name in ("layer", "head"):
        parser.add_argument(
            f"--{name}",
            metavar="N",
            type=number_or_mean,
            help=f"the {name} to open with and to animate, or mean (default: of the head whose sink moves most)",
        )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def number_or_mean(text: str) -> int:
    if text == "mean":
        return -1
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor mean")
    return int(text)


def run(args: argparse.Namespace) -> int:
    import jaxsink

    show = [name.strip() for name in (args.show or "").split(",") if name.strip()]
    page = jaxsink.report(args.source, out=args.out, gif=args.gif, show=show, layer=args.layer, head=args.head)
    if args.json:
        print(json.dumps(page.to_dict()))
    else:
        for file in filter(None, (page.path, page.gif)):
            print(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")
    return 0
