"""An evaluation by names, as the command line has them: `jaxsink.evaluate`.

jaxsink.evaluate("mini-llada", "task", "runs/llada", limit=200, k=(0, 1), select=("top", "random"))
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from jaxsink.checkpoints.gcs import local
from jaxsink.checkpoints.load import describe, describe_foreign, load, sampler_for
from jaxsink.checkpoints.storage import MANIFEST, Reader
from jaxsink.checks import at_least, check_fields
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError, check_keywords
from jaxsink.evals import engine
from jaxsink.evals.conditions import Condition, check_conditions, conditions
from jaxsink.evals.engine import Evaluation
from jaxsink.evals.results import read_evaluation
from jaxsink.evals.settings import EvalSetting, get_setting
from jaxsink.evals.summary import summarise
from jaxsink.evals.tables import write_tables
from jaxsink.nn.config import ModelConfig
from jaxsink.parallel.mesh import choose_devices, mesh_from
from jaxsink.planner.here import find_place
from jaxsink.planner.workload import exam_workload
from jaxsink.runs.files import user_path
from jaxsink.runs.stopping import IsStopped, never
from jaxsink.sandbox.levels import Level
from jaxsink.sandbox.levels import describe as describe_sandbox
from jaxsink.sandbox.runner import check_sandbox
from jaxsink.sinks.choices import RankOn, Rows, RuleName
from jaxsink.tasks.benchmarks import Example, load_benchmark
from jaxsink.tasks.exam import (
    CANVASES,
    TASK,
    TASK_QUESTIONS,
    TEXT,
    Exam,
    benchmark_exam,
    choose,
    gold_exam,
    task_exam,
    text_exam,
)
from jaxsink.tasks.vocabulary import tokenizer as task_tokenizer
from jaxsink.text.tokenizer import Tokenizer
from jaxsink.zoo.resolve import resolve, usual_dtype

PathLike = str | os.PathLike[str]
RANGES = {
    **dict.fromkeys(("limit", "subset", "canvases", "rows", "devices"), at_least(1)),
    **dict.fromkeys(("k", "subset_seed", "mask_id"), at_least(0)),
    "window": at_least(2),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be chosen of an evaluation; `jaxsink evaluate --help` says what each means, by the same names."""

    data_file: PathLike | None = None
    train_file: PathLike | None = None
    data_dir: PathLike | None = None
    limit: int | None = None
    subset: int | None = None
    subset_seed: int = 0
    k: Sequence[int | float] = (0, 1, 5, 10)
    select: Sequence[str] = ("top", "random", "bottom")
    rank_on: RankOn = "masked"
    rule: RuleName | None = None
    mask_rows: Rows | None = None
    gold: bool = False
    canvases: int = CANVASES
    text: PathLike | None = None
    window: int = 256
    eps: float | None = 3.0
    seed: int = 0
    rows: int | None = None
    devices: int | None = None
    mesh: str | None = None
    dtype: str | None = None
    shard: tuple[int, int] = (1, 1)
    allow_code_execution: bool = False
    sandbox: Level = "namespaces"
    mask_id: int | None = None
    ignore_settings: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_fields(self, "evaluate", RANGES)

    @property
    def reading(self) -> dict[str, Any]:
        return {"mask_id": self.mask_id, "ignore_settings": self.ignore_settings}

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What is compared. A rule has the ε of the sinks that are counted; 3 if none are."""
        eps = 3.0 if self.eps is None else self.eps
        return conditions(self.k, self.select, self.rank_on, self.rule, self.mask_rows, eps)


@checked()
def evaluate(
    model: PathLike,
    setting: str,
    out: PathLike,
    *,
    summary: bool = False,
    is_stopped: IsStopped = never,
    say: Callable[[str], object] = lambda text: None,
    **options: Any,
) -> dict[str, Any]:
    """Ask a model the questions of a setting under all conditions, and sum up; goes on with what is in `out`.

    Args:
        model: a built-in name, a checkpoint or a hub id
        setting: a name such as "llada-8b-instruct/gsm8k/study", "task" for the built-in word problems, or
            "text" for the windows of a text
        summary: only sum up what is there
        say: is told what is about to run
        **options: see `Options`

    Examples:
        >>> results = jaxsink.evaluate("mini-llada", "task", "runs/two", limit=2, k=(0,))
        >>> results["conditions"][0]["condition"]
        'K = 0'
    """
    check_keywords("evaluate", options, (field.name for field in fields(Options)))
    chosen = Options(**options)
    model, folder = os.fspath(model), local(out, "--out")
    if summary:
        return sum_up(folder, setting, tokenizer_of(model, setting))
    job = prepare(model, setting, chosen, say)
    engine.evaluate(job, folder, is_stopped)
    return sum_up(folder, setting, job.exam.tokenizer)


def prepare(model: str, setting: str, options: Options, say: Callable[[str], object]) -> Evaluation:
    """Everything that can go wrong goes wrong before the weights are read."""
    if runs_programs(setting, options):
        check_leave(setting, options)
        say(describe_sandbox(options.sandbox))
    if (setting == TEXT) != (options.text is not None):
        raise JaxsinkError(
            f"the setting {TEXT} and --text FILE belong together: the one says what to do with the other."
        )
    wanted = options.conditions
    devices, mesh = choose_place(options.mesh, options.devices)
    config = describe(model, **options.reading)[0]
    exam = choose_exam(model, setting, config, options)
    exam = gold_exam(exam, options.canvases) if options.gold or setting == TEXT else exam
    check_conditions(wanted, config, exam.sampler, [len(question.prompt) for question in exam.questions])
    work = exam_workload(exam, config, wanted, options.eps, options.dtype or loaded_dtype(model))
    found = jax.devices() if mesh is None else list(mesh.devices.flatten())
    place = find_place(work, found, options.rows, mesh, devices)
    say(place.describe(work))
    loaded = load(model, dtype=options.dtype, mesh=place.mesh, **options.reading)
    return Evaluation(loaded, exam, wanted, options.seed, options.eps, place.rows, place.devices, options.shard)


def sum_up(out: Path, setting: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """The results so far; results.json and the tables are written anew."""
    name = read_evaluation(out)["exam"]["name"]
    if name != setting:
        raise JaxsinkError(f"{out} holds an evaluation of {name}, not of {setting}; name that setting.")
    results = summarise(out, tokenizer.token)
    if not results["gold"]:
        write_tables(out, [results])
    return results


def runs_programs(setting: str, options: Options) -> bool:
    """Answers are programs, and are asked for."""
    return setting not in (TASK, TEXT) and not options.gold and get_setting(setting).runs_programs


def check_leave(setting: str, options: Options) -> None:
    """Programs need leave to run, and a machine that can confine them as they are to be."""
    if not options.allow_code_execution:
        raise JaxsinkError(
            f"{setting} is graded by running programs that the model writes; read in docs/sandbox.md how they are "
            "confined, then give --allow-code-execution."
        )
    check_sandbox(options.sandbox)


def choose_place(mesh: str | None, count: int | None) -> tuple[Sequence[Any] | None, Mesh | None]:
    """(devices for pmap or None, mesh or None), as far as that was asked for; a CPU uses all its devices."""
    if mesh is not None:
        return None, mesh_from(mesh)
    devices = choose_devices(count)
    decided = count is not None or devices[0].platform == "cpu"
    return (devices if decided and len(devices) > 1 else None), None


def choose_exam(model: str, setting: str, config: ModelConfig, options: Options) -> Exam:
    """The questions that were asked for, ready for the model."""

    def chosen(total: int) -> list[int]:
        return choose(total, options.limit, options.subset, options.subset_seed)

    if setting == TASK:
        return task_exam(config, chosen(max(TASK_QUESTIONS, options.limit or 0)), sampler_for(model))
    tokenizer = Tokenizer.load(model)
    if setting == TEXT:
        assert options.text is not None
        return text_exam(user_path(options.text), options.window, tokenizer, config, chosen)
    known = get_setting(setting)
    examples, train = benchmark_questions(known, options.data_file, options.train_file, options.data_dir)
    asked = [examples[number] for number in chosen(len(examples))]
    return benchmark_exam(known, asked, tokenizer, config, train, options.allow_code_execution, options.sandbox)


def benchmark_questions(
    setting: EvalSetting, data_file: PathLike | None, train_file: PathLike | None, data_dir: PathLike | None = None
) -> tuple[list[Example], list[Example]]:
    """(test questions, training questions if the setting shows some)."""
    examples = load_benchmark(setting.benchmark, "test", data_file, data_dir)
    shown = setting.shots.total > 0
    return examples, load_benchmark(setting.benchmark, "train", train_file, data_dir) if shown else []


def tokenizer_of(model: str, setting: str) -> Tokenizer:
    """For a summary, which needs the names of tokens but no weights."""
    if setting == TASK:
        return task_tokenizer()
    if setting != TEXT:
        get_setting(setting)
    return Tokenizer.load(model)


def loaded_dtype(model: str) -> str:
    """Of a checkpoint's weights, if no type is asked for."""
    path = resolve(model)
    if usual := usual_dtype(path):
        return usual
    return Reader(path).dtype if (path / MANIFEST).is_file() else describe_foreign(path)[1] or "float32"
