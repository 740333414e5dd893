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
    "linear": small("llama-2-7b", rope_scaling=RopeScaling("linear", 2.0)),
}
