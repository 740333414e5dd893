"""Kept keys and values of finished blocks change nothing: texts, steps and records are those of passes over everything."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively
from support.sampling import DropLargest

import jaxsink
from jaxsink import BD3LMSampler, ModelConfig, NemotronSampler, SDARSampler
from jaxsink.nn.recorder import Recorder
from jaxsink.planner.job import Job
from jaxsink.recording import recorders as record
from jaxsink.recording import reductions as reduce
from jaxsink.recording.shuffled import received_random_split
from jaxsink.sampling.context_cache import keeps_context
from jaxsink.sampling.run import RunSpec

pytestmark = pytest.mark.usefixtures("quick_compilation")

PROMPTS = [np.random.default_rng(n).integers(4, 60, n).tolist() for n in (7, 1, 3, 6)]
ENDING = {"eos_ids": tuple(range(10, 14)), "pad_id": 2}
WANTED = {
    "received": record.received(),
    "kinds": record.received_by_query(),
    "added": record.contribution(),
    "own": record.diagonal(),
    "why": record.logit_parts().at([2, 0]),
    "top": record.received().then(reduce.top(2)),
    "counts": record.received().then(reduce.sink_counts((0.5, 1.0))),
}


@dataclass(frozen=True)
class WholeNemotron(NemotronSampler):
    def keeps(self, config: ModelConfig) -> bool:
        return False


@dataclass(frozen=True)
class WholeBD3LM(BD3LMSampler):
    def keeps(self, config: ModelConfig) -> bool:
        return False


WHOLE = {NemotronSampler: WholeNemotron, BD3LMSampler: WholeBD3LM}
CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "quota": ("nemotron", {}, NemotronSampler(8, 4)),
    "threshold, one kv head": ("nemotron", {"kv_heads": 1}, NemotronSampler(12, 6, 0.12)),
    "eos": ("nemotron", ENDING, NemotronSampler(12, 4, 0.3)),
    "both ways": ("nemotron", {}, NemotronSampler(12, 4, 0.12, causal_context=False)),
    "both ways, noise": ("nemotron", ENDING, NemotronSampler(8, 2, causal_context=False, temperature=1.0)),
    "bd3lm": ("a2d", {"eos_ids": tuple(range(10, 35)), "pad_id": 2}, BD3LMSampler(11, 8, 4, stop_at_eos=True)),
    "bd3lm, experts": ("sdar_moe", {"attention": "bidirectional", "block_length": None}, BD3LMSampler(8, 4, 4)),
}


@cache
def made(name: str) -> tuple[jaxsink.Model, Any, Any]:
    """(model, sampler, the sampler that runs everything in every step)."""
    family, changes, sampler = CASES[name]
    values = {field.name: getattr(sampler, field.name) for field in fields(sampler)}
    return lively(FAMILIES[family].replace(**changes), seed=3), sampler, WHOLE[type(sampler)](**values)


def run(model: jaxsink.Model, sampler: Any, **more: Any) -> jaxsink.Generation:
    return jaxsink.generate(model, PROMPTS, sampler, record=WANTED, seed=[3, 1, 4, 1], **more)


def assert_same(out: jaxsink.Generation, expected: jaxsink.Generation) -> None:
    for name in ("tokens", "committed_at", "steps", "mask"):
        np.testing.assert_array_equal(getattr(out, name), getattr(expected, name))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5, rtol=1e-5), out.record, expected.record)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_nothing_changes(name: str) -> None:
    model, sampler, whole = made(name)
    expected = run(model, whole)
    out = run(model, sampler)
    assert_same(out, expected)
    assert out.approximate is None
    apart = len(set(np.asarray(out.steps).tolist())) > 1  # sequences are in blocks of their own
    assert apart or name in ("quota", "bd3lm, experts")


@pytest.mark.slow
def test_chunks_unrolled_layers_and_rare_records() -> None:
    """What is kept goes from chunk to chunk, and grows in steps that nobody records."""
    model, sampler, whole = made("both ways")
    assert_same(run(model.unrolled(), sampler, every=2, stream=6), run(model, whole, every=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shape"), [("both ways", (2, 4)), ("eos", (1, 8)), ("bd3lm", (8, 1)), ("bd3lm, experts", (2, 4))]
)
def test_devices_change_nothing(name: str, shape: tuple[int, int]) -> None:
    model, sampler, _ = made(name)
    expected = run(model, sampler)
    assert_same(run(jaxsink.parallel.shard(model, jaxsink.parallel.make_mesh(*shape)), sampler), expected)
    if name == "both ways":
        assert_same(run(model, sampler, devices=jax.devices()[:2]), expected)


def spec(record: Any = None, intervene: Any = None, **more: Any) -> RunSpec:
    sizes = {"every": 1, "prompt_length": 4, "length": 12, "total_steps": 8, "backend": "naive", "mesh": None}
    return RunSpec.make(FAMILIES["nemotron"], record, intervene, **sizes)._replace(**more)  # pyright: ignore[reportArgumentType]


OWN = Recorder(lambda tap: tap.probs.sum(axis=2), "sum")
NEEDS_ALL: dict[str, tuple[Any, RunSpec]] = {
    "an intervention": (NemotronSampler(8, 4), spec(intervene=DropLargest())),
    "edits": (NemotronSampler(8, 4), spec(edit_tokens=lambda step, tokens: tokens)),
    "whole maps": (NemotronSampler(8, 4), spec(record.maps())),
    "the last query": (NemotronSampler(8, 4), spec(record.last_row())),
    "queries chosen anew in every step": (NemotronSampler(8, 4), spec(received_random_split())),
    "a recorder of the caller's": (NemotronSampler(8, 4), spec(OWN)),
    "a reduction of the caller's": (NemotronSampler(8, 4), spec(record.received().then(lambda value, tap: value))),
    "guidance": (BD3LMSampler(8, 8, 4, 0.5), spec()),
    "shifted logits": (BD3LMSampler(8, 8, 4, right_shift_logits=True), spec()),
    "a sampler that keeps nothing": (SDARSampler(8), spec()),
}


@pytest.mark.parametrize("name", NEEDS_ALL)
def test_what_needs_all_queries_runs_them(name: str) -> None:
    sampler, needed = NEEDS_ALL[name]
    assert not keeps_context(sampler, FAMILIES["nemotron"], needed)
    assert keeps_context(NemotronSampler(8, 4), FAMILIES["nemotron"], spec(WANTED))


def test_the_planner_knows_what_runs() -> None:
    job = Job(FAMILIES["nemotron"], NemotronSampler(8, 4), batch=2, prompt=20)
    assert (job.queries, job.cache_bytes) == (4, 2 * 28 * 2 * 3 * 2 * 10 * 2)
    assert job.replace(intervene=DropLargest()).queries == 28
