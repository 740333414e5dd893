"""Configurations and presets."""

from __future__ import annotations

import jax
import pytest

import jaxsink
from jaxsink import JaxsinkError, ModelConfig, preset

# Parameters as the models' publishers state them, to the last one where a count is published.
PUBLISHED = {
    "llada-8b-instruct": 8_015_581_184,
    "dream-7b-instruct": 7_615_616_512,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llada-moe-7b-a1b": 7_356_880_896,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(name: str) -> None:
    model = jaxsink.abstract(preset(name), "bfloat16")
    assert sum(leaf.size for leaf in jax.tree.leaves(model)) == PUBLISHED[name]


@pytest.mark.parametrize("name", jaxsink.PRESETS)
def test_configs_survive_json(name: str) -> None:
    import json

    config = preset(name)
    again = ModelConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert hash(again) == hash(config)


def test_an_unknown_preset_names_those_that_are_near() -> None:
    with pytest.raises(JaxsinkError, match="did you mean llada-8b-base"):
        preset("llada-8b-bas")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": 0}, "layers"),
        ({"width": 2.5}, "width"),
        ({"kv_heads": 5}, "32 heads"),
        ({"head_dim": 127}, "even head size"),
        ({"block_length": 4}, "block_length"),
        ({"attention": "block_causal"}, "block_length"),
        ({"window_layers": (True,)}, "window_layers"),
        ({"experts": jaxsink.Experts(4, 5)}, "5 of 4 experts"),
        ({"experts": jaxsink.Experts(4, 2), "mlp": "plain"}, "experts are gated"),
        ({"experts": jaxsink.Experts(4, 2), "mlp_bias": True}, "no biases"),
        ({"window_layers": (True,) * 32}, "give the window too"),
        ({"mask_id": 126464}, "mask_id"),
        ({"eos_ids": (-1,)}, "eos_ids"),
    ],
)
def test_impossible_configs_are_named(change: dict, words: str) -> None:
    with pytest.raises(JaxsinkError, match=words):
        preset("llada-8b-base").replace(**change)


def test_from_dict_refuses_unknown_fields() -> None:
    with pytest.raises(JaxsinkError, match="colour"):
        ModelConfig.from_dict(preset("gpt2").to_dict() | {"colour": "red"})


def test_every_model_of_the_study_has_a_preset() -> None:
    from jaxsink.evals.settings import SETTINGS

    studied = {name.split("/")[0] for name in SETTINGS if name.endswith("/study")}
    assert len(studied) == 4 and studied <= set(jaxsink.PRESETS)
