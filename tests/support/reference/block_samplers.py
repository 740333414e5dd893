"""Nemotron's and dllm's samplers again, slowly: one sequence, lists and loops, a whole pass for every look.

What a query sees is written out as a list of keys, so nothing is shared with the limits that jaxsink's samplers give.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

import jaxsink
from jaxsink import BD3LMSampler, MDLMSampler, NemotronSampler, SpeculativeSampler
from support.reference.samplers import Slow, best_not, softmax, surest

Sees = Callable[[int, int], bool]  # (query, key)


def look(model: Any, tokens: list[int], sees: Sees) -> np.ndarray:
    """Logits f64[S,V] of one sequence in which each query sees these keys."""
    count = range(len(tokens))
    visible = np.array([[sees(i, j) for j in count] for i in count])
    return np.asarray(jaxsink.forward(model, np.array([tokens]), visible=visible[None]).logits[0], np.float64)


def causal(i: int, j: int) -> bool:
    return j <= i


def slow_nemotron(model: Any, prompt: Any, s: NemotronSampler) -> Slow:
    canvas, config = Slow(model.config, prompt, s.max_new_tokens), model.config
    for begin in range(len(prompt), len(canvas.tokens), s.block_length):
        end = begin + s.block_length
        group = [-1 if i < len(prompt) else (i - len(prompt)) // s.block_length for i in range(end)]

        def one_way(i: int, j: int, begin: int = begin) -> bool:
            return j <= i or i >= begin

        def both_ways(i: int, j: int, group: list[int] = group) -> bool:
            return group[j] <= group[i]

        if s.causal_context:
            logits = look(model, canvas.tokens[:begin], causal)
            canvas.commit({begin: best_not(logits[begin - 1], config.mask_id)[0]}, [begin])
        while masks := canvas.masks(begin, end):
            if ended(canvas, len(prompt)):
                break
            logits = look(model, canvas.tokens[:end], one_way if s.causal_context else both_ways)
            choice, sure = chosen(logits, masks, config.mask_id)
            above = [i for i in masks if s.threshold is not None and sure[i] >= s.threshold]
            canvas.commit(choice, sorted({*above, surest(sure, 1)[0]}))
        if ended(canvas, len(prompt)):
            canvas.step -= 1
            rest = canvas.masks(0, len(canvas.tokens))
            canvas.commit(dict.fromkeys(rest, config.eos_ids[0]), rest)
            break
    return canvas


def ended(canvas: Slow, start: int) -> bool:
    """There is an eos with no mask before it."""
    for token in canvas.tokens[start:]:
        if token == canvas.config.mask_id:
            return False
        if token in canvas.config.eos_ids:
            return True
    return False


def chosen(logits: np.ndarray, masks: list[int], mask_id: int) -> tuple[dict[int, int], dict[int, float]]:
    choice, sure = {}, {}
    for i in masks:
        choice[i], waits = best_not(logits[i], mask_id)
        sure[i] = -1e30 if waits else softmax(logits[i])[choice[i]]
    return choice, sure


def slow_speculation(model: Any, prompt: Any, s: SpeculativeSampler) -> Slow:
    """Tokens, and the passes after which each was verified."""
    mask, room = model.config.mask_id, len(prompt) + s.max_new_tokens
    done = [int(token) for token in prompt]
    done.append(best_not(look(model, done, causal)[-1], mask)[0])
    at, step = [-1] * len(prompt) + [0], 1
    while len(done) < room and done[-1] not in model.config.eos_ids:
        block = [mask] * min(s.block_length - 1, room - len(done))
        front = len(done)
        while mask in block:
            logits = look(model, done + block, lambda i, j, f=front: j <= i or i >= f - 1)
            step += 1
            masks = [i for i in range(front, front + len(block)) if block[i - front] == mask]
            choice, sure = chosen(logits, masks, mask)
            for i in (
                [i for i in masks if sure[i] >= s.threshold] if max(sure.values()) >= s.threshold else surest(sure, 1)
            ):
                block[i - front] = choice[i]
        logits = look(model, done + block, causal)
        for n in range(len(block) + 1):
            if len(done) == room:
                break
            done.append(best_not(logits[front - 1 + n], mask)[0])
            at.append(step)
            if done[-1] in model.config.eos_ids or n == len(block) or block[n] != done[-1]:
                break
        step += 1
    canvas = Slow(model.config, done, 0)
    canvas.tokens += [model.config.eos_ids[0]] * (room - len(done))
    canvas.at = at + [at[-1]] * (room - len(done))
    return canvas


def quotas(masks: int, steps: int) -> list[int]:
    """Half to even, of shares that were computed in float32; those that round to nothing are left out."""
    left, shares = masks, []
    for step in range(steps, 0, -1):
        noisy, clean = np.float32(step / steps), np.float32((step - 1) / steps)
        kept = (1 - (1 - clean)) / (1 - (1 - noisy))
        share = left * (1 - float(kept))
        assert abs(share - Fraction(left, step)) < 1e-4
        shares.append(min(left, round(share)))
        left -= shares[-1]
    return [share for share in shares if share]


def slow_dllm(model: Any, prompt: Any, s: MDLMSampler) -> Slow:
    canvas, config = Slow(model.config, prompt, s.max_new_tokens), model.config
    count = -(-s.max_new_tokens // s.block_size)
    for number in range(count):
        end = min(len(prompt) + (number + 1) * s.block_size, len(canvas.tokens))
        for quota in quotas(len(canvas.masks(0, end)), -(-s.steps // count)):
            logits = guided(model, canvas.tokens, len(prompt), end, s)
            logits[:, list(s.suppress_tokens or ())] = -np.inf
            if s.right_shift_logits:
                logits = np.concatenate([logits[:1], logits[:-1]])
            choice, sure = chosen(logits, canvas.masks(0, end), config.mask_id)
            canvas.commit(choice, surest(sure, quota))
    return canvas


def guided(model: Any, tokens: list[int], prompt: int, end: int, s: MDLMSampler) -> np.ndarray:
    in_blocks = isinstance(s, BD3LMSampler)
    there = tokens[:end] if in_blocks else tokens

    def sees(i: int, j: int) -> bool:
        return not in_blocks or (j - prompt) // s.block_size <= (i - prompt) // s.block_size

    logits = look(model, there, sees)
    if s.cfg_scale:
        blind = look(model, [model.config.mask_id] * prompt + there[prompt:], sees)
        logits = blind + (s.cfg_scale + 1) * (logits - blind)
    return logits
