"""MDLM's, BD3LM's and GIDD's samplers again, slowly: one position at a time, in float64, from their papers.

GIDD's step is Bayes' rule with whole matrices, which a vocabulary of 89 allows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import jaxsink
from jaxsink import AncestralSampler, GIDDSampler
from support.reference.samplers import Slow, softmax


def see(model: jaxsink.Model, tokens: list[int], time: float | None) -> np.ndarray:
    """Probabilities f64[S,V] of clean tokens, none of which is the mask."""
    more = {} if time is None else {"time": np.array([time])}
    logits = np.asarray(jaxsink.forward(model, np.array([tokens]), **more).logits, np.float64)[0]
    logits[:, model.config.mask_id] = -np.inf
    return np.stack([softmax(row) for row in logits])


def nucleus(probs: np.ndarray, top_p: float | None, temperature: float) -> np.ndarray:
    """Of the likeliest tokens whose sum is at most top_p; the best one in any case."""
    with np.errstate(divide="ignore"):
        probs = softmax(np.log(probs) / temperature)
    if top_p is None:
        return probs
    kept, total = np.zeros_like(probs), 0.0
    for rank, token in enumerate(sorted(range(len(probs)), key=lambda i: (-probs[i], i))):
        total += probs[token]
        if rank == 0 or total <= top_p:
            kept[token] = probs[token]
    return kept / kept.sum()


def drawn(probs: np.ndarray, noise: np.ndarray) -> int:
    """The token that these uniform numbers choose (Gumbel's rule)."""
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(probs) - np.log(-np.log(noise))))


def slow_ancestral(model: jaxsink.Model, prompt: Any, s: AncestralSampler, draws: Any, row: int = 0) -> Slow:
    config = model.config
    size = config.block_length or 10**6
    length = s.gen_length if config.block_length is None else s.gen_length + -(len(prompt) + s.gen_length) % size
    canvas = Slow(config, prompt, length)
    for step in range(s.steps or 10**6):
        masks = canvas.masks(0, len(canvas.tokens))
        if s.steps is None and not masks:
            break
        time = None
        if s.steps is not None:
            t, after = (1 + (s.eps - 1) * k / s.steps for k in (step, step + 1))
            time = -math.log(1 - 0.999 * t)  # what MDLM's models are told
        probs = see(model, canvas.tokens, time)
        choice = {i: drawn(nucleus(probs[i], s.top_p, s.temperature), draws["token"][step, row, i]) for i in masks}
        if s.steps is None:
            in_block = [i for i in masks if i // size == masks[0] // size]
            chosen = [max(in_block, key=lambda i: draws["transfer"][step, row, i])]
        else:
            share = 1 - after / t if step < s.steps - 1 else 1.0
            chosen = [i for i in masks if draws["transfer"][step, row, i] < share]
        canvas.commit(choice, chosen)
        end = (masks[0] // size + 1) * size if masks else 0
        has_eos = set(canvas.tokens[len(prompt) : end]) & set(config.eos_ids)
        if s.stop_at_eos and has_eos and not canvas.masks(0, end):
            rest = canvas.masks(0, len(canvas.tokens))
            canvas.step -= 1
            canvas.commit(dict.fromkeys(rest, config.eos_ids[0]), rest)
            break
    return canvas


def noised(config: Any, t: float) -> np.ndarray:
    """f64[V,V]: row x is the distribution of a token x at noise level t."""
    vocab, p = config.vocab, config.uniform_noise
    scale = 2 * p / (1 - p)  # the paper's B, for gamma = 1
    c = scale * math.sqrt(t * (1 - t))
    mask = np.eye(vocab)[config.mask_id]
    uniform = (1 - mask) / (vocab - 1)
    return ((1 - t) * np.eye(vocab) + t * mask + c * uniform) / (1 + c)


def bayes(config: Any, clean: np.ndarray, token: int, t: float, s: float) -> np.ndarray:
    """f64[V]: the token at level s, given the one at t and the distribution of the clean one."""
    between = np.linalg.solve(noised(config, s), noised(config, t))  # noised(s) @ between == noised(t)
    joint = (clean @ noised(config, s)) * between[:, token]
    return joint / joint.sum()


def slow_gidd(model: jaxsink.Model, prompt: Any, s: GIDDSampler, draws: Any, row: int = 0) -> list[list[int]]:
    """The canvas before the first step and after each."""
    config = model.config
    canvases = [[int(token) for token in prompt] + [config.mask_id] * s.gen_length]
    for step in range(s.steps):
        t, after = ((1 - 2 * s.eps) * (1 - k / s.steps) + s.eps for k in (step, step + 1))
        tokens = canvases[-1]
        clean, new = see(model, tokens, t), list(tokens)
        for i in range(len(prompt), len(tokens)):
            probs = bayes(config, clean[i], tokens[i], t, after)
            if step == s.steps - 1:
                probs[config.mask_id] = 0.0
            new[i] = drawn(np.maximum(probs, 0.0), draws["token"][step, row, i])
        canvases.append(new)
    return canvases
