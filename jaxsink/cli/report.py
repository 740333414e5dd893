"""The command `jaxsink report`: a study, or recorded generations, as one HTML page and an animation for slides."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsink.checkpoints.gcs import local
from jaxsink.cli.main import Commands
from jaxsink.errors import JaxsinkError
from jaxsink.runs.progress import stage

if TYPE_CHECKING:
    from jaxsink.report import StudyResults
    from jaxsink.report.view import View

EXAMPLES = """examples:
  jaxsink report ./study                                   writes ./study/report.html
  jaxsink report ./study --out sinks.html --gif sinks.gif
  jaxsink report ./study --show mini-llada,mini-llama --layer 2 --head 0 --gif sinks.gif
  jaxsink report run.npz                                   a run of `jaxsink generate … --record run.npz`: writes run.html
  jaxsink report run.npz other.npz --json                  two of them side by side

The page needs nothing but a browser: no server, no network. Generations are named after their files in DIR/player.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "report",
        help="make a page (and an animation) of a study's results, or of a recorded run",
        description="Make one self-contained HTML page: a player that shows tokens being unmasked while the attention they "
        "receive glows, and of a study also the verdicts, every figure and every table.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
    parser.set_defaults(run=run)


def number_or_mean(text: str) -> int:
    if text == "mean":
        return -1
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor mean")
    return int(text)


def run(args: argparse.Namespace) -> int:
    from jaxsink.report import draw_gif, write_page
    from jaxsink.runs.atomic import new_file

    page = default_page(args.source) if args.out is None else check_name(args.out, (".html", ".htm"))
    gif = None if args.gif is None else check_name(args.gif, (".gif",))
    study = read_source(args.source)
    show = choose_views(args, study)
    if gif is not None and not show:
        raise JaxsinkError(f"{study.path / 'player'} holds no generations, so there is nothing to animate (--gif).")
    with stage("writing the page"):
        write_page(study, page, show)
    result = {"page": str(page), "bytes": page.stat().st_size, "experiments": len(study.findings)}
    result["generations"] = [generation.name for generation in study.generations]
    result["shown"] = [{"generation": view.generation.name, "layer": view.layer, "head": view.head} for view in show]
    if gif is not None:
        with stage("drawing the animation"), new_file(gif) as partial:
            frames = draw_gif(show, partial)
        result |= {"gif": str(gif), "gif_bytes": gif.stat().st_size, "gif_frames": frames}
    if args.json:
        print(json.dumps(result))
    else:
        for file in filter(None, (page, gif)):
            print(f"{file} ({file.stat().st_size / 1e6:.1f} MB)")
    return 0


def default_page(sources: list[str]) -> Path:
    first = Path(sources[0])
    return first / "report.html" if first.suffix != ".npz" else first.with_suffix(".html")


def read_source(sources: list[str]) -> StudyResults:
    from jaxsink.report import read_study
    from jaxsink.report.own import read_records

    if all(Path(source).suffix == ".npz" for source in sources):
        return read_records([Path(source) for source in sources])
    if len(sources) > 1:
        raise JaxsinkError("give one directory of a study, or one or several .npz files of recorded runs.")
    return read_study(sources[0])


def choose_views(args: argparse.Namespace, study: StudyResults) -> list[View]:
    """What --show, --layer and --head ask for; a layer or head that a model does not have is named."""
    from jaxsink.report.view import choose_generation, opening, views

    names = [name.strip() for name in (args.show or "").split(",") if name.strip()]
    if len(names) > 2:
        raise JaxsinkError(f"--show takes one or two generations, not {len(names)}.")
    chosen = [choose_generation(study.generations, name, study.eps) for name in names]
    return views(
        chosen or [view.generation for view in opening(study.generations, study.eps)], study.eps, args.layer, args.head
    )


def check_name(name: str, endings: tuple[str, ...]) -> Path:
    path = local(name, "the page or animation")
    if path.suffix.lower() not in endings or path.is_dir():
        raise JaxsinkError(f"{name} must be a file that ends in {' or '.join(endings)}.")
    return path
