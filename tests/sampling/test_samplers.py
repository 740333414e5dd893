"""The samplers against slow re-implementations that commit one position at a time, and the rules that always hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.configs import FAMILIES
from support.golden import golden
from support.models import lively
from support.reference.samplers import (
    eyes,
    slow_dream,
    slow_llada,
    slow_sdar,
)
from support.sampling import PROMPTS, model_of
from support.shape_checks import no_shape_checks

import jaxsink
from jaxsink import ARSampler, DreamSampler, JaxsinkError, LLaDASampler, SDARSampler
from jaxsink.sampling.canvas import Block, Commit
from jaxsink.sampling.schedules import dream_ratios, torch_linspace

pytestmark = pytest.mark.usefixtures("quick_compilation")


def drawn(steps: int, length: int, vocab: int = 89, kinds: tuple[str, ...] = ("token",)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(11)
    sizes = {"token": (steps, 2, length, vocab), "remask": (steps, 2, length), "transfer": (steps, 2, length)}
    return {kind: rng.random(sizes[kind]) for kind in kinds}


def agree(
    model: jaxsink.Model, slow: Any, sampler: Any, draws: Any = None, prompts: Any = PROMPTS
) -> jaxsink.Generation:
    """Both rows of the batch, token by token and step by step."""
    out = jaxsink.generate(model, prompts, sampler, draws=draws)
    for row, prompt in enumerate(prompts):
        expected = slow(eyes(model), model.config, prompt, sampler, draws, row)
        length = len(expected.tokens)
        assert np.asarray(out.tokens)[row, :length].tolist() == expected.tokens
        assert np.asarray(out.committed_at)[row, :length].tolist() == expected.at
        assert np.asarray(out.mask)[row].sum() == length
    return out


LLADA_SETTINGS = {
    "remainder": (LLaDASampler(12, 9, 4), None),  # quotas 2, 1, 1 in every block
    "noise, random remasking, more steps than tokens": (
        LLaDASampler(12, 20, 6, temperature=0.8, remasking="random"),
        drawn(20, 18, kinds=("token", "remask")),
    ),
    "noise, threshold": (LLaDASampler(12, 12, 6, temperature=0.3, threshold=0.12), drawn(12, 18)),
    "left to right": (LLaDASampler(12, 9, 4, remasking="left_to_right"), None),
    "left to right, threshold": (LLaDASampler(12, 12, 6, remasking="left_to_right", threshold=0.12), None),
}


@pytest.mark.parametrize("name", LLADA_SETTINGS)
def test_llada_step_by_step(name: str) -> None:
    sampler, draws = LLADA_SETTINGS[name]
    out = agree(model_of("llada"), slow_llada, sampler, draws)
    if sampler.threshold is not None:
        at = np.asarray(out.committed_at)[:, 6:]
        counts = [np.bincount(row).tolist() for row in at]
        assert any(1 in row for row in counts)  # some steps commit the surest position alone,
        assert any(max(row) > 1 for row in counts)  # and some more than one
        assert np.asarray(out.steps).tolist() == [len(row) for row in counts]


def unsure(step: Any, logits: Any, position: Any) -> Any:
    """Every second position would rather stay masked."""
    return logits.at[..., 80].add(jnp.where(position % 2 == 0, 100.0, 0.0))


def test_from_left_to_right_nothing_waits() -> None:
    """Not even a position that predicts the mask, which is the last one of its block otherwise."""
    model, sampler = model_of("llada"), LLaDASampler(12, 12, 6, remasking="left_to_right")
    assert model.config.mask_id == 80
    for chosen in (sampler, replace(sampler, remasking="low_confidence")):
        out = jaxsink.generate(model, PROMPTS, chosen, edit_logits=unsure)
        in_order = (np.asarray(out.committed_at)[:, 6:] == np.arange(12)).all()
        assert in_order == (chosen is sampler)
        assert not (np.asarray(out.response) == model.config.mask_id).any()


def test_mmada_with_guidance_keeps_to_text() -> None:
    """Guidance and the vocabulary restriction; the model would emit image codes without it."""
    model, sampler = model_of("mmada"), LLaDASampler(12, 6, 6, cfg_scale=1.5, text_only=True)
    out = agree(model, slow_llada, sampler)
    assert np.asarray(out.response).max() < model.config.text_vocab
    free = slow_llada(eyes(model), model.config, PROMPTS[0], LLaDASampler(12, 6, 6, cfg_scale=1.5))
    assert max(free.tokens[6:]) >= model.config.text_vocab


def test_eos_options() -> None:
    """No eos at all; and eos and eot last, though they are still written."""
    model = model_of("llada")
    plain = slow_llada(eyes(model), model.config, PROMPTS[0], LLaDASampler(12, 6, 12))
    assert {47, 18} <= set(plain.tokens[6:])
    never = agree(model, slow_llada, LLaDASampler(12, 6, 12, logits_eos_inf=True))
    assert not (np.asarray(never.response) == 47).any()
    late = agree(
        model, slow_llada, LLaDASampler(12, 4, 12, temperature=0.05, confidence_eos_eot_inf=True), drawn(4, 18)
    )
    written = np.isin(np.asarray(late.response), [47, 18])
    assert written.any()
    assert (np.asarray(late.committed_at)[:, 6:][written] == 3).all()


@pytest.mark.parametrize("threshold", [None, 0.14])
def test_a_row_stops_when_its_block_ends_in_eos(threshold: float | None) -> None:
    """Row 0 ends its first block in eos, and the rest of it is eos; row 1 goes on as if nothing had happened."""
    model, sampler = model_of("llada"), LLaDASampler(12, 6, 4, threshold=threshold)
    free = [slow_llada(eyes(model), model.config, prompt, sampler).tokens[6:] for prompt in PROMPTS]
    assert free[0][3] == 47
    assert free[1][3] != 47
    out = agree(model, slow_llada, replace(sampler, stop_at_eos=True))
    response = np.asarray(out.response)
    assert response.tolist() == [free[0][:4] + [47] * 8, free[1]]
    assert out.steps[0] < out.steps[1]


def end_first(step: Any, logits: Any, position: Any) -> Any:
    return logits.at[..., 47].add(jnp.where(position == 9, 100.0, 0.0))


def test_a_row_stops_only_when_its_block_is_full() -> None:
    """The eos at the end of the block is committed first; the block is filled all the same."""
    out = jaxsink.generate(model_of("llada"), PROMPTS, LLaDASampler(12, 6, 4, stop_at_eos=True), edit_logits=end_first)
    at, response = np.asarray(out.committed_at), np.asarray(out.response)
    assert (at[:, 9] == 0).all()
    assert (np.sort(at[:, 6:10]) == [0, 0, 1, 1]).all()
    assert (at[:, 10:] == 1).all()
    assert (response[:, 3:] == 47).all()
    assert (response[:, :3] != 47).any()
    assert np.asarray(out.steps).tolist() == [2, 2]


DREAM_SETTINGS = {
    "entropy, filters and noise": (DreamSampler(12, 8, "entropy", temperature=0.8, top_p=0.8, top_k=7), drawn(8, 18)),
    "maskgit_plus, more steps": (DreamSampler(12, 17, "maskgit_plus", top_k=5), None),
    "maskgit_plus, noise": (DreamSampler(12, 5, "maskgit_plus", temperature=1.3, alg_temp=0.0), drawn(5, 18)),
    "topk_margin": (DreamSampler(12, 12, "topk_margin", top_p=0.5), None),
    "origin": (DreamSampler(12, 7, "origin", temperature=0.5, eps=0.01), drawn(7, 18, kinds=("token", "transfer"))),
    "blocks": (DreamSampler(12, 9, "entropy", block_length=4), None),
    "blocks, origin": (
        DreamSampler(12, 8, "origin", temperature=0.5, block_length=6),
        drawn(8, 18, kinds=("token", "transfer")),
    ),
}


@pytest.mark.parametrize("name", DREAM_SETTINGS)
def test_dream_step_by_step(name: str) -> None:
    sampler, draws = DREAM_SETTINGS[name]
    agree(model_of("dream"), slow_dream, sampler, draws)


def test_dream_fills_each_row_by_its_own_quota() -> None:
    """Rows with different numbers of masks, one of them at the very first token."""
    prompts = PROMPTS.copy()
    prompts[0, [0, 3, 4]] = 80
    out = agree(model_of("dream"), slow_dream, DreamSampler(12, 5, "entropy"), prompts=prompts)
    assert [np.bincount(row[row >= 0]).tolist() for row in np.asarray(out.committed_at)] == [
        [2, 3, 3, 3, 4],
        [2, 2, 2, 2, 4],
    ]


SDAR_SETTINGS = {
    "threshold": (SDARSampler(9, threshold=0.15), None),
    "quota": (SDARSampler(9, steps_per_block=3, threshold=None), None),
    "noise": (SDARSampler(9, steps_per_block=2, threshold=0.3, temperature=0.7, top_k=6, top_p=0.8), drawn(20, 16)),
}


@pytest.mark.parametrize("name", SDAR_SETTINGS)
def test_sdar_step_by_step(name: str) -> None:
    """Six prompt tokens and blocks of four: the first block is half given, and the last one is completed."""
    sampler, draws = SDAR_SETTINGS[name]
    out = agree(model_of("sdar"), slow_sdar, sampler, draws)
    assert out.tokens.shape == (2, 16)
    assert not (np.asarray(out.tokens) == 80).any()


def test_sdar_blocks_count_from_the_first_real_token() -> None:
    """Rows of different lengths stand at different places of their blocks, and end apart."""
    model = model_of("sdar")
    prompts = [PROMPTS[0][:3].tolist(), PROMPTS[1].tolist()]
    sampler = SDARSampler(9, threshold=0.15)
    out = jaxsink.generate(model, prompts, sampler)
    assert out.tokens.shape == (2, 16)
    for row, prompt in enumerate(prompts):
        expected = slow_sdar(eyes(model), model.config, prompt, sampler)
        real = np.asarray(out.mask)[row]
        assert np.asarray(out.tokens)[row, real].tolist() == expected.tokens
        assert np.asarray(out.committed_at)[row, real].tolist() == expected.at
    assert np.asarray(out.mask).sum(axis=1).tolist() == [12, 16]


def test_sdar_stops_at_any_eos_of_a_full_block() -> None:
    model, sampler = model_of("sdar"), SDARSampler(9, threshold=0.15)
    free = slow_sdar(eyes(model), model.config, PROMPTS[0], sampler).tokens
    assert 57 in free[8:12]  # the second block of four,
    assert free[11] != 57  # though not at its end
    out = agree(model, slow_sdar, replace(sampler, stop_at_eos=True))
    np.testing.assert_array_equal(out.tokens[0], [*free[:12], *[57] * 4])
    assert np.asarray(out.steps).tolist() == [5, 4]


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 7, 16, 24, 128, 256, 768])
def test_dreams_schedule_is_that_of_torch_to_the_bit(steps: int) -> None:
    torch = pytest.importorskip("torch")
    for eps in (1e-3, 1e-5, 0.1):
        times = torch.linspace(1, eps, steps + 1)
        np.testing.assert_array_equal(torch_linspace(1, eps, steps + 1), times.numpy())
        ratio = (1 - times[1:] / times[:-1]).numpy()
        np.testing.assert_array_equal(dream_ratios(steps, eps)[:-1], ratio[:-1])
        assert dream_ratios(steps, eps)[-1] == 1


def test_dreams_schedule_without_torch() -> None:
    """Values of torch.linspace(1, 1e-3, n) that NumPy's linspace misses, and the quotas of the golden runs."""
    pinned = {
        (17, 9): 0.43806251883506775,
        (129, 7): 0.945367157459259,
        (129, 121): 0.0556328147649765,
        (257, 42): 0.8361015319824219,
        (769, 85): 0.8894335627555847,
        (769, 766): 0.003601562697440386,
    }
    assert {key: float(torch_linspace(1, 1e-3, key[0])[key[1]]) for key in pinned} == pinned
    for case, info in golden("dream_tiny").meta["cases"].items():
        if "transfers_per_step_row0" in info and case != "gen_infill_uneven":
            masks, counts = 16, []
            for ratio in dream_ratios(info["steps"], info["eps"]):
                counts.append(int(np.float32(masks) * ratio))
                masks -= counts[-1]
            assert counts == info["transfers_per_step_row0"], case


def love_mask(step: Any, logits: Any, position: Any) -> Any:
    return logits.at[..., 80].add(100.0)


def love_mask_at_even(step: Any, logits: Any, position: Any) -> Any:
    return logits.at[..., 80].add(jnp.where(position % 2 == 0, 100.0, 0.0))


@pytest.mark.parametrize(
    ("family", "sampler"),
    [
        ("llada", LLaDASampler(8, 4, 8)),
        ("dream", DreamSampler(8, 4, "entropy", top_k=1)),  # the filter keeps the mask alone
    ],
)
def test_a_model_that_predicts_the_mask_still_ends(family: str, sampler: Any) -> None:
    """The mask is never committed: all positions wait, so the order is from left to right, and take their best other
    token."""
    model = model_of(family)
    out = jaxsink.generate(model, PROMPTS, sampler, edit_logits=love_mask)
    at = np.asarray(out.committed_at)[:, 6:]
    expected = np.repeat(range(4), 2) if family == "llada" else np.repeat(range(4), (1, 2, 2, 3))
    assert (at == expected).all()
    for row, tokens in enumerate(np.asarray(out.tokens)):
        for step in range(4):
            logits = eyes(model)(out.canvas(step, 80)[row].tolist())[6:]
            logits[:, 80] = -np.inf
            assert (tokens[6:][at[row] == step] == logits.argmax(-1)[at[row] == step]).all()


@pytest.mark.parametrize(
    ("family", "sampler"),
    [
        ("llada", LLaDASampler(8, 8, 8, temperature=0.1, threshold=0.9)),
        ("dream", DreamSampler(8, 3, "topk_margin")),
        ("dream", DreamSampler(8, 5, "origin", temperature=1.0)),
        ("sdar", SDARSampler(8, threshold=None)),
    ],
)
def test_positions_that_predict_the_mask_wait(family: str, sampler: Any) -> None:
    """Even positions predict the mask, and are committed after the odd ones (of their block)."""
    out = jaxsink.generate(model_of(family), PROMPTS, sampler, edit_logits=love_mask_at_even)
    assert not (np.asarray(out.tokens) == 80).any()
    at = np.asarray(out.committed_at)
    odd, even = at[:, 7::2], at[:, 6::2]
    assert (at[:, 6:] >= 0).all()
    if isinstance(sampler, SDARSampler):
        blocks = at[:, 6:8], at[:, 8:12], at[:, 12:16]
        assert all((block[:, 1::2].max(axis=1) < block[:, ::2].min(axis=1)).all() for block in blocks)
    elif isinstance(sampler, DreamSampler) and sampler.alg == "origin":
        assert (even == 4).all()  # not before the last step
        assert (odd < 4).any()
    else:
        assert (odd.max(axis=1) <= even.min(axis=1)).all()
        assert (odd.max(axis=1) < even.max(axis=1)).all()


def test_quotas_blocks_and_steps() -> None:
    """Every response position is committed once, in its block, and as many per step as the quota says."""
    out = jaxsink.generate(model_of("llada"), PROMPTS, LLADA_SETTINGS["remainder"][0])
    at = np.asarray(out.committed_at)
    assert (at[:, :6] == -1).all()
    for row in at[:, 6:]:
        assert np.bincount(row).tolist() == [2, 1, 1] * 3
        assert (row // 3 == np.repeat([0, 1, 2], 4)).all()
    assert np.asarray(out.steps).tolist() == [9, 9]
    assert np.asarray(out.recorded_steps).tolist() == list(range(9))
    canvas = out.canvas(4, 80)
    assert ((canvas == 80) == (at >= 4)).all()
    assert (canvas[at < 4] == np.asarray(out.tokens)[at < 4]).all()


@pytest.mark.parametrize(
    ("family", "sampler"),
    [
        ("llada", LLaDASampler(6, 6, 6)),
        ("dream", DreamSampler(6, 6, "entropy")),
        ("sdar", SDARSampler(6)),
        ("llama3.1", ARSampler(6, stop_at_eos=False)),
    ],
)
def test_ties_go_to_the_lowest_id_and_to_the_left(family: str, sampler: Any) -> None:
    """A model without weights: all tokens and all positions are equally good. (Ties of certain positions, below.)"""
    config = FAMILIES[family].replace(mask_id=0) if family == "dream" else model_of(family).config
    model = jax.tree.map(jnp.zeros_like, lively(config))
    out = jaxsink.generate(model, PROMPTS, sampler)
    assert (np.asarray(out.tokens)[:, 6:] == (1 if family == "dream" else 0)).all()  # the mask is not taken
    at = np.asarray(out.committed_at)[:, 6:]
    assert (np.diff(at, axis=1) >= 0).all()
    assert (at[:, :6] == ([1, 2, 3, 4, 5, 5] if family == "dream" else range(6))).all()


def test_low_temperature_makes_dreams_order_left_to_right() -> None:
    """Its confidences come after the division by the temperature: they all round to the same number, and ties go left.
    LLaDA's confidence does not know the temperature, so its order stays."""
    out = jaxsink.generate(model_of("dream"), PROMPTS, DreamSampler(6, 6, "maskgit_plus", temperature=1e-4))
    assert (np.asarray(out.committed_at)[:, 6:] == [1, 2, 3, 4, 5, 5]).all()
    cold = jaxsink.generate(model_of("llada"), PROMPTS, LLaDASampler(6, 6, 6, temperature=1e-4))
    greedy = jaxsink.generate(model_of("llada"), PROMPTS, LLaDASampler(6, 6, 6))
    np.testing.assert_array_equal(cold.tokens, greedy.tokens)
    np.testing.assert_array_equal(cold.committed_at, greedy.committed_at)
    assert (np.diff(np.asarray(greedy.committed_at)[:, 6:], axis=1) < 0).any()


def test_seeds() -> None:
    """A seed gives the same text again, another seed another; a row with a seed of its own does as it would alone."""
    model, sampler = model_of("llada"), LLaDASampler(8, 4, 8, temperature=1.0)
    first, again, other = (jaxsink.generate(model, PROMPTS, sampler, seed=s) for s in (5, 5, 6))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    assert (np.asarray(first.response) != np.asarray(other.response)).any()
    both = jaxsink.generate(model, PROMPTS, sampler, seed=[5, 6])
    np.testing.assert_array_equal(both.tokens[0], first.tokens[0])
    np.testing.assert_array_equal(both.tokens[1], other.tokens[1])
    same = jaxsink.generate(model, np.stack([PROMPTS[0]] * 2), sampler, seed=[1, 2])
    assert (np.asarray(same.tokens[0]) != np.asarray(same.tokens[1])).any()
    last = jaxsink.generate(model, PROMPTS, sampler, seed=2**32 - 1)
    assert (np.asarray(last.response) != np.asarray(first.response)).any()


@dataclass(frozen=True)
class LeftToRight(jaxsink.DiffusionSampler):
    """A user's own sampler: the leftmost mask, one at a time."""

    gen_length: int

    @property
    def adaptive(self) -> bool:
        return True

    def check(self, config: Any) -> None: ...

    def total_steps(self, masks: int) -> int:
        return masks

    def window(self, config: Any) -> int:
        return 1

    def block(self, config: Any, canvas: Any) -> Block:
        first = jnp.argmax(canvas.masked, axis=1)
        return Block(first, first, first + 1)

    def decide(self, config: Any, logits: Any, window: Any, draws: Any) -> Commit:
        return Commit(logits.argmax(axis=-1), window.eligible)


def test_a_sampler_of_the_user() -> None:
    model = model_of("llada")
    out = jaxsink.generate(model, PROMPTS, LeftToRight(12))
    for prompt, tokens, at in zip(PROMPTS, np.asarray(out.tokens), np.asarray(out.committed_at), strict=True):
        canvas = [*prompt, *[80] * 12]
        for i in range(6, 18):
            canvas[i] = int(eyes(model)(canvas)[i].argmax())
        assert tokens.tolist() == canvas
        assert at[6:].tolist() == list(range(12))


def test_a_bfloat16_model_decides_in_float32() -> None:
    """Its logits are float32, and so are the confidences: the same rules, step by step."""
    model = model_of("llada").astype("bfloat16")
    agree(model, slow_llada, LLaDASampler(12, 6, 12))


def test_edits_may_fill_and_empty_the_canvas() -> None:
    """A token put back to the mask counts as not yet committed, and is filled again."""

    def edit(step: Any, tokens: Any) -> Any:
        for position, at, token in ((8, 0, 77), (2, 1, 33), (6, 2, 80), (15, 9, 80)):
            tokens = tokens.at[:, position].set(jnp.where(step == at, token, tokens[:, position]))
        return tokens

    out = jaxsink.generate(model_of("sdar"), PROMPTS, SDARSampler(10, threshold=0.9), edit_tokens=edit)
    tokens, at = np.asarray(out.tokens), np.asarray(out.committed_at)
    assert (tokens[:, 8] == 77).all()
    assert (at[:, 8] == 0).all()
    assert (tokens[:, 2] == 33).all()
    assert (at[:, :6] == -1).all()  # a changed prompt token is still the prompt's
    assert (tokens[:, 6] != 80).all()
    assert (at[:, 6] >= 3).all()
    assert (tokens[:, 15] == 80).all()  # in the last step
    assert (at[:, 15] == -1).all()


def test_edits_leave_finished_sequences_alone() -> None:
    """A mask that is put into one of them would never be filled."""
    model, sampler = model_of("llada"), LLaDASampler(8, 8, 8, threshold=0.15)
    plain = jaxsink.generate(model, PROMPTS, sampler)
    steps = np.asarray(plain.steps)
    first, quick = steps.min(), steps.argmin()
    assert first < steps.max()

    def edit(step: Any, tokens: Any) -> Any:
        return tokens.at[:, 6].set(jnp.where(step == first, 80, tokens[:, 6]))

    out = jaxsink.generate(model, PROMPTS, sampler, edit_tokens=edit)
    assert not (np.asarray(out.tokens) == 80).any()
    for name in ("tokens", "committed_at", "steps"):
        np.testing.assert_array_equal(getattr(out, name)[quick], getattr(plain, name)[quick])


@pytest.mark.parametrize(
    ("family", "sampler", "words"),
    [
        ("llada", LLaDASampler(10, 10, 4), "multiple of block_length"),
        ("llada", LLaDASampler(12, 10, 4), "10 steps"),
        ("llada", LLaDASampler(12, 12, 12, text_only=True), "text_vocab"),
        ("llada", LLaDASampler(12, 12, 12, temperature=-1.0), "temperature"),
        ("llada", LLaDASampler(12, 12, 12, remasking="high"), "high"),
        ("llada", LLaDASampler(12, 12, 12, cache="triple"), "triple"),
        ("llada", LLaDASampler(12, 12, 12, cache="dual", cfg_scale=1.0), "guidance"),
        ("llada", LLaDASampler(12, 12, 12, cache="dual", threshold=0.5, temperature=0.1), "random draws"),
        ("llada", LLaDASampler(12, 12, 12, cache="prefix", threshold=0.5, remasking="random"), "random draws"),
        ("llada", LLaDASampler(0, 12, 12), "gen_length must be a whole number from 1"),
        ("llama3.1", LLaDASampler(12, 12, 12), "no mask token"),
        ("dream", DreamSampler(12, 12, alg="surest"), "surest"),
        ("dream", DreamSampler(12, 12, top_p=1.5), "top_p"),
        ("dream", DreamSampler(12, 12, eps=0.0), "eps"),
        ("dream", DreamSampler(12, 12, block_length=5), "multiple of block_length 5"),
        ("dream", DreamSampler(12, 8, block_length=4), "8 steps"),
        ("dream", DreamSampler(12, 12, cache="triple"), "triple"),
        ("llada", SDARSampler(12), "block-causal"),
        ("sdar", SDARSampler(12, steps_per_block=5), "steps_per_block"),
        ("llada", ARSampler(12), "autoregressive"),
        ("llama3.1", ARSampler(12, top_k=-1), "top_k"),
    ],
)
def test_bad_settings_are_named(family: str, sampler: Any, words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        jaxsink.generate(model_of(family), PROMPTS, sampler)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompts": [[1, 2], []]}, "empty"),
        ({"prompts": np.ones((2, 3))}, "token ids"),
        ({"prompts": np.full((2, 3), 89)}, "89"),
        ({"mask": np.ones((2, 5), bool)}, "mask"),
        ({"mask": np.arange(6)[None] < [[6], [4]]}, "left"),
        ({"seed": [1, 2, 3]}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"every": 0}, "every"),
        ({"every": 2, "stream": 3}, "stream"),
        ({"draws": {"dice": np.ones(3)}}, "dice"),
        ({"draws": {"token": np.ones((4, 2, 10, 88))}}, r"\[T, B, S, V\] = \[4, 2, 10, 89\] .* not \[4, 2, 10, 88\]"),
        ({"draws": {"remask": np.ones((3, 2, 10))}}, r"\[4, 2, 10\] for this run, .* not \[3, 2, 10\]"),
        ({"draws": {"transfer": np.ones((4, 1, 10))}}, r"not \[4, 1, 10\]"),
        ({"pad_to": 0}, "pad_to"),
        ({"steam": 3}, "no keyword 'steam'; did you mean stream"),
        ({"colour": 3}, "no keyword 'colour'; there are every, stream"),
        ({"intervene": 3}, "intervene"),
        ({"intervene": jaxsink.DropPositions((0,), layers=(3,))}, "layer 3"),
        ({"backend": "flash"}, "flash"),
    ],
)
def test_bad_arguments_are_named(changes: dict, words: str) -> None:
    arguments = {"prompts": PROMPTS, "sampler": LLaDASampler(4, 4, 4)} | changes
    with no_shape_checks(), pytest.raises(JaxsinkError, match=words):
        jaxsink.generate(model_of("llada"), **arguments)


def test_padding_between_tokens_is_refused_where_blocks_are_counted() -> None:
    mask = np.ones(PROMPTS.shape, bool)
    mask[1, 2] = False
    with pytest.raises(JaxsinkError, match="padding between real tokens"):
        jaxsink.generate(model_of("sdar"), PROMPTS, SDARSampler(4), mask)
    assert jaxsink.generate(model_of("llada"), PROMPTS, LLaDASampler(4, 4, 4), mask).tokens.shape == (2, 10)


def test_a_cache_refuses_masks_in_the_prompt() -> None:
    prompts = PROMPTS.copy()
    prompts[0, 2] = 80
    with pytest.raises(JaxsinkError, match="cache"):
        jaxsink.generate(model_of("llada"), prompts, LLaDASampler(4, 4, 4, cache="dual"))
    with pytest.raises(JaxsinkError, match="edit_logits"):
        jaxsink.generate(model_of("llama3.1"), PROMPTS, ARSampler(4), edit_logits=love_mask)
