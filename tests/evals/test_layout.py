"""`plan` and `evaluate` agree: the shapes that are planned are those that reach the compiled program, on any mesh."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsink
from jaxsink.cli import evaluate as command
from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import conditions
from jaxsink.evals.engine import Evaluation, answers, batches, evaluate
from jaxsink.evals.layout import Bucket, batch_rows, layout
from jaxsink.evals.prompt_lengths import QUANTILES, estimated_lengths
from jaxsink.evals.settings import SETTINGS, EvalSetting, get_setting
from jaxsink.parallel import make_mesh, shard
from jaxsink.planner import here
from jaxsink.planner.choose import choices
from jaxsink.planner.compile import lower
from jaxsink.planner.topology import GIB, Topology
from jaxsink.planner.tpu import CHIPS, parse_slice
from jaxsink.planner.workload import Workload, exam_workload, published_workload, table_1_conditions
from jaxsink.runs.stopping import never
from jaxsink.sampling import execution, whole_run
from jaxsink.sampling.execution import Program
from jaxsink.tasks.exam import Exam, Question
from jaxsink.tasks.score import Score
from jaxsink.tasks.vocabulary import tokenizer
from jaxsink.zoo.presets import PRESETS

pytestmark = pytest.mark.usefixtures("quick_compilation")

MESHES = ((1, 1), (2, 1), (4, 1), (8, 1), (4, 2), (2, 4), (1, 8))
ROWS = (8, 13, 32, 80)
FAMILY = {
    "fast_dllm": "fast-dllm-v2-1.5b",
    "llada": "llada-8b-instruct",
    "dream": "dream-7b-instruct",
    "autoregressive": "llama-3.1-8b-instruct",
    "llada2": "llada2.0-mini",
    "sdar": "sdar-1.7b",
}
FAMILY |= dict.fromkeys(("nemotron", "speculative"), "nemotron-labs-diffusion-8b")
FAMILY |= {kind: f"qwen3-0.6b-diffusion-{kind}" for kind in ("mdlm", "bd3lm")}


@cache
def tiny(decoder: str, mesh: tuple[int, int]) -> jaxsink.Model:
    """A model of the kind that is next to nothing; only its shapes are looked at."""
    published = PRESETS[FAMILY[decoder]]
    sizes: dict[str, Any] = {"layers": 1, "width": 16, "heads": 8, "kv_heads": 8, "head_dim": 2, "mlp_width": 16}
    if published.experts is not None:
        sizes |= {"experts": None, "dense_layers": 0, "dense_width": None, "rotary_dim": None}
    ids = {"mask_id": 3 if published.is_diffusion else None, "eos_ids": (1,), "bos_id": 2, "pad_id": 0, "eot_id": 1}
    model = jaxsink.init(published.replace(vocab=tokenizer().size, text_vocab=64, **sizes, **ids))
    return shard(model, make_mesh(*mesh, jax.devices()[: mesh[0] * mesh[1]]))


def exam_of(setting: EvalSetting, count: int | None = None) -> Exam:
    """So many of the setting's questions, from the shortest to the longest, with prompts of the stored lengths."""
    stored = estimated_lengths(setting)
    lengths = stored if count is None else [stored[n] for n in np.linspace(0, len(stored) - 1, count).astype(int)]
    questions = [
        Question(n, f"q/{n}", (5,) * length, lambda text: Score(False, "")) for n, length in enumerate(lengths)
    ]
    return Exam(setting.name, tuple(questions), setting.sampler(), tokenizer(), {"setting": {}, "benchmark": "x"})


@dataclass
class Ran:
    """What reached the program of one batch."""

    shape: tuple[int, ...]
    prompt: int
    steps: int
    sampler: Any
    policies: list[int]


@pytest.fixture
def programs(monkeypatch) -> list[Ran]:
    """The batches that are run from here on; nothing is computed, the answers are empty."""
    seen: list[Ran] = []

    def run(program: Program, tokens: Any, inputs: Any, stream: Any, listener: Any, count: int) -> Any:
        spec, policy = program.spec, np.asarray(inputs.policy)
        assert tokens.shape[0] % len(program.devices or (None,)) == 0
        seen.append(Ran(tokens.shape, spec.prompt_length, spec.total_steps, program.sampler, policy.tolist()))
        if spec.mesh is not None:
            assert tokens.sharding.spec == jax.sharding.PartitionSpec("data")
        rows = np.zeros(tokens.shape[0], np.int32)
        carry = argparse.Namespace(
            tokens=np.asarray(tokens),
            committed_at=np.full(tokens.shape, -1),
            steps=rows,
            log_prob=jnp.zeros(tokens.shape),
            commits=None,
            broken=None,
        )
        return carry, ()

    monkeypatch.setattr(whole_run, "run", run)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_planned_is_what_runs(name: str, mesh: tuple[int, int], programs: list[Ran]) -> None:
    """Every setting and mesh, several --rows: rows, padding, response, steps and sampler of each batch."""
    setting = get_setting(name)
    model, exam = tiny(setting.decoder, mesh), exam_of(setting, count=5)
    wanted = table_1_conditions()
    for rows in ROWS:
        programs.clear()
        run = Evaluation(model, exam, wanted, eps=None, rows=rows)
        for batch in batches(run, set()):
            answers(run, batch, never)
        work = exam_workload(exam, model.config, wanted, None, "float32")
        planned = work.buckets(rows, mesh[0])
        jobs = [work.job(bucket) for bucket in planned for _ in range(bucket.batches)]
        ran = [(one.shape, one.prompt, one.steps, one.sampler) for one in programs]
        assert ran == [((job.batch, job.length), job.prompt, job.steps, job.sampler) for job in jobs]
        assert all(job.batch <= rows and job.batch % mesh[0] == 0 for job in jobs)
        assert sum(bucket.sequences for bucket in planned) == len(exam.questions) * len(wanted)
    assert len({policy for one in programs for policy in one.policies}) == len(wanted)


def test_published_and_asked_workloads_have_the_same_shapes() -> None:
    """The planner's workload, from stored lengths, is that of an evaluation with prompts of these lengths."""
    for setting in SETTINGS.values():
        config = PRESETS[FAMILY[setting.decoder]]
        config = config.replace(text_vocab=config.text_vocab or config.vocab)
        planned = published_workload(setting, config)
        asked = exam_workload(exam_of(setting), config, table_1_conditions(), 3.0, "bfloat16")
        for rows, share in ((32, 8), (80, 4), (13, 1)):
            assert planned.buckets(rows, share) == asked.buckets(rows, share)
        bucket = planned.buckets(32, 8)[0]
        assert planned.job(bucket) == asked.job(bucket)


def test_the_program_that_is_planned_is_the_one_that_the_engine_runs(monkeypatch, tmp_path: Path) -> None:
    """Not its shapes alone: the text of what is compiled, with masking, sinks counted along, and records streamed."""
    setting = get_setting("llada-8b-instruct/humaneval/study")
    options = {**dict(setting.options), "gen_length": 32, "steps": 32, "block_length": 8}
    model, mesh = tiny("llada", (4, 1)), make_mesh(4, 1, jax.devices()[:4])
    exam = replace(exam_of(setting, 3), sampler=jaxsink.LLaDASampler(**options))
    wanted = conditions((0, 2), ("top", "random"))
    advance, seen = execution._advance, []

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.append(advance.lower(*args, **kwargs).as_text())
        raise InterruptedError

    monkeypatch.setattr(execution, "_advance", spy)
    with pytest.raises(InterruptedError):
        evaluate(Evaluation(model, exam, wanted, rows=8), tmp_path)
    monkeypatch.undo()
    work = exam_workload(exam, model.config, wanted, 3.0, "float32")
    with jax.set_mesh(mesh):
        planned = lower(work.job(work.buckets(8, 4)[0]), mesh).as_text()
    assert functions(seen[0]) == functions(planned)


def functions(text: str) -> set[str]:
    """The program's functions. How they are numbered and in which order they stand depends on what the process traced
    before, and axes of length 1 may be named or not."""
    plain = re.sub(r"(@\w+?)_\d+\b", r"\1", re.sub('{"model"}', "{}", text))
    return set(plain.split("func.func "))


def test_rows_are_a_ceiling_and_batches_are_even() -> None:
    assert layout([1500, 1510, 1601], 10, 256, rows=32, share=8) == (
        Bucket(1664, 256, sequences=10, rows=16),
        Bucket(1536, 256, sequences=20, rows=24),
    )
    assert batch_rows(1000, 32, 8) == 32  # what used to be 80
    assert batch_rows(100, 80, 8) == 56  # two batches of 50, and not 80 and 20
    assert batch_rows(3, 80, 1) == 3
    for sequences in (1, 7, 90, 13190):
        for rows in (8, 9, 31, 80):
            for share in (1, 2, 4, 8):
                size = batch_rows(sequences, rows, share)
                batches = -(-sequences // size)
                assert size <= rows and size % share == 0
                assert batches == -(-sequences // (rows // share * share))
    with pytest.raises(JaxsinkError, match="at most 4 sequences cannot be shared by the 8 parts"):
        batch_rows(100, 4, 8)


def test_too_few_rows_for_the_mesh_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    setting = get_setting("dream-7b-instruct/gsm8k/study")
    model = tiny("dream", (8, 1))
    with pytest.raises(JaxsinkError, match="give --rows of at least 8"):
        Evaluation(model, exam_of(setting, 3), table_1_conditions(), rows=7)
    words = ["evaluate", "mini-llada", "task", "--out", str(tmp_path / "out"), "--rows", "7", "--mesh", "8x1"]
    with pytest.raises(JaxsinkError, match="give --rows of at least 8"):
        run_command(words)
    assert not (tmp_path / "out").exists()


def run_command(words: list[str]) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    args = parser.parse_args(words)
    return args.run(args)


def test_stored_lengths_are_of_all_settings_and_questions() -> None:
    assert set(QUANTILES) == set(SETTINGS)
    for setting in SETTINGS.values():
        lengths = estimated_lengths(setting)
        assert len(lengths) == {"gsm8k": 1319, "humaneval": 164}[setting.benchmark]
        assert list(lengths) == sorted(lengths)
        assert (lengths[0], lengths[-1]) == (QUANTILES[setting.name][0], QUANTILES[setting.name][-1])
    with pytest.raises(JaxsinkError, match="is not stored"):
        estimated_lengths(replace(setting, name="mine/gsm8k/own"))


def llada_work(dtype: str = "bfloat16") -> Workload:
    name = "llada-8b-instruct"
    return published_workload(get_setting(f"{name}/gsm8k/study"), PRESETS[name], dtype)


def test_the_cheapest_mesh_cuts_the_weights_no_more_than_memory_asks() -> None:
    work = llada_work()
    (v5e, *others), (v6e, *_) = (choices(work, parse_slice(f"{kind}:2x4"), jax.devices()) for kind in ("v5e", "v6e"))
    assert v5e.mesh == v6e.mesh == (8, 1) and v5e.fits and v6e.fits
    assert v5e.rows < v5e.wanted and v6e.rows == v6e.wanted  # 15 of 15.75 GiB are weights, there is room on a v6e
    assert [one.seconds for one in others] == sorted(one.seconds for one in others)
    (int8, *_) = choices(llada_work("int8"), parse_slice("v5e:2x4"), jax.devices())
    assert int8.rows > v5e.rows and int8.bytes < 0.75 * v5e.bytes
    (fixed,) = choices(work, parse_slice("v5e:2x4"), jax.devices(), (4, 2), 40)
    assert (fixed.mesh, fixed.rows) == ((4, 2), 40)
    small = Topology("small", replace(CHIPS["v5e"], hbm=GIB), 8)
    assert not any(one.fits for one in choices(work, small, jax.devices()))


class Device:
    """Stands for a device that says how much memory it has."""

    def __init__(self, device: Any, kind: str, memory: float) -> None:
        self.device, self.device_kind, self.memory = device, kind, memory

    def memory_stats(self) -> dict[str, float]:
        return {"bytes_limit": self.memory}


def test_evaluate_chooses_by_the_memory_of_the_devices(monkeypatch) -> None:
    """The same choice as the planner's; what was asked for stays."""
    work = llada_work()
    devices = [Device(device, "TPU v6 lite", 31.25 * GIB) for device in jax.devices()]
    monkeypatch.setattr(here, "make_mesh", lambda data, model, found: make_mesh(data, model, jax.devices()))
    monkeypatch.setattr(
        "jaxsink.planner.choose.make_mesh",
        lambda data, model, found: make_mesh(data, model, jax.devices()[: len(found)]),
    )
    place = here.find_place(work, devices, None, None, None)
    (planned, *_) = choices(work, parse_slice("v6e:2x4"), jax.devices())
    assert place.choice == planned and place.rows == planned.rows
    assert place.mesh is not None and (place.mesh.shape["data"], place.mesh.shape["model"]) == planned.mesh
    line = place.describe(work)
    assert "at most 80 rows a batch on a mesh of 8 x 1" in line and "of 31.2 GiB per device" in line
    assert "may not fit" not in line
    mesh = make_mesh(2, 4, jax.devices())
    asked = here.find_place(work, devices, 12, mesh, None)
    assert (asked.rows, asked.mesh) == (12, mesh)
    poor = [Device(device, "NVIDIA RTX", 1 * GIB) for device in jax.devices()]
    assert "this may not fit" in here.find_place(work, poor, 8, None, None).describe(work)
    one = here.find_place(work, devices[:1], None, None, None)
    assert one.mesh is None and one.devices is None and one.rows > 1
    pmapped = here.find_place(work, devices, None, None, devices[:2])
    assert pmapped.devices == devices[:2] and pmapped.choice is not None and pmapped.choice.mesh == (2, 1)


def test_a_cpu_keeps_its_defaults() -> None:
    work = llada_work()
    place = here.find_place(work, jax.devices(), None, None, jax.devices()[:2])
    assert (place.rows, place.mesh, place.choice) == (80, None, None) and "on 2 devices" in place.describe(work)
