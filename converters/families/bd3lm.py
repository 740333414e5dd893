"""BD3LM and MDLM: a diffusion transformer that is told nothing of the noise, or its total, by blocks or all at once."""

from __future__ import annotations

from typing import Any

from jaxsink.nn.config import ModelConfig

from ..table import MOST_LAYERS, Family, Settings
from .dit import TABLE, dit_fields


def _kuleshov(settings: Settings, adaln: bool) -> dict[str, Any]:
    """BD3LM's and MDLM's names. Without time_conditioning adaLN acts as at level 0."""
    settings.harmless("dropout")
    time = "total" if settings.take("time_conditioning", bool, False) else "constant"
    width = settings.size("cond_dim", 129)
    return {
        **dit_fields(settings, settings.size("hidden_dim", 768), settings.size("n_heads", 12)),
        "layers": settings.size("n_blocks", 12, most=MOST_LAYERS),
        "max_positions": settings.size("model_length", 1024),
        "time_conditioning": time if adaln else None,
        "time_width": width if adaln else None,
    }


def configure_bd3lm(settings: Settings) -> ModelConfig:
    settings.pin("causal", False)
    settings.harmless("attn_backend", "var_min", "sampling_eps_min", "sampling_eps_max")
    is_blocks, block = settings.take("cross_attn", bool, True), settings.size("block_size", 1)
    return ModelConfig(
        family="bd3lm",
        attention="block_causal" if is_blocks else "bidirectional",
        block_length=block if is_blocks else None,
        **_kuleshov(settings, settings.take("adaln", bool, True)),
    )


def configure_mdlm(settings: Settings) -> ModelConfig:
    return ModelConfig(family="mdlm", attention="bidirectional", **_kuleshov(settings, adaln=True))


BD3LM = Family(
    name="bd3lm",
    architectures=("BD3LM",),
    configure=configure_bd3lm,
    table=TABLE,
    harmless_tensors=("{prefix}rotary_emb.inv_freq", "sampling_eps_min", "sampling_eps_max"),
    prefixes=("backbone.",),
    is_diffusion=True,
)
MDLM = Family(
    name="mdlm",
    architectures=("MDLM",),
    configure=configure_mdlm,
    table=TABLE,
    harmless_tensors=("{prefix}rotary_emb.inv_freq",),
    prefixes=("backbone.",),
    is_diffusion=True,
)
