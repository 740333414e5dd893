"""Models of LLaDA's or Llama's shape and any size with random weights, for the benchmarks."""

from __future__ import annotations

import jaxsink


def make_model(vocab: int, layers: int, width: int, causal: bool) -> jaxsink.Model:
    base = jaxsink.preset("llama-2-7b" if causal else "llada-8b-base")
    config = base.replace(
        layers=layers,
        width=width,
        heads=width // 64,
        kv_heads=width // 64,
        head_dim=64,
        mlp_width=width * 8 // 3,
        vocab=vocab,
        eos_ids=(1,),
        bos_id=None,
        pad_id=None,
        eot_id=None,
        max_positions=8192,
        **({} if causal else {"mask_id": vocab - 1}),
    )
    return jaxsink.init(config)
