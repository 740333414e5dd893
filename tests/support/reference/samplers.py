"""The samplers again, slowly: one position at a time, in float64, with lists and loops.

Written from the description of the originals; they share nothing with jaxsink but the logits, which `jaxsink.forward`
gives them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import jaxsink
from jaxsink import DreamSampler, FastDLLMv2Sampler, LLaDA2Sampler, LLaDASampler, SDARSampler
from support.reference.transformer import Slowly

See = Callable[[list[int]], np.ndarray]
Look = Callable[[list[int], int], np.ndarray]


def eyes(model: jaxsink.Model) -> See:
    """Logits f64[S,V] of one sequence; for Dream those that predict each position itself."""

    def see(tokens: list[int]) -> np.ndarray:
        logits = np.asarray(jaxsink.forward(model, np.array([tokens])).logits[0], np.float64)
        return np.concatenate([logits[:1], logits[:-1]]) if model.config.shift_logits else logits

    return see


def softmax(row: np.ndarray) -> np.ndarray:
    weight = np.exp(row - row.max())
    return weight / weight.sum()


def best_not(row: np.ndarray, mask_id: int) -> tuple[int, bool]:
    """(lowest id with the highest score that is not the mask, was the mask the best)."""
    ids = sorted(range(len(row)), key=lambda i: (-row[i], i))
    return (ids[1], True) if ids[0] == mask_id else (ids[0], False)


def surest(confidence: dict[int, float], count: int) -> list[int]:
    return sorted(confidence, key=lambda i: (-confidence[i], i))[:count]


class Slow:
    """A canvas of one row, filled position by position."""

    def __init__(self, config: Any, prompt: Any, length: int):
        self.config, self.step = config, 0
        self.tokens = [int(token) for token in prompt] + [config.mask_id] * length
        self.at = [-1] * len(self.tokens)
        self.seen: list[list[int]] = []
        self.ends: list[int] = []  # of each step: how much of the canvas the original runs, where blocks follow

    def masks(self, start: int, end: int) -> list[int]:
        return [i for i in range(start, end) if self.tokens[i] == self.config.mask_id]

    def commit(self, choice: dict[int, int], positions: list[int]) -> None:
        for i in positions:
            self.tokens[i], self.at[i] = choice[i], self.step
        self.step += 1


def slow_llada(see: See, config: Any, prompt: Any, s: LLaDASampler, draws: Any = None, row: int = 0) -> Slow:
    canvas = Slow(config, prompt, s.gen_length)
    given = [i for i, token in enumerate(canvas.tokens) if token != config.mask_id]
    blocks, done = s.gen_length // s.block_length, False
    steps = s.steps // blocks
    for block in range(blocks):
        end = len(prompt) + (block + 1) * s.block_length
        count = len(canvas.masks(0, end))
        for k in range(10**6 if s.threshold is not None else steps):
            masks = canvas.masks(0, end)
            if done or (s.threshold is not None and not masks):
                break
            logits = see(canvas.tokens)
            if s.cfg_scale:
                blind = [config.mask_id if i in given else token for i, token in enumerate(canvas.tokens)]
                logits = see(blind) + (s.cfg_scale + 1) * (logits - see(blind))
            choice, sure = {}, {}
            for i in masks:
                scores = logits[i].copy()
                if s.text_only:
                    scores[config.text_vocab :] = -np.inf
                if s.logits_eos_inf:
                    scores[config.eos_ids[0]] = -np.inf
                noisy = scores
                if s.temperature:
                    noisy = np.exp(scores) / (-np.log(draws["token"][canvas.step, row, i])) ** s.temperature
                choice[i], waits = best_not(noisy, config.mask_id)
                if s.confidence_eos_eot_inf:
                    scores[[config.eos_ids[0], config.eot_id]] = -np.inf
                sure[i] = softmax(scores)[choice[i]]
                if s.remasking == "random":
                    sure[i] = draws["remask"][canvas.step, row, i]
                if waits:
                    sure[i] = -1e30
            order = {i: float(-i) for i in masks} if s.remasking == "left_to_right" else sure
            if s.threshold is None:
                chosen = surest(order, count // steps + (1 if k < count % steps else 0))
            else:
                chosen = [i for i in masks if sure[i] >= s.threshold or i == surest(order, 1)[0]]
            canvas.commit(choice, chosen)
            if s.stop_at_eos and not canvas.masks(0, end) and canvas.tokens[end - 1] in config.eos_ids:
                done = True
                canvas.step -= 1
                rest = canvas.masks(0, len(canvas.tokens))
                canvas.commit(dict.fromkeys(rest, config.eos_ids[0]), rest)
    return canvas


def filtered(row: np.ndarray, top_p: float | None, top_k: int | None, k_first: bool) -> np.ndarray:
    """The row with what top-p and top-k remove at -inf."""

    def by_k(row: np.ndarray) -> np.ndarray:
        return np.where(row < sorted(row)[-top_k], -np.inf, row) if top_k else row

    def by_p(row: np.ndarray) -> np.ndarray:
        if top_p is None or top_p == 1:
            return row
        kept, mass = row.copy(), 0.0
        for i in sorted(range(len(row)), key=lambda i: -row[i]):
            if mass > top_p:
                kept[i] = -np.inf
            mass += softmax(row)[i]
        return kept

    return by_p(by_k(row)) if k_first else by_k(by_p(row))


def sampled(logits: np.ndarray, s: Any, noise: Any, mask_id: int, k_first: bool) -> tuple[int, bool, np.ndarray]:
    """(token, waits, probabilities after temperature and filters)."""
    row = filtered(logits / s.temperature if s.temperature else logits, s.top_p, s.top_k, k_first)
    token, waits = best_not(row - np.log(-np.log(noise)) if s.temperature else row, mask_id)
    return token, waits, softmax(row)


def slow_dream(see: See, config: Any, prompt: Any, s: DreamSampler, draws: Any = None, row: int = 0) -> Slow:
    canvas = Slow(config, prompt, s.max_new_tokens)
    size = s.block_length or s.max_new_tokens
    steps = s.steps * size // s.max_new_tokens  # in each block
    for step in range(s.steps):
        block, k = divmod(step, steps)
        t, after = (1 + (s.eps - 1) * n / steps for n in (k, k + 1))
        share = 1.0 if k == steps - 1 else 1 - after / t
        logits, masks = see(canvas.tokens), canvas.masks(0, len(prompt) + (block + 1) * size)
        choice, sure = {}, {}
        for i in masks:
            noise = draws["token"][step, row, i] if s.temperature else None
            choice[i], waits, probs = sampled(logits[i], s, noise, config.mask_id, k_first=False)
            two = sorted(probs)[-2:]
            sure[i] = {
                "entropy": sum(p * math.log(p + 1e-10) for p in probs),
                "maskgit_plus": probs[choice[i]],
                "topk_margin": two[1] - two[0],
                "origin": 0.0,
            }[s.alg]
            if waits:
                sure[i] = -1e30
        if s.alg == "origin":
            chosen = [i for i in masks if draws["transfer"][step, row, i] < share and (sure[i] == 0 or share == 1)]
        else:
            chosen = surest(sure, int(len(masks) * share))
        canvas.commit(choice, chosen)
    return canvas


def slow_sdar(see: See, config: Any, prompt: Any, s: SDARSampler, draws: Any = None, row: int = 0) -> Slow:
    size = config.block_length
    whole = -(-(len(prompt) + s.gen_length) // size) * size
    canvas = Slow(config, prompt, whole - len(prompt))
    steps = s.steps_per_block or size
    quota = [size // steps + (1 if k < size % steps else 0) for k in range(steps)]
    for begin in range(len(prompt) // size * size, whole, size):
        for k in range(steps):
            masks = canvas.masks(begin, begin + size)
            if not masks:
                break
            canvas.ends.append(begin + size)
            logits = see(canvas.tokens)
            choice, sure = {}, {}
            for i in masks:
                noise = draws["token"][canvas.step, row, i] if s.temperature else None
                choice[i], waits, probs = sampled(logits[i], s, noise, config.mask_id, k_first=True)
                sure[i] = -1e30 if waits else probs[choice[i]]
            above = [i for i in masks if s.threshold is not None and sure[i] > s.threshold]
            canvas.commit(choice, above if len(above) >= quota[k] else surest(sure, quota[k]))
        if s.stop_at_eos and set(canvas.tokens[len(prompt) : begin + size]) & set(config.eos_ids):
            rest = canvas.masks(0, whole)
            canvas.step -= 1
            canvas.commit(dict.fromkeys(rest, config.eos_ids[0]), rest)
            break
    return canvas


def slow_fast_dllm(see: See, config: Any, prompt: Any, s: FastDLLMv2Sampler, look: Look | None = None) -> Slow:
    """see: of a model with blocks of the sampler's size; look: with a block cache."""
    blocks = math.ceil((len(prompt) + s.max_new_tokens - 1) / s.block_size)
    canvas = Slow(config, prompt, blocks * s.block_size + 1 - len(prompt))

    def fill(begin: int, end: int) -> bool:
        """Until nothing is masked there; True = an eos without masks before it was found, and the rest is eos."""
        while masks := canvas.masks(begin, min(end, len(canvas.tokens))):
            is_seed = masks[0] % s.block_size == 0
            canvas.ends.append(begin if is_seed else (begin // s.block_size + 1) * s.block_size)
            logits = see(canvas.tokens) if look is None else look(canvas.tokens, begin)
            choice, sure = {}, {}
            for i in masks:
                choice[i], waits = best_not(logits[i], config.mask_id)
                sure[i] = -1e30 if waits else softmax(logits[i])[choice[i]]
            canvas.commit(choice, [i for i in masks if sure[i] > s.threshold or i == surest(sure, 1)[0]])
            for i in range(len(prompt), len(canvas.tokens)):
                if not s.stop_at_eos or canvas.tokens[i] == config.mask_id:
                    break
                if canvas.tokens[i] in config.eos_ids:
                    rest = canvas.masks(i, len(canvas.tokens))
                    canvas.step -= 1
                    canvas.commit(dict.fromkeys(rest, config.eos_ids[0]), rest)
                    return True
        return False

    for begin in range(len(prompt) // s.block_size * s.block_size, len(canvas.tokens), s.block_size):
        parts = range(begin, min(begin + s.block_size, len(canvas.tokens)), s.small_block_size)
        if fill(begin, begin + 1) or any(fill(part, part + s.small_block_size) for part in parts):
            break
    return canvas


def slow_llada2(see: See, config: Any, prompt: Any, s: LLaDA2Sampler, draws: Any = None, row: int = 0) -> Slow:
    """LLaDA2.0, and with an editing threshold 2.1; `canvas.seen` has what the model saw at each step."""
    size, steps, edits = s.block_length, min(s.steps, s.gen_length), s.editing_threshold is not None
    whole = -(-(len(prompt) + s.gen_length) // size) * size
    canvas = Slow(config, prompt, whole - len(prompt))
    for begin in range(len(prompt) // size * size, whole, size):
        block, k, post = range(max(begin, len(prompt)), begin + size), 0, 0
        while True:
            masks = canvas.masks(begin, begin + size)
            post += not masks
            if not masks and (not edits or post > s.max_post_steps):
                break
            canvas.seen.append(list(canvas.tokens))
            canvas.ends.append(begin + size)
            logits, choice, sure = see(canvas.tokens), {}, {}
            for i in block:
                noise = draws["token"][canvas.step, row, i] if s.temperature else None
                choice[i], waits, probs = sampled(logits[i], s, noise, config.mask_id, k_first=True)
                sure[i] = -1e30 if waits else probs[choice[i]]
            quota = s.num_to_transfer if edits else size // steps + (1 if k < size % steps else 0)
            above = [i for i in masks if s.threshold is not None and sure[i] > s.threshold]
            chosen = above if len(above) >= quota else surest({i: sure[i] for i in masks}, quota)
            edited = [i for i in block if i not in masks and edits and sure[i] > s.editing_threshold]
            edited = [i for i in edited if choice[i] != canvas.tokens[i]]
            first = {i: canvas.at[i] for i in edited}
            canvas.commit(choice, chosen + edited)
            for i in edited:
                canvas.at[i] = first[i]
            k += 1
            if (not masks and not edited) or ended_early(canvas, config, len(prompt), s):
                break
        has_end = set(canvas.tokens[len(prompt) : begin + size]) & set(config.eos_ids)
        if ended_early(canvas, config, len(prompt), s) or (has_end and (s.eos_early_stop or not edits)):
            rest = canvas.masks(0, whole)
            canvas.step -= 1
            canvas.commit(dict.fromkeys(rest, config.eos_ids[0]), rest)
            break
    return canvas


def ended_early(canvas: Slow, config: Any, start: int, s: LLaDA2Sampler) -> bool:
    """An end with no mask before it."""
    written = canvas.tokens[start:]
    until = written[: written.index(config.mask_id)] if config.mask_id in written else written
    return s.eos_early_stop and s.editing_threshold is None and bool(set(until) & set(config.eos_ids))


class BlockCache:
    """What Fast-dLLM v2 sees with its block cache, in NumPy; `received` [T] lists of [L,H,S]."""

    def __init__(self, model: jaxsink.Model, prompt: list[int], s: FastDLLMv2Sampler, length: int):
        self.sampler, self.mask_id, self.received = s, model.config.mask_id, []
        self.slow, self.known = Slowly(model, length), -1
        self.slow.run(prompt, 0, len(prompt))

    def look(self, tokens: list[int], begin: int) -> np.ndarray:
        """Logits [S,V] for the positions of the small block, or of the seed, at `begin`."""
        size, block, bare = self.sampler.block_size, begin // self.sampler.block_size, tokens[begin] == self.mask_id
        if bare and begin % size == 0:
            return self.run(tokens, begin - size, begin, seed=True)
        if bare or self.known != block:
            self.known = block
            return self.run(tokens, block * size, (block + 1) * size)
        return self.run(tokens, begin, begin + self.sampler.small_block_size)

    def run(self, tokens: list[int], start: int, stop: int, seed: bool = False) -> np.ndarray:
        logits, maps = self.slow.run(tokens, start, stop)
        self.received.append(maps.sum(2))
        out = np.full((len(tokens) + 1, logits.shape[1]), np.nan)
        out[start], out[start + 1 : stop + seed] = logits[0], logits if seed else logits[:-1]
        return out


def slow_cached(model: jaxsink.Model, prompt: list[int], s: LLaDASampler | DreamSampler) -> tuple[Slow, np.ndarray]:
    """Fast-dLLM, in NumPy: (canvas, received [T,L,H,S]). Of shifted models the token before the block runs along."""
    canvas, received = Slow(model.config, prompt, s.response_length), []
    size, length, before = s.block_length or s.response_length, len(canvas.tokens), int(model.config.shift_logits)
    steps = s.steps // (s.response_length // size)
    slow = Slowly(model, length)
    for begin in range(len(prompt), length, size):
        end = begin + size
        for k in range(steps):
            start, stop = (0, length) if k == 0 else (begin - before, end if s.cache == "dual" else length)
            logits, maps = slow.run(canvas.tokens, start, stop)
            received.append(maps.sum(2))
            masks = canvas.masks(begin, end)
            choice = {i: int(logits[i - before - start].argmax()) for i in masks}
            sure = {i: softmax(logits[i - before - start])[token] for i, token in choice.items()}
            quota = size // steps
            if isinstance(s, DreamSampler):
                t, after = (1 + (s.eps - 1) * n / steps for n in (k, k + 1))
                quota = len(masks) if k == steps - 1 else int(len(masks) * (1 - after / t))
            canvas.commit(choice, surest(sure, quota))
    return canvas, np.stack(received)
