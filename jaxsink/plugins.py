"""Functions whose work is done outside this package: jaxsink finds it by entry point, and imports it when it is called."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.runs.stopping import IsStopped, never
from jaxsink.sandbox.levels import Level

if TYPE_CHECKING:
    from jax.typing import DTypeLike

    from jaxsink.checkpoints.formats import JsonObject
    from jaxsink.study import Finding, Study

PathLike = str | os.PathLike[str]
Given = ParamSpec("Given")
Made = TypeVar("Made")
GROUP = "jaxsink.functions"


STUDY_RANGES = {
    **dict.fromkeys(("problems", "generations", "rows", "tokens", "longest"), at_least(1)),
    **dict.fromkeys(("untrained", "answers", "stepped", "seed", "mask_id"), at_least(0)),
    "window": at_least(2),
}


def outside(declared: Callable[Given, Made]) -> Callable[Given, Made]:
    """Decorates the declaration of a function, whose calls go to the entry point of its name."""

    @wraps(declared)
    def call(*args: Given.args, **options: Given.kwargs) -> Made:
        return plugin(declared.__name__)(*args, **options)

    return call


def plugin(name: str) -> Callable[..., Any]:
    """The function behind an entry point."""
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        raise JaxsinkError(f"the part of jaxsink that can {name} is not installed; install jaxsink again, as a whole.")
    return found[0].load()


@dataclass
class Conversion:
    """What a conversion did."""

    source: str
    target: str
    family: str
    dtype: str
    tensors: int
    parameters: int
    bytes: int
    revision: str | None = None
    warnings: list[str] = field(default_factory=list)
    verified: JsonObject | None = None


@checked(mask_id=at_least(0))
@outside
def convert(
    src: PathLike,
    dst: PathLike,
    *,
    dtype: DTypeLike | None = None,
    verify: bool = False,
    overwrite: bool = False,
    revision: str | None = None,
    ignore_settings: str | Iterable[str] = (),
    mask_id: int | None = None,
    is_stopped: IsStopped = never,
) -> Conversion:
    """Convert a PyTorch or GGUF checkpoint into one that `load` reads; it appears when it is complete.

    Args:
        src: a Hugging Face directory, a .gguf file or a hub id
        dst: a directory that does not exist yet, or gs://bucket/name
        dtype: of the weights; None: as stored
        verify: read everything back and compare it
        overwrite: replace dst, once the new checkpoint is complete
        revision: of a hub id: branch, tag or commit
        ignore_settings: as for `load`
        mask_id: as for `load`
        is_stopped: is asked between tensors; when it is true, nothing is left and StoppedError raised

    Examples:
        >>> done = jaxsink.convert("LLaDA-8B-Instruct", "llada", dtype="bfloat16", verify=True)
        >>> done.family, done.dtype
        ('llada', 'bfloat16')
    """
    ...


@checked(**STUDY_RANGES)
@outside
def study(
    names: str | Sequence[str] = (),
    model: str | Sequence[str] = (),
    out: PathLike = "jaxsink-study",
    *,
    full: bool = False,
    problems: int | None = None,
    generations: int | None = None,
    rows: int = 200,
    mesh: str | None = None,
    runs: PathLike | None = None,
    prompts: PathLike = "task",
    data_file: PathLike | None = None,
    allow_code_execution: bool = False,
    sandbox: Level = "namespaces",
    untrained: int = 8,
    answers: int | None = None,
    stepped: int | None = None,
    tokens: int | None = None,
    cache: str | None = None,
    longest: int | None = None,
    window: int = 96,
    seed: int = 0,
    mask_id: int | None = None,
    ignore_settings: Sequence[str] = (),
    is_stopped: IsStopped = never,
) -> tuple[list[Finding], Study]:
    """Run experiments on models, and write results, figures and a page; goes on with what is in `out`.

    Args:
        names: of experiments; none: the paper's, or with `full` all
        model: built-in names, hub ids or checkpoints; none: the built-in models
        full: all experiments, at full count
        problems: asked under each condition
        generations: recorded in full
        rows: sequences of a batch, about
        mesh: "DxM": cut checkpoints over devices, batch x weights
        runs: a directory of training runs, for the experiments on training
        prompts: "task" (built in), "gsm8k", "humaneval", "text", or a file: prompts, or JSON lines of "prompt" and "answer"
        data_file: of the benchmark, if it is already here, or the text
        allow_code_execution: humaneval's answers are programs; they run in the sandbox
        sandbox: its level: "namespaces", or "limits", which is weaker and never taken instead
        untrained: models with random weights that each model is held against; fewer than 4 are no null
        answers: problems that are answered where every answer is dear (protocol); None: all, 0: none
        stepped: given answers that an autoregressive model writes step by step (protocol); None: all
        tokens: that models write, and that given answers have at most; None: as each model's sampler has it
        cache: "prefix" or "dual": diffusion models like LLaDA and Dream write on cached keys and values
        longest: prompts of more tokens are not asked
        window: tokens of a text that are looked at together: the first half is given
        seed: of the problems and all draws
        mask_id: as for `load`
        ignore_settings: as for `load`
        is_stopped: is asked between batches; when it is true, StoppedError is raised; what is finished is kept

    Examples:
        >>> findings, study = jaxsink.study(["fig1"], "mini-llama", "fig1", problems=2, generations=2, untrained=0)
        >>> assert [finding.name for finding in findings] == ["fig1"]
    """
    ...
