"""A second, slow transformer in float64 NumPy, written from the description of the models and not from jaxsink's code.

Loops over batch rows, heads and queries; one query at a time, with lists of visible keys instead of masks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def run(
    config: Any,
    params: Any,
    tokens: np.ndarray,
    mask: np.ndarray,
    drop: np.ndarray | None = None,
    mute: np.ndarray | None = None,
) -> tuple[Any, Any]:
    """(logits [B,S,V], attention [L,B,H,S,S]) at real tokens; zeros elsewhere.

    drop: keys to hide, [L,B,H,S]; or, without padding, [L,B,H,S,S], each query's own.
    mute: keys whose value vectors are zero, [L,B,S].
    """
    params = _float64(params)
    batch, length = tokens.shape
    logits = np.zeros((batch, length, config.vocab))
    attention = np.zeros((config.layers, batch, config.heads, length, length))
    for row in range(batch):
        real = np.flatnonzero(mask[row])
        hidden, maps = _one_sequence(
            config,
            params,
            tokens[row, real],
            real,
            None if drop is None else drop[:, row][..., real],
            mute=None if mute is None else mute[:, row, real],
        )
        head = params["head"]["weight"] if "head" in params else params["embedding"]
        logits[row, real] = hidden @ head.T + params.get("head", {}).get("bias", 0.0)
        attention[np.ix_(range(config.layers), [row], range(config.heads), real, real)] = maps[:, None]
    return logits, attention


def residuals(config: Any, params: Any, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The residual stream after every layer, [L,B,S,E], at real tokens; zeros elsewhere."""
    params, out = _float64(params), np.zeros((config.layers, *tokens.shape, config.width))
    for row in range(len(tokens)):
        real = np.flatnonzero(mask[row])
        stream: list[np.ndarray] = []
        _one_sequence(config, params, tokens[row, real], real, None, stream)
        out[:, row, real] = stream
    return out


def _one_sequence(
    config: Any,
    params: Any,
    ids: np.ndarray,
    slots: np.ndarray,
    drop: Any,
    stream: list[np.ndarray] | None = None,
    mute: Any = None,
) -> tuple[Any, Any]:
    """stream: takes the residual stream after every layer."""
    count = len(ids)
    position = np.arange(count) if config.skip_gaps else slots - slots[0]
    x = params["embedding"][ids]
    if config.positions == "learned":
        x = x + params["position"][position]
    maps = np.zeros((config.layers, config.heads, count, count))
    told = _told(config, params, ids)
    for index in range(config.layers):
        layer = _layer(config, params["layers"], index)
        windowed = config.window_layers is None or config.window_layers[index]
        window, hidden_keys = config.window if windowed else None, None if drop is None else drop[index]
        shift, scale, gate, shift2, scale2, gate2 = _adapted(layer, told, 6)
        y = _norm(config, layer["attention_norm"], x) * (1 + scale) + shift
        silent = None if mute is None else mute[index]
        x = x + gate * _attention(
            config, layer["attention"], y, position, slots, window, hidden_keys, maps[index], silent
        )
        y = _norm(config, layer["mlp_norm"], x) * (1 + scale2) + shift2
        x = x + gate2 * (
            np.stack([_experts(config, layer["mlp"], t) for t in y])
            if "router" in layer["mlp"]
            else _mlp(config, layer["mlp"], y)
        )
        if stream is not None:
            stream.append(x)
    shift, scale, *_ = _adapted(params, told, 2)
    return _norm(config, params["norm"], x) * (1 + scale) + shift, maps


def _told(config, params, ids):
    """The vector of a sequence's noise level: the share of its tokens that are masks."""
    if config.time_conditioning is None:
        return None
    level = sum(token == config.mask_id for token in ids) / len(ids)
    time = {"constant": 0.0, "level": level, "total": -math.log(1 - 0.999 * level)}[config.time_conditioning]
    angles = [time * 10000 ** (-n / 128) for n in range(128)]
    waves = np.array([math.cos(a) for a in angles] + [math.sin(a) for a in angles])
    return _silu(_linear(params["time"]["second"], _silu(_linear(params["time"]["first"], waves))))


def _adapted(p, told, parts):
    """Shift, scale and gate, once or twice; without a noise level they change nothing."""
    if told is None:
        return 0.0, 0.0, 1.0, 0.0, 0.0, 1.0
    return np.split(_linear(p["modulation"]["linear"], told), parts)


def _silu(x):
    return x / (1 + np.exp(-x))


def _attention(config, p, x, position, slots, window, drop, maps, mute=None):
    size, group = config.head_dim, config.heads // config.kv_heads
    q, k, v = (_linear(p[n], x).reshape(len(x), -1, size) for n in "qkv")
    if mute is not None:
        v = np.where(mute[:, None, None], 0.0, v)
    if config.qk_norm:
        q, k = _rms(q, p["q_norm"]["weight"], config.norm_eps), _rms(k, p["k_norm"]["weight"], config.norm_eps)
    if config.positions == "rope":
        q, k = _grown(config, _rotate(config, q, position), position), _rotate(config, k, position)
    out = np.zeros((len(x), config.heads, size))
    for head in range(config.heads):
        for i in range(len(x)):
            seen = [j for j in range(len(x)) if _sees(config, i, j, position, slots, window)]
            dropped = () if drop is None else np.flatnonzero(drop[head] if drop.ndim == 2 else drop[head, i])
            kept = [j for j in seen if j not in dropped]
            keys = kept or seen
            score = np.array([q[i, head] @ k[j, head // group] for j in keys]) / math.sqrt(size)
            weight = np.exp(score - score.max())
            weight /= weight.sum()
            maps[head, i, keys] = weight
            out[i, head] = sum(w * v[j, head // group] for w, j in zip(weight, keys, strict=True))
    return _linear(p["o"], out.reshape(len(x), -1))


def _grown(config, q, position):
    """Llama 4's factor on queries, by token position."""
    if config.query_scale_beta is None:
        return q
    beta, length = config.query_scale_beta, config.query_scale_length
    return np.stack([(1 + beta * math.log(1 + p // length)) * x for x, p in zip(q, position, strict=True)])


def _sees(config, i, j, position, slots, window):
    if config.attention == "causal" and j > i:
        return False
    if config.attention == "block_causal" and position[j] // config.block_length > position[i] // config.block_length:
        return False
    return window is None or slots[i] - slots[j] < window


def _rotate(config, x, position):
    turning = config.rotary_dim or config.head_dim
    half = turning // 2
    factor, frequency = 1.0, config.rope_theta ** (-np.arange(half) * 2 / turning)
    s = config.rope_scaling
    if s is not None and s.kind == "linear":
        frequency = frequency / s.factor
    elif s is not None and s.kind == "llama3":
        for n in range(half):
            length = 2 * math.pi / frequency[n]
            if length > s.original_length / s.low_freq_factor:
                frequency[n] /= s.factor
            elif length >= s.original_length / s.high_freq_factor:
                mix = (s.original_length / length - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
                frequency[n] = (1 - mix) * frequency[n] / s.factor + mix * frequency[n]
    elif s is not None:

        def turning(turns):
            return (
                config.head_dim
                * math.log(s.original_length / (turns * 2 * math.pi))
                / (2 * math.log(config.rope_theta))
            )

        low, high = max(math.floor(turning(s.beta_fast)), 0), min(math.ceil(turning(s.beta_slow)), config.head_dim - 1)
        for n in range(half):
            stretched = min(max((n - low) / max(high - low, 1e-3), 0), 1)
            frequency[n] = stretched * frequency[n] / s.factor + (1 - stretched) * frequency[n]
        factor = s.attention_factor or 0.1 * math.log(s.factor) + 1
    result = x.copy()  # what does not turn stays
    for i, at in enumerate(position):
        for n in range(half):
            c, t = factor * math.cos(at * frequency[n]), factor * math.sin(at * frequency[n])
            a, b = x[i, :, n], x[i, :, n + half]
            result[i, :, n], result[i, :, n + half] = a * c - b * t, b * c + a * t
    return result


def _experts(config, p, token):
    how = config.experts
    share = np.exp(p["router"]["weight"] @ token)
    share = share / share.sum() if how.scores == "softmax" else share / (1 + share)
    wanted = share + p.get("bias", 0.0)
    if how.bias == "weight":
        share = wanted
    size = how.count // how.groups
    groups = [sorted(wanted[g * size : (g + 1) * size])[-2:] for g in range(how.groups)]
    kept = sorted(range(how.groups), key=lambda g: (-sum(groups[g]), g))[: how.groups_kept]
    allowed = [e for e in range(how.count) if e // size in kept]
    best = sorted(allowed, key=lambda e: (-wanted[e], e))[: how.per_token]
    total = sum(share[e] for e in best) if how.renormalise else 1.0
    out = _mlp(config, p["shared"], token) if "shared" in p else 0
    for e in best:
        gate, up = p["gate"]["weight"][e] @ token, p["up"]["weight"][e] @ token
        made = p["down"]["weight"][e] @ (gate / (1 + np.exp(-gate)) * up)
        out = out + how.scale * share[e] / total * made
    return out


def _mlp(config, p, x):
    if config.mlp == "gated":
        gate = _linear(p["gate"], x)
        return _linear(p["down"], gate / (1 + np.exp(-gate)) * _linear(p["up"], x))
    y = _linear(p["up"], x)
    return _linear(p["down"], 0.5 * y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))))


def _norm(config, p, x):
    if config.norm == "rms":
        return _rms(x, p["weight"], config.norm_eps)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.norm_eps) * p["weight"] + p.get("bias", 0.0)


def _rms(x, weight, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def _linear(p, x):
    return x @ p["weight"].T + p.get("bias", 0.0)


def _layer(config, layers, index):
    """The parameters of one layer; a model that begins with dense layers has them in two stacks."""
    if not config.dense_layers:
        return _pick(layers, index)
    in_first = index < config.dense_layers
    return _pick(layers[0 if in_first else 1], index if in_first else index - config.dense_layers)


def _pick(tree, index):
    return {k: _pick(v, index) for k, v in tree.items()} if isinstance(tree, dict) else tree[index]


def _float64(tree):
    return {k: _float64(v) for k, v in tree.items()} if isinstance(tree, dict) else np.asarray(tree, np.float64)


class Slowly:
    """One sequence in float64 NumPy, a stretch of it at a time; the keys and values of the rest are kept from before."""

    def __init__(self, model: Any, length: int):
        self.config, self.params = model.config, _float64(model.params)
        shape = (self.config.layers, length, self.config.kv_heads, self.config.head_dim)
        self.k, self.v = np.zeros(shape), np.zeros(shape)

    def run(self, ids: list[int], start: int, stop: int, drop: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """(logits [Q,V], maps [L,H,Q,S]) of tokens start … stop - 1; drop bool[L,H,S], or each query's own [L,H,S,S]."""
        config, at, maps = self.config, np.arange(start, stop), []
        x = self.params["embedding"][ids[start:stop]]
        for n in range(config.layers):
            p = _pick(self.params["layers"], n)
            y = _norm(config, p["attention_norm"], x)
            q, k, v = (_linear(p["attention"][m], y).reshape(len(at), -1, config.head_dim) for m in "qkv")
            self.k[n, start:stop], self.v[n, start:stop] = _rotate(config, k, at), v
            keys, values = (z[n].repeat(config.heads // config.kv_heads, axis=1) for z in (self.k, self.v))
            score = np.einsum("qhd,shd->hqs", _rotate(config, q, at), keys) / np.sqrt(config.head_dim)
            if config.attention == "causal":
                score[:, np.arange(len(self.k[n])) > at[:, None]] = -np.inf
            if config.attention == "block_causal":
                size = config.block_length
                score[:, np.arange(len(self.k[n])) // size > at[:, None] // size] = -np.inf
            if drop is not None:
                lost = drop[n][:, None, :] if drop.ndim == 3 else drop[n][:, start:stop]
                score[np.broadcast_to(lost, score.shape)] = -np.inf
            weight = np.exp(score - score.max(-1, keepdims=True))
            maps.append(weight / weight.sum(-1, keepdims=True))
            mixed = np.einsum("hqs,shd->qhd", maps[-1], values).reshape(len(at), -1)
            x = x + _linear(p["attention"]["o"], mixed)
            x = x + _mlp(config, p["mlp"], _norm(config, p["mlp_norm"], x))
        return _norm(config, self.params["norm"], x) @ self.params["head"]["weight"].T, np.stack(maps)
