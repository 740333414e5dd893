"""A study by names: `jaxsink.study`.

findings, study = jaxsink.study(["fig7", "table1"], "mini-llada", "results", problems=50)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module

import jax
from jaxsink_experiments import DEFAULT_MODELS, FULL, ORDER, QUICK, SHORT, USUAL, short

from jaxsink.checkpoints.gcs import local
from jaxsink.errors import JaxsinkError
from jaxsink.parallel.mesh import make_mesh, mesh_from
from jaxsink.report import read_study, write_page
from jaxsink.runs.files import user_path
from jaxsink.runs.progress import stage
from jaxsink.runs.stopping import IsStopped, never
from jaxsink.sandbox.levels import Level
from jaxsink.study import Experiment, Finding, Study, subject
from jaxsink.study.experiments import experiment_of
from jaxsink.study.nulls import UNTRAINED
from jaxsink.study.prompts import TASK, WINDOW, find_prompts
from jaxsink.study.run import conduct


def conduct_study(
    names: str | Sequence[str] = (),
    model: str | Sequence[str] = (),
    out: str | os.PathLike[str] = "jaxsink-study",
    *,
    full: bool = False,
    problems: int | None = None,
    generations: int | None = None,
    rows: int = 200,
    mesh: str | None = None,
    runs: str | os.PathLike[str] | None = None,
    prompts: str | os.PathLike[str] = TASK,
    data_file: str | os.PathLike[str] | None = None,
    allow_code_execution: bool = False,
    sandbox: Level = "namespaces",
    untrained: int = UNTRAINED,
    answers: int | None = None,
    stepped: int | None = None,
    tokens: int | None = None,
    cache: str | None = None,
    longest: int | None = None,
    window: int = WINDOW,
    seed: int = 0,
    mask_id: int | None = None,
    ignore_settings: Sequence[str] = (),
    is_stopped: IsStopped = never,
) -> tuple[list[Finding], Study]:
    """See `jaxsink.study`."""
    models = [model] if isinstance(model, str) else model or DEFAULT_MODELS
    experiments = choose_experiments([names] if isinstance(names, str) else names, full)
    problems, generations = (
        usual if given is None else given
        for usual, given in zip(FULL if full else QUICK, (problems, generations), strict=True)
    )
    if untrained < 0:
        raise JaxsinkError(f"--untrained: there cannot be {untrained} models; 0 leaves that null out.")
    if min(answers or 0, stepped or 0) < 0 or (tokens or 1) < 1:
        raise JaxsinkError("--answers and --stepped are numbers of problems, or 0, and --tokens is at least 1.")
    if problems < 1 or generations < 2 or rows < 1:
        raise JaxsinkError("a study needs at least one problem, two generations and one sequence.")
    folder = local(out, "--out")
    training = None if runs is None else user_path(runs)
    if training is not None and not training.is_dir():
        raise JaxsinkError(f"--runs: {training} is not a directory; give the one that holds the training runs.")
    devices = mesh_from(mesh) if mesh is not None else make_mesh() if jax.device_count() > 1 else None
    asked = find_prompts(prompts, data_file, allow_code_execution, sandbox=sandbox, longest=longest, window=window)
    subjects = [
        replace(subject(name, devices, mask_id, ignore_settings), prompts=asked).writing(tokens, cache)
        for name in dict.fromkeys(models)
    ]
    for one in subjects:
        one.exam(generations, seed)  # what it cannot be asked is said at once
    study = Study(subjects, folder, problems, generations, rows, seed=seed, runs=training, untrained=untrained)
    study.answers, study.stepped = answers, stepped
    findings = conduct(study, experiments, is_stopped)
    with stage("writing the page"):
        write_page(read_study(study.folder), study.folder / "report.html")
    return findings, study


def choose_experiments(names: Sequence[str], full: bool = False) -> list[Experiment]:
    """Those named; else the paper's, or all."""
    unknown = [name for name in names if name not in SHORT]
    if unknown:
        raise JaxsinkError(f"there is no experiment {unknown[0]!r}; there are {', '.join(SHORT)}.")
    wanted = names or [short(module) for module in (ORDER if full else USUAL)]
    return [experiment_of(import_module(f"jaxsink_experiments.{SHORT[name]}")) for name in dict.fromkeys(wanted)]
