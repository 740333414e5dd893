"""Every text that the PyTorch models' own samplers generated, canvas by canvas, and the three we do not follow."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from support.golden import MODELS, golden
from support.reference.samplers import eyes, slow_dream, slow_llada

import jaxsink
from jaxsink import (
    ARSampler,
    BD3LMSampler,
    DreamSampler,
    FastDLLMv2Sampler,
    LLaDA2Sampler,
    LLaDASampler,
    MDLMSampler,
    NemotronSampler,
    SpeculativeSampler,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

MASK = 500
DEFECTS = ("gen_prompt_has_mask", "gen_infill_uneven", "gen_fast_eot")
CASES = [
    (name, case)
    for name in MODELS
    for case in sorted({key.split(".")[0] for key in golden(name).arrays if key.startswith("gen")})
    if case not in (*DEFECTS, "gen_hooks")
]


def sampler_of(name: str, case: str) -> Any:
    settings = golden(name).meta["cases"][case]
    kinds = {"llada_tiny": LLaDASampler, "mmada_tiny": LLaDASampler, "dream_tiny": DreamSampler}
    kinds |= {"fastdllm_v2_tiny": FastDLLMv2Sampler, "llada_moe_tiny": LLaDASampler}
    kinds |= dict.fromkeys(("llada2_moe_gen_tiny", "llada21_moe_tiny"), LLaDA2Sampler)
    called = {"MDLMSampler.sample": MDLMSampler, "BD3LMSampler.sample": BD3LMSampler}
    called |= {"generate": NemotronSampler, "ar_generate": ARSampler, "linear_spec_generate": SpeculativeSampler}
    kind = kinds.get(name) or called.get(settings.get("function", settings.get("sampler")))
    if kind is None:
        return ARSampler(max_new_tokens=12, stop_at_eos=False)
    settings = {key.removeprefix("effective_"): value for key, value in settings.items()}
    names = kind.__dataclass_fields__
    return kind(**{key: value for key, value in settings.items() if key in names})


def draws_of(case: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The recorded random numbers, placed as (step, row, position)."""
    draws = {}
    if "rand" in case:
        draws["remask"] = case["rand"]
    if "noise_u" in case:
        draws["token"] = case["noise_u"]
    if "rand_flat" in case:  # Dream's are packed: one after the other for the masks of the step
        canvases = [np.pad(case["prompt"], ((0, 0), (0, 16)), constant_values=MASK), *case["history"]]
        draws["transfer"] = np.ones(case["history"].shape, np.float32)
        for step, values in enumerate(case["rand_flat"]):
            masked = canvases[step] == MASK
            draws["transfer"][step][masked] = values[: masked.sum()]
    return draws


def run(name: str, case: str, **more: Any) -> jaxsink.Generation:
    expected = golden(name).case(case)
    mask = expected["attention_mask"].astype(bool) if "attention_mask" in expected else None
    model = golden(name).model
    prompts = expected["prompt"]
    if "prompt_lens" in expected:  # dllm's, of different lengths
        prompts = [prompt[:n].tolist() for prompt, n in zip(prompts, expected["prompt_lens"], strict=True)]
    return jaxsink.generate(model, prompts, sampler_of(name, case), mask, **more)


def same_canvases(out: jaxsink.Generation, expected: dict[str, np.ndarray]) -> None:
    """What the model saw at every step (LLaDA: before it; Dream: after it)."""
    rows = len(expected["output"])
    for step, canvas in enumerate(expected.get("step_inputs", ())):
        there = canvas[:rows] >= 0  # LLaDA2's ends with the block
        ours = out.canvas(step, MASK)[:, : canvas.shape[1]]
        np.testing.assert_array_equal(ours[there], canvas[:rows][there])  # guidance runs a second batch below
    for step, canvas in enumerate(expected.get("history", ())):
        np.testing.assert_array_equal(out.canvas(step + 1, MASK), canvas)


def same_small_blocks(out: jaxsink.Generation, expected: dict[str, np.ndarray]) -> None:
    """Fast-dLLM v2 runs one block in each step, after the pass over the prompt."""
    for step, block in enumerate(expected["forward_inputs"][1:]):
        canvas = out.canvas(step, MASK)[0]
        begin = (int(np.argmax(canvas == MASK)) - 1) // 8 * 8  # a full block predicts the next one's first token
        np.testing.assert_array_equal(canvas[begin : begin + 8], block[0])


def same_blocks(out: jaxsink.Generation, expected: dict[str, np.ndarray]) -> None:
    """Nemotron runs the prompt, and then one block in each step."""
    for step, ran in enumerate(expected["forward_inputs"][: int(out.steps[0])]):
        canvas, ids = np.asarray(out.canvas(step, MASK))[0], ran[0, ran[0] >= 0]
        assert any(np.array_equal(part, ids) for part in (canvas[:14], canvas[14:22], canvas[22:]))


def same_ragged(out: jaxsink.Generation, expected: dict[str, np.ndarray]) -> None:
    """dllm pads MDLM's prompts on the right with eos, and BD3LM's on the left to whole blocks; real tokens are compared."""
    left = (expected["step_canvases"][0] == 491).any()
    for step, canvas in enumerate(expected["step_canvases"]):
        for row, length in enumerate(expected["prompt_lens"]):
            theirs = canvas[row, canvas[row] >= 0]
            theirs = theirs[theirs != 491] if left else theirs[: length + 16]
            ours = np.asarray(out.canvas(step, MASK))[row, np.asarray(out.mask)[row]]
            np.testing.assert_array_equal(ours[: len(theirs)], theirs)


def test_no_case_is_missing() -> None:
    assert len(CASES) == 39


@pytest.mark.parametrize(("name", "case"), CASES)
def test_golden_generation(name: str, case: str) -> None:
    expected = golden(name).case(case)
    out = run(name, case, draws=draws_of(expected) or None)
    if "prompt_lens" in expected:
        same_ragged(out, expected)
        return
    length = expected["output"].shape[1]
    if isinstance(
        sampler_of(name, case), LLaDA2Sampler
    ):  # its answer alone, up to gen_length; ours ends with the block
        assert out.steps[0] == golden(name).meta["cases"][case]["forwards"]
        np.testing.assert_array_equal(out.response[:, :length], expected["output"])
        edits = np.maximum(out.times_committed() - 1, 0).sum()
        assert edits == golden(name).meta["cases"][case]["edits"]
    else:
        assert out.tokens.shape[1] == length or name == "fastdllm_v2_tiny"  # it counts a block of the prompt as written
        np.testing.assert_array_equal(np.asarray(out.tokens)[:, :length], expected["output"])
    same_canvases(out, expected)
    if isinstance(sampler_of(name, case), NemotronSampler):
        same_blocks(out, expected)
    if isinstance(sampler_of(name, case), FastDLLMv2Sampler):
        same_small_blocks(out, expected)


def test_autoregressive_on_weights_of_three_modes() -> None:
    """ARSampler runs Nemotron causally by itself: tokens, records and interventions are those of the causal model."""
    expected, sampler = golden("nemotron_labs_diffusion_tiny").case("gen_ar"), ARSampler(16, stop_at_eos=False)
    model, prompts = golden("nemotron_labs_diffusion_tiny").model, [expected["prompt"][0].tolist(), [7, 8, 9]]
    how = {"record": jaxsink.record.received(), "intervene": jaxsink.sinks.MaskSinks(k=1, rows="all")}
    for more in ({"record": how["record"]}, how):
        ours = jaxsink.generate(model, prompts, sampler, **more)
        causal = jaxsink.generate(model.with_attention("causal"), prompts, sampler, **more)
        np.testing.assert_array_equal(ours.tokens, causal.tokens)
        np.testing.assert_array_equal(ours.record, causal.record)
        assert ours.autoregressive
    assert model.config.attention == "bidirectional"


def test_golden_hooks() -> None:
    """Dream's two hooks: on the shifted logits, and on the tokens before the first step and after each."""
    expected = golden("dream_tiny").case("gen_hooks")
    out = run(
        "dream_tiny",
        "gen_hooks",
        edit_logits=lambda step, logits, position: logits.at[..., :100].add(-5),
        edit_tokens=lambda step, tokens: tokens.at[:, -1].set(77),
    )
    np.testing.assert_array_equal(out.tokens, expected["output"])
    same_canvases(out, expected)


def test_masks_in_the_prompt_are_filled_and_counted() -> None:
    """The original's quota leaves them out, so it ends with three masks in the text."""
    fixture = golden("llada_tiny")
    case, sampler = fixture.case("gen_prompt_has_mask"), sampler_of("llada_tiny", "gen_prompt_has_mask")
    assert (case["output"] == MASK).sum() == 3
    out = run("llada_tiny", "gen_prompt_has_mask")
    given = np.pad(case["prompt"] != MASK, ((0, 0), (0, 16)))
    assert (~given[:, :10]).any()
    assert not (np.asarray(out.tokens) == MASK).any()
    np.testing.assert_array_equal(np.asarray(out.tokens)[:, :10][given[:, :10]], case["prompt"][given[:, :10]])
    assert (np.asarray(out.committed_at)[given] == -1).all()
    for row, prompt in enumerate(case["prompt"]):
        at, extra = np.asarray(out.committed_at)[row], int((prompt == MASK).sum())
        assert (at == 0).sum() == -(-(4 + extra) // 2)
        assert (at == 1).sum() == (4 + extra) // 2
        assert [(at == step).sum() for step in range(2, 8)] == [2] * 6
        assert (at[:10] <= 1).all()  # with the first block
        slow = slow_llada(eyes(fixture.model), fixture.model.config, prompt, sampler)
        assert (slow.tokens, slow.at) == (np.asarray(out.tokens)[row].tolist(), at.tolist())


def test_rows_with_uneven_masks_have_their_own_quota() -> None:
    """The original shares the mean over the batch, leaves masks, and masks committed tokens again."""
    fixture = golden("dream_tiny")
    case, sampler = fixture.case("gen_infill_uneven"), sampler_of("dream_tiny", "gen_infill_uneven")
    assert [(row == MASK).sum() for row in case["output"]] == [2, 1]
    out = run("dream_tiny", "gen_infill_uneven")
    assert not (np.asarray(out.tokens) == MASK).any()
    for row, prompt in enumerate(case["prompt"]):
        slow = slow_dream(eyes(fixture.model), fixture.model.config, prompt, sampler)
        assert (slow.tokens, slow.at) == (
            np.asarray(out.tokens)[row].tolist(),
            np.asarray(out.committed_at)[row].tolist(),
        )
        alone = jaxsink.generate(fixture.model, prompt[None], sampler)
        np.testing.assert_array_equal(alone.tokens[0], out.tokens[row])
        np.testing.assert_array_equal(alone.committed_at[0], out.committed_at[row])


def test_a_row_that_stops_early_is_finished() -> None:
    """The original leaves masks behind the block that ends in eot, and stops only if every row does."""
    fixture = golden("mmada_tiny")
    case, sampler = fixture.case("gen_fast_eot"), sampler_of("mmada_tiny", "gen_fast_eot")
    sampler = LLaDASampler(sampler.gen_length, sampler.steps, sampler.block_length, stop_at_eos=True)
    assert (case["output"][0, 14:] == MASK).all()
    config = fixture.model.config.replace(eos_ids=(260,))
    model = jax.tree.unflatten(jax.tree.structure(jaxsink.abstract(config)), jax.tree.leaves(fixture.model))
    both = fixture.case("gen_block")  # its first prompt is that of gen_fast_eot
    np.testing.assert_array_equal(both["prompt"][:1], case["prompt"])
    out = jaxsink.generate(model, both["prompt"], sampler)
    np.testing.assert_array_equal(out.tokens[0, :14], case["output"][0, :14])
    assert out.tokens[0, 13] == 260
    assert (np.asarray(out.tokens)[0, 14:] == 260).all()
    np.testing.assert_array_equal(out.tokens[1], both["output"][1])  # the other row knows nothing of it
    assert np.asarray(out.steps).tolist() == [2, 8]
