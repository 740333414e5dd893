"""DiffusionGemma in float64 NumPy, as docs/diffusion-gemma.md describes it: one pass over prompt and canvas.

jaxsink does not run this family; what it would have to compute is held here, against the outputs of the original.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from support.reference.samplers import softmax

NOWHERE = 1 << 30


def softmax_rows(x: np.ndarray) -> np.ndarray:
    return np.stack([softmax(row) for row in x])


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class SlowGemma:
    """The text half of a checkpoint: `weights` by their names in the file, `config` its text_config."""

    def __init__(self, config: dict[str, Any], weights: dict[str, np.ndarray]):
        self.config = config
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}
        self.width = config["hidden_size"]
        self.embedding = self.weights["model.decoder.embed_tokens.weight"]

    def norm(self, x: np.ndarray, name: str | None = None) -> np.ndarray:
        y = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return y if name is None else y * self.weights[f"{name}.weight"]

    def mlp(self, name: str, x: np.ndarray) -> np.ndarray:
        gate, up, down = (self.weights[f"{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
        return (gelu(x @ gate.T) * (x @ up.T)) @ down.T

    def experts(self, name: str, stream: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Routed by the residual stream, not by what the experts see."""
        w, out = self.weights, np.zeros_like(x)
        routed = self.norm(stream) * w[f"{name}.router.scale"] / math.sqrt(self.width)
        for token, share in enumerate(softmax_rows(routed @ w[f"{name}.router.proj.weight"].T)):
            best = np.argsort(-share, kind="stable")[: self.config["top_k_experts"]]
            for expert in best:
                gate, up = np.split(w[f"{name}.experts.gate_up_proj"][expert] @ x[token], 2)
                factor = share[expert] / share[best].sum() * w[f"{name}.router.per_expert_scale"][expert]
                out[token] += factor * (w[f"{name}.experts.down_proj"][expert] @ (gelu(gate) * up))
        return out

    def frequencies(self, kind: str, size: int) -> np.ndarray:
        """Of "proportional" rope the first pairs turn, as fast as if all did; the others stand still."""
        rope = self.config["rope_parameters"][kind]
        turning = int(rope.get("partial_rotary_factor", 1.0) * size // 2)
        return np.where(np.arange(size // 2) < turning, rope["rope_theta"] ** (-2 * np.arange(size // 2) / size), 0.0)

    def sees(self, query: int, key: int, prompt: int, window: int, real: np.ndarray) -> bool:
        """The canvas sees itself, and the window as it is for the first token after the prompt; the prompt is causal."""
        if query >= prompt:
            return key >= prompt or (bool(real[key]) and prompt - key < window)
        return key <= query and query - key < window and (bool(real[key]) or key == query)

    def attention(self, layer: int, x: np.ndarray, prompt: int, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(what it adds, the map [H,S,S])."""
        w, name = self.weights, f"model.decoder.layers.{layer}.self_attn"
        kind, heads, count = self.config["layer_types"][layer], self.config["num_attention_heads"], len(x)
        size = len(w[f"{name}.q_norm.weight"])
        q, k = ((x @ w[f"{name}.{part}_proj.weight"].T).reshape(count, -1, size) for part in "qk")
        own = w.get(f"{name}.v_proj.weight")
        v = self.norm(k if own is None else (x @ own.T).reshape(count, -1, size))
        angle = np.arange(count)[:, None, None] * self.frequencies(kind, size)
        q, k = (turned(self.norm(y, f"{name}.{part}_norm"), angle) for y, part in ((q, "q"), (k, "k")))
        window = self.config["sliding_window"] if kind == "sliding_attention" else NOWHERE
        seen = np.array([[self.sees(i, j, prompt, window, real) for j in range(count)] for i in range(count)])
        group, maps, out = heads // k.shape[1], np.zeros((heads, count, count)), np.zeros_like(q)
        for head in range(heads):
            maps[head] = softmax_rows(np.where(seen, q[:, head] @ k[:, head // group].T, -np.inf))  # not scaled
            out[:, head] = maps[head] @ v[:, head // group]
        return out.reshape(count, -1) @ w[f"{name}.o_proj.weight"].T, maps

    def run(
        self, prompt: Any, canvas: Any, before: np.ndarray | None = None, real: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(logits of the canvas, maps [L,H,S,S], hidden states after the norm). before: the last step's processed logits."""
        start = len(prompt)
        real = np.ones(start, bool) if real is None else real
        x = self.embedding[[*prompt, *canvas]] * math.sqrt(self.width)
        told = np.zeros((len(canvas), self.width))
        if before is not None:
            told = softmax_rows(before) @ self.embedding * math.sqrt(self.width)
        own = "model.decoder.self_conditioning"
        x[start:] = self.norm(x[start:] + self.mlp(own, self.norm(told, f"{own}.pre_norm")))
        maps = []
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.decoder.layers.{layer}"
            added, found = self.attention(layer, self.norm(x, f"{name}.input_layernorm"), start, real)
            maps.append(found)
            x = x + self.norm(added, f"{name}.post_attention_layernorm")
            dense = self.mlp(f"{name}.mlp", self.norm(x, f"{name}.pre_feedforward_layernorm"))
            sparse = self.experts(name, x, self.norm(x, f"{name}.pre_feedforward_layernorm_2"))
            both = self.norm(dense, f"{name}.post_feedforward_layernorm_1")
            both = both + self.norm(sparse, f"{name}.post_feedforward_layernorm_2")
            x = x + self.norm(both, f"{name}.post_feedforward_layernorm")
            scalars = [f"model.encoder.language_model.layers.{layer}.layer_scalar", f"{name}.layer_scalar"]
            x[:start], x[start:] = (
                self.weights[s] * part for s, part in zip(scalars, (x[:start], x[start:]), strict=True)
            )
        hidden = self.norm(x, "model.decoder.norm")
        return 30 * np.tanh(hidden[start:] @ self.embedding.T / 30), np.stack(maps), hidden


def turned(x: np.ndarray, angle: np.ndarray) -> np.ndarray:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate(
        [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)], axis=-1
    )


def slow_generate(
    model: SlowGemma, prompt: list[int], settings: dict[str, Any], random: list[np.ndarray]
) -> tuple[list[int], list[np.ndarray]]:
    """(text, the canvas of each step), greedily and without early stops. random: every random canvas, in order."""
    text, canvases, steps = list(prompt), [], settings["max_denoising_steps"]
    draws = iter(random)
    length = len(random[0])
    for _ in range(settings["max_new_tokens"] // length):
        canvas, before, best = next(draws), None, None
        for left in range(steps, 0, -1):
            canvases.append(canvas)
            temperature = settings["t_min"] + (settings["t_max"] - settings["t_min"]) * left / steps
            before = model.run(text, canvas, before)[0] / temperature
            best, probs = before.argmax(-1), softmax_rows(before)
            entropy = -(probs * np.log(probs)).sum(-1)
            order = np.argsort(entropy, kind="stable")
            accepted = np.zeros(length, bool)
            accepted[order] = np.cumsum(entropy[order]) - entropy[order] <= settings["entropy_bound"]
            canvas = np.where(accepted, best, next(draws))
        assert best is not None
        text += best.tolist()
    return text, canvases
