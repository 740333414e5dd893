"""`jaxsink.report`: a study, recorded files or generations in memory, as one page and as an animation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.gcs import local
from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.report.gif import draw_gif
from jaxsink.report.own import in_frame, read_records, study_of
from jaxsink.report.page import write_page
from jaxsink.report.study import StudyResults, read_study
from jaxsink.report.view import View, choose_generation, opening, views
from jaxsink.runs.atomic import check_writable, new_file
from jaxsink.runs.files import user_path
from jaxsink.runs.progress import stage
from jaxsink.sampling.generation import Generation

if TYPE_CHECKING:
    from jaxsink.text.tokenizer import Tokenizer

PathLike = str | os.PathLike[str]
Source = Generation | Mapping[str, Generation] | PathLike | Sequence[PathLike]


@dataclass(frozen=True)
class Page(os.PathLike[str]):
    """A page on the disk, which a notebook shows in place.

    Attributes:
        path: the file
        study: what it shows
        shown: the generations that it opens with
        gif: the animation, if one was asked for
        frames: of the animation

    Examples:
        >>> page = jaxsink.report(out, out="run.html")
        >>> page.path.name
        'run.html'
        >>> page.to_dict()["page"]
        'run.html'
    """

    path: Path
    study: StudyResults
    shown: tuple[View, ...] = ()
    gif: Path | None = None
    frames: int = 0

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        return in_frame(self.path.read_text(encoding="utf-8"))

    def to_dict(self) -> JsonObject:
        """What was written."""
        found: JsonObject = {"page": str(self.path), "bytes": self.path.stat().st_size}
        found["experiments"] = len(self.study.findings)
        found["generations"] = [generation.name for generation in self.study.generations]
        found["shown"] = [
            {"generation": view.generation.name, "layer": view.layer, "head": view.head} for view in self.shown
        ]
        if self.gif is not None:
            found |= {"gif": str(self.gif), "gif_bytes": self.gif.stat().st_size, "gif_frames": self.frames}
        return found


@checked(layer=at_least(-1), head=at_least(-1))
def report(
    source: Source,
    tokenizer: Tokenizer | None = None,
    out: PathLike | None = None,
    title: str = "this run",
    *,
    gif: PathLike | None = None,
    show: str | Sequence[str] = (),
    layer: int | None = None,
    head: int | None = None,
) -> Page:
    """Write the player page: which tokens receive attention, step by step, in each layer and head; and of a study all else.

    Args:
        source: the directory of a study; or files that `jaxsink generate --record` wrote; or what `generate`
            returned, with record=jaxsink.record.received() (or received_by_query(), or a dict with one of
            them); or several of those by label, to be compared: {"plain": a, "top sink hidden": b}
        tokenizer: for the texts of generations in memory; None takes their own, or shows ids
        out: the page, one file that needs nothing but a browser (DIR/report.html, RUN.html, report.html)
        title: what generations in memory are called in the page, for instance the model's name
        gif: also draw an animation into this file
        show: one or two generations, or models, to open with and to animate, by name
        layer: to open with, -1 for the mean; None takes the head whose sink moves most
        head: as for `layer`

    Examples:
        >>> hide = jaxsink.sinks.MaskSinks(k=1)
        >>> hidden = jaxsink.generate(model, question, sampler, intervene=hide, record=jaxsink.record.received())
        >>> jaxsink.report({"plain": out, "top sink hidden": hidden}, out="both.html").path.exists()
        True
    """
    page = default_page(source) if out is None else check_name(out, (".html", ".htm"))
    animation = None if gif is None else check_name(gif, (".gif",))
    study = read_source(source, tokenizer, title)
    chosen = choose_views(study, show, layer, head)
    if animation is not None and not chosen:
        raise JaxsinkError(f"{study.path / 'player'} holds no generations, so there is nothing to animate (--gif).")
    with stage("writing the page"):
        write_page(study, page, chosen)
    if animation is None:
        return Page(page, study, tuple(chosen))
    with stage("drawing the animation"), new_file(animation) as partial:
        frames = draw_gif(chosen, partial)
    return Page(page, study, tuple(chosen), animation, frames)


def paths_of(source: Source) -> list[Path] | None:
    """Where it lies on the disk; None: in memory."""
    if isinstance(source, str | os.PathLike):
        return [user_path(source)]
    return [user_path(path) for path in source] if isinstance(source, list | tuple) else None


def default_page(source: Source) -> Path:
    paths = paths_of(source)
    if not paths:
        return Path("report.html")
    return paths[0] / "report.html" if paths[0].suffix != ".npz" else paths[0].with_suffix(".html")


def read_source(source: Source, tokenizer: Tokenizer | None, title: str) -> StudyResults:
    paths = paths_of(source)
    if paths is None:
        return study_of(source, tokenizer, title)
    if paths and all(path.suffix == ".npz" for path in paths):
        return read_records(paths)
    if len(paths) != 1:
        raise JaxsinkError("give one directory of a study, or one or several .npz files of recorded runs.")
    return read_study(paths[0])


def choose_views(study: StudyResults, show: str | Sequence[str], layer: int | None, head: int | None) -> list[View]:
    """A layer or head that a model does not have is named."""
    names = [show] if isinstance(show, str) else list(show)
    if len(names) > 2:
        raise JaxsinkError(f"--show takes one or two generations, not {len(names)}.")
    chosen = [choose_generation(study.generations, name, study.eps) for name in names]
    chosen = chosen or [view.generation for view in opening(study.generations, study.eps)]
    return views(chosen, study.eps, layer, head)


def check_name(name: PathLike, endings: tuple[str, ...]) -> Path:
    path = local(name, "the page or animation")
    if path.suffix.lower() not in endings or path.is_dir():
        raise JaxsinkError(f"{name} must be a file that ends in {' or '.join(endings)}.")
    check_writable(path)
    return path
