"""Nemotron-Labs-Diffusion and A2D: what their settings mean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from jaxsink_converters.families import family_of
from jaxsink_converters.table import Settings
from support.checkpoints import config_of, make, random_model, tensors_of, tokenizer_files, write

import jaxsink
from jaxsink import JaxsinkError, ModelConfig
from jaxsink.nn.config import RopeScaling

YARN = config_of("nemotron")["rope_parameters"]


def configured(family: str, **changes: Any) -> ModelConfig:
    values = config_of(family, **changes)
    settings = Settings(values, "test")
    config = family_of(values, "test").configure(settings)
    settings.finish()
    return config


def test_two_scales_of_yarn_are_a_ratio() -> None:
    config = configured("nemotron")
    factor = (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)
    scaling = config.rope_scaling
    assert scaling is not None and scaling.attention_factor == pytest.approx(factor)
    assert scaling == RopeScaling("yarn", 4.0, 16, attention_factor=scaling.attention_factor)
    assert (config.query_scale_beta, config.query_scale_length) == (0.1, 16)
    equal = configured("nemotron", rope_parameters=YARN | {"mscale_all_dim": 1.0}).rope_scaling
    assert equal is not None and equal.attention_factor == 1
    none = configured("nemotron", rope_parameters=YARN | {"mscale": None, "mscale_all_dim": None}).rope_scaling
    assert none is not None and none.attention_factor is None
    for changes in ({"mscale": None}, {"mscale_all_dim": None}):
        with pytest.raises(JaxsinkError, match="go together"):
            configured("nemotron", rope_parameters=YARN | changes)
    given = configured("nemotron", rope_parameters=YARN | {"attention_factor": 1.5}).rope_scaling
    assert given is not None and given.attention_factor == 1.5
    plain = {key: value for key, value in YARN.items() if key != "llama_4_scaling_beta"}
    assert configured("nemotron", rope_parameters=plain).query_scale_beta is None


def test_scaled_queries_are_refused_where_the_family_has_none() -> None:
    with pytest.raises(JaxsinkError, match="does not know the setting 'llama_4_scaling_beta'"):
        configured("llama", rope_theta=..., rope_parameters=YARN)


@pytest.mark.parametrize(
    ("paradigm", "attention"),
    [("bidirectional", "bidirectional"), ("block_diff", "bidirectional"), ("autoregressive", "causal")],
)
def test_paradigms(paradigm: str, attention: str) -> None:
    assert configured("nemotron", dlm_paradigm=paradigm).attention == attention
    with pytest.raises(JaxsinkError, match="'dlm_paradigm' must be one of"):
        configured("nemotron", dlm_paradigm="sideways")
    with pytest.raises(JaxsinkError, match="'sliding_window' = 5 is not supported"):
        configured("nemotron", sliding_window=5)


@pytest.mark.parametrize(("family", "base"), [("a2d_qwen3", "qwen3"), ("a2d_qwen2", "qwen2"), ("a2d_llama", "llama")])
def test_a2d_is_the_causal_family_opened(family: str, base: str) -> None:
    """Without its sliding window, and with a mask."""
    changes = {"sliding_window": 5, "max_window_layers": 1} if base == "qwen2" else {}
    causal = configured(base, use_sliding_window=base == "qwen2", **changes) if changes else configured(base)
    opened = {"family": family, "attention": "bidirectional", "window": None, "window_layers": None}
    assert configured(family, bos_token_id=causal.bos_id) == causal.replace(mask_id=40, **opened)
    assert (causal.window is not None) == (base == "qwen2")


def test_the_mask_of_a2d_stands_in_the_tokenizer(tmp_path: Path) -> None:
    values = config_of("a2d_qwen3", mask_token_id=...)
    tensors = tensors_of(random_model(config_of("a2d_qwen3")))
    source = write(tmp_path / "source", values, tensors)
    with pytest.raises(JaxsinkError, match="names the mask token; pass --mask-id"):
        jaxsink.load(source)
    assert jaxsink.load(source, mask_id=41).config.mask_id == 41
    tokenizer_files(source, mask=42)
    assert jaxsink.load(source).config.mask_id == 42


def test_samplers_of_loaded_models(tmp_path: Path) -> None:
    nemotron, _ = make(tmp_path / "nemotron", "nemotron")
    assert isinstance(jaxsink.sampler_for(nemotron), jaxsink.NemotronSampler)
    a2d, _ = make(tmp_path / "Qwen3-0.6B-diffusion-bd3lm-v0.1", "a2d_qwen3")
    assert type(jaxsink.sampler_for(a2d)) is jaxsink.BD3LMSampler
    other, _ = make(tmp_path / "other", "a2d_llama")
    assert type(jaxsink.sampler_for(other)) is jaxsink.MDLMSampler
    assert jaxsink.sampler_for("nemotron-labs-diffusion-8b") == jaxsink.NemotronSampler(512, 8, 0.9)
