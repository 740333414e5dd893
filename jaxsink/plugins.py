"""Functions whose work is done outside this package: jaxsink finds it by entry point, and imports it when it is called."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from jaxsink.errors import JaxsinkError
from jaxsink.runs.stopping import IsStopped, never
from jaxsink.sandbox.levels import Level

if TYPE_CHECKING:
    from jax.typing import DTypeLike

    from jaxsink.study import Finding, Study

PathLike = str | os.PathLike[str]
GROUP = "jaxsink.functions"


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
    verified: dict[str, Any] | None = None


def convert(
    src: PathLike,
    dst: PathLike,
    *,
    dtype: DTypeLike | None = None,
    verify: bool = False,
    overwrite: bool = False,
    revision: str | None = None,
    ignore_settings: Iterable[str] = (),
    mask_id: int | None = None,
    is_stopped: IsStopped = never,
) -> Conversion:
    """Convert a PyTorch or GGUF checkpoint into one that `load` reads; it appears when it is complete.

    src         a Hugging Face directory, a .gguf file or a hub id
    dst         a directory that does not exist yet, or gs://bucket/name
    dtype       of the weights; None: as stored
    verify      read everything back and compare it
    overwrite   replace dst, once the new checkpoint is complete
    revision    of a hub id: branch, tag or commit
    ignore_settings, mask_id  as for `load`
    is_stopped  is asked between tensors; when it is true, nothing is left and StoppedError raised
    """
    options: dict[str, Any] = {"dtype": dtype, "verify": verify, "overwrite": overwrite, "revision": revision}
    options |= {"ignore_settings": ignore_settings, "mask_id": mask_id, "is_stopped": is_stopped}
    return plugin("convert")(src, dst, **options)


def study(
    names: Sequence[str] = (),
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

    names        of experiments; none: the paper's, or with `full` all
    model        built-in names, hub ids or checkpoints; none: the built-in models
    full         all experiments, at full count
    problems, generations  per condition, and recorded in full
    rows         sequences of a batch, about
    mesh         "DxM": cut checkpoints over devices, batch x weights
    runs         a directory of training runs, for the experiments on training
    prompts      "task" for the built-in problems, "gsm8k", "humaneval", "text", or a file of one's own (a prompt per line,
                 or JSON lines with "prompt" and "answer")
    data_file    of the benchmark, if it is already here, or the text
    allow_code_execution  humaneval's answers are programs; they run in the sandbox
    sandbox      its level: "namespaces", or "limits", which is weaker and never taken instead
    untrained    models with random weights that each model is held against; fewer than 4 are no null
    answers      problems that are answered where every answer is dear (protocol); None: all, 0: none
    stepped      given answers that the protocol experiment has an autoregressive model write step by step; None: all
    tokens       that models write, and that given answers have at most; None: as each model's sampler has it
    cache        "prefix" or "dual": diffusion models write with LLaDA's sampler on cached keys and values
    longest      prompts of more tokens are not asked
    window       tokens of a text that are looked at together: the first half is given
    seed         of the problems and all draws
    mask_id, ignore_settings  as for `load`
    is_stopped   is asked between batches; when it is true, StoppedError is raised, and nothing finished is lost
    """
    options: dict[str, Any] = {"full": full, "problems": problems, "generations": generations, "rows": rows}
    options |= {"mesh": mesh, "runs": runs, "seed": seed, "prompts": prompts, "data_file": data_file}
    options |= {"allow_code_execution": allow_code_execution, "sandbox": sandbox}
    options |= {"untrained": untrained, "answers": answers}
    options |= {"stepped": stepped, "tokens": tokens, "cache": cache, "longest": longest, "window": window}
    options |= {"mask_id": mask_id, "ignore_settings": ignore_settings, "is_stopped": is_stopped}
    return plugin("study")([names] if isinstance(names, str) else names, model, out, **options)


def plugin(name: str) -> Any:
    """The function behind an entry point."""
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        raise JaxsinkError(f"the part of jaxsink that can {name} is not installed; install jaxsink again, as a whole.")
    return found[0].load()
