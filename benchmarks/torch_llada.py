"""A plain PyTorch transformer of LLaDA's shape with LLaDA's sampler and an autoregressive decoder, for the benchmarks only.

Written for speed comparison on equal terms: same weights, same window head, float32, no Python work beyond the step loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812


class TorchModel:
    """Weights of a jaxsink model ([out, in], stacked over layers) as a list of per-layer tensors."""

    def __init__(self, config: Any, params: Any):
        def tensor(x: Any) -> torch.Tensor:
            return torch.from_numpy(np.asarray(x).copy())

        self.config = config
        self.embedding, self.norm, self.head = (
            tensor(params["embedding"]),
            tensor(params["norm"]["weight"]),
            tensor(params["head"]["weight"]),
        )
        layers = params["layers"]
        self.layers = [
            {
                "n1": tensor(layers["attention_norm"]["weight"][i]),
                "n2": tensor(layers["mlp_norm"]["weight"][i]),
                **{n: tensor(layers["attention"][n]["weight"][i]) for n in "qkvo"},
                **{n: tensor(layers["mlp"][n]["weight"][i]) for n in ("gate", "up", "down")},
            }
            for i in range(config.layers)
        ]
        half = config.head_dim // 2
        self.frequency = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)

    def rotary(self, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angle = position[:, None].float() * self.frequency
        angle = torch.cat([angle, angle], -1)
        return angle.cos(), angle.sin()

    def hidden(
        self, tokens: torch.Tensor, capture: bool, cache: Any = None, start: int = 0, streams: Any = None
    ) -> tuple[torch.Tensor, Any]:
        """[B,Q,E] after the final norm, and received scores [L,B,H,S] if captured; `cache` makes it causal.

        streams: a list that gets the residual stream after each layer.

        Capturing keeps every layer's map until the pass is over, as a model that returns its attentions does.
        """
        config = self.config
        x = F.embedding(tokens, self.embedding)
        batch, queries, _ = x.shape
        cos, sin = self.rotary(torch.arange(start, start + queries))
        maps = []
        for i, w in enumerate(self.layers):
            y = F.rms_norm(x, (config.width,), w["n1"], config.norm_eps)
            q, k, v = (F.linear(y, w[n]).view(batch, queries, -1, config.head_dim).transpose(1, 2) for n in "qkv")
            q, k = q * cos + half_turn(q) * sin, k * cos + half_turn(k) * sin
            causal = cache is not None and queries > 1
            if cache is not None:
                cache[i][0][:, :, start : start + queries] = k
                cache[i][1][:, :, start : start + queries] = v
                k, v = cache[i][0][:, :, : start + queries], cache[i][1][:, :, : start + queries]
            if capture:
                score = q @ k.transpose(-1, -2) * config.head_dim**-0.5
                if causal:
                    score = score + torch.full(score.shape[-2:], float("-inf")).triu(1)
                probs = torch.softmax(score, -1)
                maps.append(probs)
                mixed = probs @ v
            else:
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            x = x + F.linear(mixed.transpose(1, 2).reshape(batch, queries, -1), w["o"])
            y = F.rms_norm(x, (config.width,), w["n2"], config.norm_eps)
            x = x + F.linear(F.silu(F.linear(y, w["gate"])) * F.linear(y, w["up"]), w["down"])
            if streams is not None:
                streams.append(x)
        received = torch.stack([probs.sum(-2) for probs in maps]) if capture else None
        return F.rms_norm(x, (config.width,), self.norm, config.norm_eps), received

    @torch.inference_mode()
    def diffuse(
        self, prompt: np.ndarray, gen: int, steps: int, block: int, capture: bool, whole_head: bool = False
    ) -> tuple[torch.Tensor, Any]:
        """LLaDA's low-confidence sampler at temperature 0: (tokens, received per step).

        The head runs on the block only; with `whole_head` on all positions, as in the script that LLaDA is published with.
        """
        config, start = self.config, prompt.shape[1]
        tokens = torch.cat([torch.tensor(prompt), torch.full((len(prompt), gen), config.mask_id)], 1)
        per_block = steps // (gen // block)
        record = []
        for number in range(gen // block):
            window = slice(start + number * block, start + (number + 1) * block)
            seen = slice(None) if whole_head else window
            for step in range(per_block):
                hidden, received = self.hidden(tokens, capture)
                if capture:
                    record.append(received)
                logits = F.linear(hidden[:, seen], self.head)
                free = torch.zeros_like(tokens, dtype=torch.bool)
                free[:, window] = tokens[:, window] == config.mask_id
                confidence, best = torch.softmax(logits, -1).max(-1)
                confidence = torch.where(free[:, seen], confidence, -torch.inf)
                count = block // per_block + (step < block % per_block)
                chosen = torch.topk(confidence, count).indices
                part = tokens[:, seen].clone()
                part.scatter_(1, chosen, best.gather(1, chosen))
                tokens[:, seen] = part
        return tokens, torch.stack(record) if capture else None

    def lens(self, tokens: torch.Tensor, top: int) -> dict[str, torch.Tensor]:
        """The logit lens of one pass, as one writes it with hooks: cached streams, then all logits layer by layer."""
        streams: list[torch.Tensor] = []
        hidden, _ = self.hidden(tokens, False, streams=streams)

        def read(x: torch.Tensor) -> torch.Tensor:
            return F.linear(F.rms_norm(x, (self.config.width,), self.norm, self.config.norm_eps), self.head)

        return read_out(F.linear(hidden, self.head), streams, read, top)

    @torch.inference_mode()
    def decode(self, prompt: np.ndarray, new: int, capture: bool) -> torch.Tensor:
        """Greedy decoding with a preallocated key/value cache."""
        config, (batch, count) = self.config, prompt.shape
        shape = (batch, config.kv_heads, count + new, config.head_dim)
        cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in self.layers]
        tokens = torch.from_numpy(prompt)
        hidden, _ = self.hidden(tokens, False, cache)
        for step in range(new):
            best = F.linear(hidden[:, -1], self.head).argmax(-1)
            tokens = torch.cat([tokens, best[:, None]], 1)
            if step < new - 1:
                hidden, _ = self.hidden(best[:, None], capture, cache, count + step)
        return tokens


def half_turn(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def read_out(
    logits: torch.Tensor, streams: list[torch.Tensor], read: Callable[[torch.Tensor], torch.Tensor], top: int
) -> dict[str, torch.Tensor]:
    """[L,...] of the lens: what `read` makes of each layer's stream, and its divergence from what the model says."""
    last = torch.log_softmax(logits, -1)
    kept: dict[str, list[torch.Tensor]] = {"token": [], "log_prob": [], "entropy": [], "kl": []}
    for x in streams:
        log_prob = torch.log_softmax(read(x), -1)
        best = torch.topk(log_prob, top)
        kept["token"].append(best.indices)
        kept["log_prob"].append(best.values)
        kept["entropy"].append(-(log_prob.exp() * log_prob).sum(-1))
        kept["kl"].append((last.exp() * (last - log_prob)).sum(-1))
    return {name: torch.stack(parts) for name, parts in kept.items()}
