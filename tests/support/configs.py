"""A tiny configuration of every family, with sizes that differ from each other so that mixed-up axes cannot hide."""

from jaxsink import ModelConfig, preset
from jaxsink.nn.config import Experts, RopeScaling

SMALL = {
    "layers": 3,
    "width": 48,
    "heads": 6,
    "kv_heads": 2,
    "head_dim": 10,
    "mlp_width": 56,
    "vocab": 89,
    "max_positions": 64,
    "bos_id": None,
    "pad_id": None,
    "eot_id": None,
    "eos_ids": (3,),
}


def small(name: str, **changes: object) -> ModelConfig:
    config = preset(name)
    values: dict[str, object] = dict(SMALL)
    if config.mask_id is not None:
        values["mask_id"] = 80
    if config.text_vocab is not None:
        values["text_vocab"] = 70
    if config.experts is not None:
        values["experts"] = Experts(count=5, per_token=2)
    if config.rope_scaling is not None:
        values["rope_scaling"] = RopeScaling(config.rope_scaling.kind, config.rope_scaling.factor, original_length=16)
    if config.window is not None:
        values["window"] = 5
    return config.replace(**(values | changes))


FAMILIES = {
    "llada": small("llada-8b-base", kv_heads=6),
    "mmada": small("mmada-8b", kv_heads=6),
    "llada_moe": small("llada-moe-7b-a1b"),
    "dream": small("dream-7b-base"),
    "sdar": small("sdar-1.7b"),
    "fast_dllm": small("fast-dllm-v2-7b", block_length=4),
    "llama3.1": small("llama-3.1-8b"),
    "llama3.2": small("llama-3.2-1b"),
    "qwen2": small("qwen2.5-0.5b"),
    "qwen2_window": small("qwen2.5-0.5b", window=4, window_layers=(False, True, True)),
    "qwen3": small("qwen3-0.6b"),
    "mistral": small("mistral-7b-v0.1"),
    "smollm2": small("smollm2-135m"),
    "gpt2": small("gpt2", kv_heads=6, head_dim=9),
    "yarn": small("qwen2.5-7b", rope_scaling=RopeScaling("yarn", 4.0, original_length=16)),
    "mixed": small(
        "mistral-7b-v0.1",
        experts=Experts(count=5, per_token=2),
        dense_layers=1,
        dense_width=40,
        rotary_dim=6,
        window=4,
        window_layers=(False, True, False),
    ),
    "bd3lm": small("bd3lm-owt-block_size4", kv_heads=6, time_width=7),
    "mdlm": small("mdlm-owt", kv_heads=6, time_width=7, time_conditioning="total"),
    "gidd": small("gidd-small-p_unif-0.2", kv_heads=6, time_width=7),
    "linear": small("llama-2-7b", rope_scaling=RopeScaling("linear", 2.0)),
    "nemotron": small(
        "nemotron-labs-diffusion-8b",
        rope_scaling=RopeScaling("yarn", 16.0, original_length=16, attention_factor=1.1),
        query_scale_beta=0.5,
        query_scale_length=4,
    ),
    "a2d": small("qwen3-0.6b-diffusion-mdlm"),
    "llada2": small(
        "llada2.0-mini",
        experts=Experts(12, 3, True, "sigmoid", "choice", groups=4, groups_kept=2, scale=2.5, shared_width=28),
        dense_width=40,
        rotary_dim=6,
        block_length=4,
    ),
    "llada_moe_dense": small(
        "llada-moe-7b-a1b",
        experts=Experts(5, 2, bias="weight", shared_width=28),
        dense_layers=2,
        dense_width=40,
    ),
    "sdar_moe": small("sdar-30b-a3b", experts=Experts(6, 2, renormalise=True)),
}

# Other sizes and switches of families above, for tests that go through all of one family's samplers.
VARIANTS = {
    "nemotron, one kv head": FAMILIES["nemotron"].replace(kv_heads=1, head_dim=16, query_scale_length=3),
    "fast_dllm, one kv head": FAMILIES["fast_dllm"].replace(kv_heads=1, qkv_bias=False, tied=True),
    "llada2, one kv head, one expert": FAMILIES["llada2"].replace(
        kv_heads=1, dense_layers=2, rotary_dim=2, experts=Experts(7, 1, False, "sigmoid", "choice", scale=1.5)
    ),
    "a2d, biases": FAMILIES["qwen2"].replace(attention="bidirectional", mask_id=80, kv_heads=6),
}
