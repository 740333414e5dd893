"""The command `jaxsink report`: the results of a study as one HTML page, and an animation for slides."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jaxsink.cli import Commands
from jaxsink.cloud import local
from jaxsink.errors import JaxsinkError
from jaxsink.progress import stage

EXAMPLES = """examples:
  jaxsink report ./study                                   writes ./study/report.html
  jaxsink report ./study --out sinks.html --gif sinks.gif
  jaxsink report ./study --show mini-llada,mini-llama --json

The page needs nothing but a browser: no server, no network. Generations are named after their files in DIR/player.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "report",
        help="make a page (and an animation) of a study's results",
        description="Make one self-contained HTML page of the results in DIR: the verdicts, every figure and table, and a "
        "player that shows tokens being unmasked while the attention they receive glows.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", metavar="DIR", help="directory that `jaxsink study` wrote")
    parser.add_argument("--out", metavar="FILE.html", help="where to write the page (default: DIR/report.html)")
    parser.add_argument("--gif", metavar="FILE.gif", help="also write an animation for slides")
    parser.add_argument(
        "--show",
        metavar="RUN[,RUN]",
        help="the generations that the page opens with and the animation shows (default: the first of a diffusion "
        "model and the first of an autoregressive one)",
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from jaxsink.atomic import new_file
    from jaxsink.report import draw_gif, read_study, write_page
    from jaxsink.report.runs import choose_run, default_runs

    page = Path(args.study) / "report.html" if args.out is None else check_name(args.out, (".html", ".htm"))
    gif = None if args.gif is None else check_name(args.gif, (".gif",))
    study = read_study(args.study)
    names = [name.strip() for name in (args.show or "").split(",") if name.strip()]
    if len(names) > 2:
        raise JaxsinkError(f"--show takes one or two generations, not {len(names)}.")
    show = [choose_run(study.runs, name) for name in names] or default_runs(study.runs)
    if gif is not None and not show:
        raise JaxsinkError(f"{study.path / 'player'} holds no generations, so there is nothing to animate (--gif).")
    with stage("writing the page"):
        write_page(study, page, show)
    result = {"page": str(page), "bytes": page.stat().st_size, "experiments": len(study.experiments)}
    result["generations"] = [run.name for run in study.runs]
    if gif is not None:
        with stage("drawing the animation"), new_file(gif) as partial:
            frames = draw_gif(show, partial)
        result |= {"gif": str(gif), "gif_bytes": gif.stat().st_size, "gif_frames": frames}
    if args.json:
        print(json.dumps(result))
    else:
        print(f"{page} ({page.stat().st_size / 1e6:.1f} MB)")
        if gif is not None:
            print(f"{gif} ({gif.stat().st_size / 1e6:.1f} MB)")
    return 0


def check_name(name: str, endings: tuple[str, ...]) -> Path:
    path = local(name, "the page or animation")
    if path.suffix.lower() not in endings or path.is_dir():
        raise JaxsinkError(f"{name} must be a file that ends in {' or '.join(endings)}.")
    return path
