"""GIDD: the parameters of BD3LM and MDLM, told the level of a noise that may be random tokens."""

from __future__ import annotations

import math

from jaxsink.nn.config import ModelConfig

from ..table import MOST_LAYERS, Family, Settings
from .dit import TABLE, dit_fields

LEAST_UNIFORM = math.exp(-20)  # of random tokens; its own code takes no less


def configure_gidd(settings: Settings) -> ModelConfig:
    settings.harmless("t_eps")
    return ModelConfig(
        family="gidd",
        attention="bidirectional",
        layers=settings.size("num_hidden_layers", 12, most=MOST_LAYERS),
        max_positions=settings.size("max_seq_len", 1024),
        time_conditioning="level",
        time_width=settings.size("timestep_cond_dim", 128),
        uniform_noise=max(LEAST_UNIFORM, settings.take("p_uniform", float, 0.0)),
        **dit_fields(settings, settings.size("hidden_size", 768), settings.size("num_attention_heads", 12)),
    )


GIDD = Family(
    name="gidd",
    architectures=("DIT",),
    configure=configure_gidd,
    table=TABLE,
    harmless_tensors=("rotary_emb.cos_cached", "rotary_emb.sin_cached"),
    is_diffusion=True,
)
