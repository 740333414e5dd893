"""A batch is as good as its rows: the same text and statistics alone or together, however padded, windowed or compiled."""

from __future__ import annotations

import importlib
import re
from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively
from support.sampling import DropLargest, model_of

import jaxsink
from jaxsink import (
    AncestralSampler,
    ARSampler,
    BD3LMSampler,
    DreamSampler,
    FastDLLMv2Sampler,
    GIDDSampler,
    LLaDA2Sampler,
    LLaDASampler,
    MDLMSampler,
    NemotronSampler,
    SDARSampler,
    SpeculativeSampler,
)
from jaxsink.nn.batch import Batch
from jaxsink.recording import recorders as record
from jaxsink.recording import reductions as reduce
from jaxsink.sampling import execution, whole_run
from jaxsink.sampling.block_cache import head_queries
from jaxsink.sampling.execution import Program

generating = importlib.import_module("jaxsink.sampling.generate")
pytestmark = pytest.mark.usefixtures("quick_compilation")

PROMPTS = [np.random.default_rng(n).integers(4, 60, 1 if n % 3 else 7).tolist() for n in range(7)]  # of 1 or 7 tokens
HIDE = DropLargest()
SEEDS = list(range(7))
SETTINGS: dict[str, tuple[str, Any, Any]] = {
    "llada, quota": ("llada", LLaDASampler(8, 6, 4), None),
    "llada, threshold, noise, guidance": ("llada", LLaDASampler(8, 8, 8, 1.0, 0.5, threshold=0.2), None),
    "mmada, random remasking, noise, eos": (
        "mmada",
        LLaDASampler(8, 4, 4, 1.5, remasking="random", stop_at_eos=True, text_only=True),
        HIDE,
    ),
    "dream, entropy": ("dream", DreamSampler(8, 5, "entropy"), None),
    "dream, noise, filter, alg_temp": (
        "dream",
        DreamSampler(8, 5, "maskgit_plus", temperature=0.8, top_p=0.9, alg_temp=0.5),
        None,
    ),
    "dream, origin": ("dream", DreamSampler(8, 5, "origin", temperature=1.0), HIDE),
    "sdar": ("sdar", SDARSampler(8, threshold=0.1), None),
    "sdar, noise, eos": ("sdar", SDARSampler(8, threshold=0.3, temperature=1.0, stop_at_eos=True), HIDE),
    "nemotron": ("nemotron", NemotronSampler(8, 4), HIDE),
    "nemotron, threshold, noise": ("nemotron", NemotronSampler(8, 4, 0.3, temperature=1.0), None),
    "nemotron, both ways": ("nemotron", NemotronSampler(8, 4, 0.3, causal_context=False), HIDE),
    "speculation": ("nemotron", SpeculativeSampler(8, 4), HIDE),
    "speculation, threshold": ("nemotron", SpeculativeSampler(8, 4, 0.3), None),
    "mdlm": ("a2d", MDLMSampler(8, 6, 4, 0.5, stop_at_eos=True), HIDE),
    "bd3lm, noise, random remasking": (
        "a2d",
        BD3LMSampler(8, 6, 4, right_shift_logits=True, temperature=1.0, remasking="random", stop_at_eos=True),
        HIDE,
    ),
    "dream, dual cache": ("dream", DreamSampler(8, 6, "entropy", block_length=4, cache="dual"), HIDE),
    "fast_dllm": ("fast_dllm", FastDLLMv2Sampler(8, 4, 2, 0.15, stop_at_eos=False), HIDE),
    "fast_dllm, other blocks, eos": ("fast_dllm", FastDLLMv2Sampler(8, 6, 3, 0.1), None),
    "fast_dllm, block cache, eos": ("fast_dllm", FastDLLMv2Sampler(8, 4, 2, 0.15, use_block_cache=True), HIDE),
    "bd3lm, first hitting": ("bd3lm", AncestralSampler(8, top_p=0.9), None),
    "bd3lm, eos": ("bd3lm", AncestralSampler(8, stop_at_eos=True), HIDE),
    "mdlm, levels": ("mdlm", AncestralSampler(8, 6, temperature=0.7), HIDE),
    "gidd": ("gidd", GIDDSampler(8, 7), None),
    "gidd, hidden keys": ("gidd", GIDDSampler(8, 5), HIDE),
    "sdar with experts": ("sdar_moe", SDARSampler(8, threshold=0.1), None),
    "llada2": ("llada2", LLaDA2Sampler(8, 4, 4, threshold=0.1), None),
    "llada2, noise": ("llada2", LLaDA2Sampler(8, 4, 4, threshold=0.3, temperature=1.0), HIDE),
    "llada2, editing": ("llada2", LLaDA2Sampler(8, 4, threshold=0.2, editing_threshold=0.1, max_post_steps=3), None),
    "autoregressive, greedy": ("llama3.1", ARSampler(8), None),
    "autoregressive, noise, filters, whole map": (
        "llama3.1",
        ARSampler(8, temperature=1.0, top_p=0.9, top_k=40, whole_map=True),
        HIDE,
    ),
}
WANTED = {"received": record.received(), "top": record.received().then(reduce.top(2))}


@cache
def model_for(name: str) -> jaxsink.Model:
    """Those that stop at eos get some that they write early in some of the rows."""
    family, sampler, _ = SETTINGS[name]
    if not getattr(sampler, "stop_at_eos", False):
        return model_of(family)
    some = {"mmada": range(10, 40), "sdar": range(4, 10), "llama3.1": range(38, 54), "a2d": range(10, 35)}
    some |= {"fast_dllm": range(4, 10), "bd3lm": range(4, 30), "llada2": range(4, 8)}
    eos = some.get(family, range(10, 20))
    return lively(FAMILIES[family].replace(eos_ids=tuple(eos), pad_id=2), seed=3)


@cache
def together(name: str) -> jaxsink.Generation:
    _, sampler, intervene = SETTINGS[name]
    return jaxsink.generate(model_for(name), PROMPTS, sampler, record=WANTED, intervene=intervene, seed=SEEDS)


def same_row(batch: jaxsink.Generation, row: int, other: jaxsink.Generation, at: int) -> None:
    """The same tokens and steps at the real positions, and the same statistics."""
    ours, theirs = np.asarray(batch.mask)[row], np.asarray(other.mask)[at]
    assert ours.sum() == theirs.sum()
    for name in ("tokens", "committed_at"):
        mine, alone = np.asarray(getattr(batch, name))[row, ours], np.asarray(getattr(other, name))[at, theirs]
        np.testing.assert_array_equal(mine, alone)
    assert batch.steps[row] == other.steps[at]
    if batch.commits is not None:
        mine, alone = np.asarray(batch.commits)[:, row][:, ours], np.asarray(other.commits)[:, at][:, theirs]
        assert (mine[: batch.steps[row]] == alone[: batch.steps[row]]).all() and (mine[batch.steps[row] :] < 0).all()
    steps = min(len(batch.recorded_steps), len(other.recorded_steps))
    assert steps >= batch.steps[row]

    pairs = ((batch, row), (other, at))
    mine, alone = (np.asarray(out.record["received"])[:steps, :, r] for out, r in pairs)
    np.testing.assert_allclose(mine[..., ours], alone[..., theirs], atol=1e-5)
    assert (mine[..., ~ours] == 0).all()
    mine, alone = (out.real_at()[:steps, r] for out, r in pairs)
    np.testing.assert_array_equal(mine[:, ours], alone[:, theirs])
    mine, alone = (np.asarray(out.record["top"]["score"])[:steps, :, r] for out, r in pairs)
    np.testing.assert_allclose(mine, alone, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_a_batch_of_seven_is_seven_runs(name: str) -> None:
    _, sampler, intervene = SETTINGS[name]
    out = together(name)
    for row, prompt in enumerate(PROMPTS):
        alone = jaxsink.generate(model_for(name), [prompt], sampler, record=WANTED, intervene=intervene, seed=row)
        same_row(out, row, alone, 0)
    steps = np.asarray(out.steps)
    if getattr(sampler, "adaptive", False) or getattr(sampler, "stop_at_eos", False):
        assert len(set(steps.tolist())) > 1  # rows end apart, and the finished ones stay as they are
    if not isinstance(sampler, ARSampler):
        assert np.asarray(out.response).max() < (70 if getattr(sampler, "text_only", False) else 89)
        assert not (np.asarray(out.tokens) == 80).any()
    else:  # a row that has ended is padded
        for tokens, at, count in zip(np.asarray(out.response), np.asarray(out.committed_at)[:, 7:], steps, strict=True):
            assert at.tolist() == [*range(count), *[-1] * (8 - count)]
            assert (tokens[count:] == 2).all()
            assert count == 8 or tokens[count - 1] in model_for(name).config.eos_ids


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("sdar", "bd3lm, first hitting", "gidd", "autoregressive, greedy", "llada2", "llada2, editing"),
        "fast_dllm, other blocks, eos",
    ],
)
def test_padding_to_a_multiple_changes_nothing(name: str) -> None:
    _, sampler, _ = SETTINGS[name]
    padded = jaxsink.generate(model_for(name), PROMPTS, sampler, record=WANTED, seed=SEEDS, pad_to=8)
    assert padded.prompt_length == 8
    for row in range(7):
        same_row(together(name), row, padded, row)


@pytest.mark.parametrize(
    "name", ["llada, threshold, noise, guidance", "sdar", "bd3lm, first hitting", "gidd", "llada2"]
)
def test_the_head_on_the_window_is_the_whole_head(name: str, monkeypatch) -> None:
    """The same run with every position in the window, as masks in the prompt need it."""
    _, sampler, _ = SETTINGS[name]
    make_spec = generating.make_spec
    monkeypatch.setattr(generating, "make_spec", lambda *values: make_spec(*values)._replace(infill=True))
    out = jaxsink.generate(model_for(name), PROMPTS, sampler, seed=SEEDS)
    np.testing.assert_array_equal(out.tokens, together(name).tokens)
    np.testing.assert_array_equal(out.committed_at, together(name).committed_at)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_window_logits_are_the_head_of_their_positions(family: str) -> None:
    model, tokens = model_of(family), np.random.default_rng(0).integers(4, 60, (2, 10))
    out = jaxsink.forward(model, tokens)
    window = np.array([[3, 4, 5], [2, 3, 12]])  # the last one is out of range, and ineligible in the loop
    rows = head_queries(model.config, jnp.asarray(window), jnp.array([[0], [2]]), 10)
    shift = np.array([[2, 3, 4], [2, 2, 9]]) if family == "dream" else np.minimum(window, 9)
    np.testing.assert_array_equal(rows, shift)
    real = jnp.ones(tokens.shape, bool)
    batch = Batch.make(model.config, jnp.asarray(tokens), real)._replace(outputs=rows)
    expected = np.take_along_axis(np.asarray(out.logits), shift[..., None], axis=1)
    for which in (model, model.unrolled()):  # which leaves out the other rows of its last layer
        out = which(batch, recorders=(record.received(),))
        (received,) = out.record
        np.testing.assert_allclose(out.logits, expected, atol=1e-5)
        np.testing.assert_allclose(received.sum(axis=-1), 10, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llada, quota", "llada2, editing"])
def test_unrolled_and_blocked_models_write_the_same(name: str) -> None:
    model, sampler = model_for(name), SETTINGS[name][1]
    for changed, backend in ((model.unrolled(), None), (model, "blocked")):
        out = jaxsink.generate(changed, PROMPTS, sampler, record=WANTED, seed=SEEDS, backend=backend)
        for row in range(7):
            same_row(together(name), row, out, row)


def test_prompts_of_many_lengths_share_a_program() -> None:
    for family, sampler in (
        ("llada", LLaDASampler(4, 2, 4)),
        ("sdar", SDARSampler(4)),
        ("fast_dllm", FastDLLMv2Sampler(4, 4, 2)),
        ("llama3.1", ARSampler(4)),
    ):
        before = execution._advance.cache_size()
        for length in (1, 3, 4, 7, 8):
            out = jaxsink.generate(model_of(family), [list(range(4, 4 + length))], sampler, pad_to=8, seed=length)
            assert out.prompt_length == 8
        assert execution._advance.cache_size() == before + 1, family


class Stop(Exception):  # noqa: N818 - not an error
    pass


def program(monkeypatch: Any, sampler: Any, prompt: int, backend: str | None = None, family: str = "llada") -> Any:
    """The loop of one `generate` call, lowered but not run; and the bytes of its record."""
    caught: list[Any] = []

    def run(program: Program, canvas: Any, *rest: Any) -> Any:
        caught.append(program.lower(*canvas.shape, program.spec.total_steps))
        raise Stop

    monkeypatch.setattr(whole_run, "run", run)
    wanted, model = record.received().then(reduce.top(2)), model_of(family)
    model = model.with_config(model.config.replace(max_positions=512))
    with pytest.raises(Stop):
        jaxsink.generate(model, np.ones((2, prompt), int), sampler, record=wanted, backend=backend)
    return caught[0]


def test_memory_does_not_grow_with_steps_beyond_the_record(monkeypatch) -> None:
    """More steps on the same sequence: every array with a step axis is the record, packed or not, and so is all growth."""
    sizes, per_step = [], 3 * 2 * 6 * 2 * (4 + 4)  # L x B x H x k numbers and positions
    for steps in (61, 211):
        lowered = program(monkeypatch, LLaDASampler(64, steps, 64), 8)
        assert with_axis(steps, lowered) == {
            f"{steps}x3x2x{end}x{kind}" for end in ("6x2", "12") for kind in ("f32", "i32")
        }
        memory = lowered.compile().memory_analysis()
        sizes.append((memory.output_size_in_bytes, memory.temp_size_in_bytes))
    (output, temporary), (more_output, more_temporary) = sizes
    assert more_output - output == 150 * per_step
    assert more_temporary - temporary <= 150 * per_step
    lowered = program(monkeypatch, ARSampler(61), 8, family="llama3.1")
    assert with_axis(61, lowered) == {f"61x3x2x{end}x{kind}" for end in ("6x2", "12") for kind in ("f32", "i32")}


def with_axis(size: int, lowered: Any) -> set[str]:
    """The shapes that have an axis of this size."""
    return {shape for shape in re.findall(r"tensor<([^>]*)>", lowered.as_text()) if str(size) in shape.split("x")}


def test_blocked_attention_holds_no_square_map(monkeypatch) -> None:
    sampler = LLaDASampler(20, 5, 20)
    naive = program(monkeypatch, sampler, 281, "naive").as_text()
    blocked = program(monkeypatch, sampler, 281, "blocked").as_text()
    assert "301x301" in naive
    assert "301x301" not in blocked
    assert "128x301" in blocked
