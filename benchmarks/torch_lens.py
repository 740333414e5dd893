"""The other sides of `lens.py`, each in a process of its own without JAX: canvases are read with the logit lens, eagerly.

    python benchmarks/torch_lens.py torch run.npz              a plain loop
    python benchmarks/torch_lens.py transformer_lens run.npz   TransformerLens's adapter for LLaDA, and its cache

A run is a file of weights and canvases. A round for each line on standard input; its answer is the seconds that it took. At
the end of the input: the peak of memory before the first round and now, in MiB. What the lens saw is kept beside the run.

TransformerLens bridges a module whose parts have the names of LLaDA's. LLaDA's own code comes with its checkpoint; the
module here has these names and is otherwise ours, so neither a checkpoint nor a hub is needed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from memory import peak
from torch import nn
from torch_llada import TorchModel, half_turn, read_out

TOP = 5
Lens = Callable[[torch.Tensor], dict[str, torch.Tensor]]


class Rotary(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        half = config.head_dim // 2
        self.frequency = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angle = torch.arange(q.shape[-2])[:, None].float() * self.frequency
        angle = torch.cat([angle, angle], -1)
        cos, sin = angle.cos(), angle.sin()
        return q * cos + half_turn(q) * sin, k * cos + half_turn(k) * sin


def linear(weight: torch.Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


def norm(weight: torch.Tensor, eps: float) -> nn.RMSNorm:
    made = nn.RMSNorm(len(weight), eps=eps)
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


class Block(nn.Module):
    """The parts of a layer side by side, as LLaDA has them; the bridge puts its own in place of `attention`."""

    def __init__(self, config: Any, weights: dict[str, torch.Tensor]):
        super().__init__()
        self.config = SimpleNamespace(rope=True, attention_dropout=0.0)
        self.attn_norm, self.ff_norm = norm(weights["n1"], config.norm_eps), norm(weights["n2"], config.norm_eps)
        self.q_proj, self.k_proj, self.v_proj = linear(weights["q"]), linear(weights["k"]), linear(weights["v"])
        self.attn_out, self.ff_out = linear(weights["o"]), linear(weights["down"])
        self.ff_proj, self.up_proj, self.act = linear(weights["gate"]), linear(weights["up"]), nn.SiLU()
        self.rotary_emb = Rotary(config)

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, None]:
        raise NotImplementedError("this is what the bridge puts here")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        y = self.attn_norm(x)
        x = x + self.attention(self.q_proj(y), self.k_proj(y), self.v_proj(y))[0]
        y = self.ff_norm(x)
        return x + self.ff_out(self.act(self.ff_proj(y)) * self.up_proj(y)), None


class Named(nn.Module):
    """The weights of a plain model under LLaDA's names."""

    def __init__(self, plain: TorchModel):
        super().__init__()
        embedding = nn.Embedding.from_pretrained(plain.embedding)
        blocks = nn.ModuleList([Block(plain.config, weights) for weights in plain.layers])
        parts = {"wte": embedding, "blocks": blocks, "ln_f": norm(plain.norm, plain.config.norm_eps)}
        self.model = nn.Module()
        self.model.transformer = nn.ModuleDict({**parts, "ff_out": linear(plain.head)})

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        parts: Any = self.model.transformer
        x = parts["wte"](input_ids)
        for block in parts["blocks"]:
            x, _ = block(x)
        return SimpleNamespace(logits=parts["ff_out"](parts["ln_f"](x)))


def bridge(plain: TorchModel) -> Any:
    from transformer_lens.model_bridge.sources import build_bridge_from_module

    config = plain.config
    said = SimpleNamespace(
        **{"d_model": config.width, "n_heads": config.heads, "n_layers": config.layers, "vocab_size": config.vocab},
        **{"n_kv_heads": config.kv_heads, "mlp_hidden_size": config.mlp_width, "max_sequence_length": 4096},
        **{"hidden_size": config.width, "num_attention_heads": config.heads, "num_hidden_layers": config.layers},
        **{"num_key_value_heads": config.kv_heads, "intermediate_size": config.mlp_width},
        **{"max_position_embeddings": 4096, "rms_norm_eps": config.norm_eps, "model_type": "llada"},
        **{"hidden_act": "silu", "activation_type": "silu", "embedding_size": config.vocab},
        **{"block_type": "llama", "block_group_size": 1, "rope": True, "rope_full_precision": True, "alibi": False},
        **{"attention_layer_norm": False, "include_bias": False, "include_qkv_bias": False, "scale_logits": False},
        **{"input_emb_norm": False, "layer_norm_type": "rms", "weight_tying": False, "tie_word_embeddings": False},
    )
    return build_bridge_from_module(Named(plain).eval(), "LLaDAModelLM", hf_config=said)


def through_hooks(plain: TorchModel) -> Lens:
    """The residual streams from TransformerLens's cache, read by the bridge's own norm and head."""
    bridged = bridge(plain)
    names = [f"blocks.{layer}.hook_resid_post" for layer in range(plain.config.layers)]

    def lens(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        logits, cache = bridged.run_with_cache(tokens, names_filter=names)
        streams = [cache[name] for name in names]
        return read_out(logits, streams, lambda x: bridged.unembed(bridged.ln_final(x)), TOP)

    return lens


def main(kind: str, path: Path) -> None:
    with np.load(path) as file:
        config = SimpleNamespace(**json.loads(str(file["config"])))
        params: dict[str, Any] = {}
        for name in file.files:
            *folders, last = name.split(".")
            inner = params
            for folder in folders:
                inner = inner.setdefault(folder, {})
            inner[last] = file[name]
    plain, canvases = TorchModel(config, params["params"]), torch.from_numpy(params["canvases"])
    lens: Lens = through_hooks(plain) if kind == "transformer_lens" else lambda tokens: plain.lens(tokens, TOP)
    before, found = peak(), dict[str, Any]()
    with torch.inference_mode():
        for _ in sys.stdin:
            begun = time.perf_counter()
            steps = [lens(canvas) for canvas in canvases]
            found = {name: torch.stack([step[name] for step in steps]).numpy() for name in steps[0]}
            print(time.perf_counter() - begun, flush=True)
    np.savez(path.with_name(f"{kind}.npz"), **dict[str, Any](found))
    print(before, peak(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
