"""Nemotron-Labs-Diffusion: Ministral's decoder under other names, one set of weights for three attention patterns."""

from __future__ import annotations

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import AttentionKind, ModelConfig

from ..table import Family, Settings, short
from .hugging_face import DECODER, common, dense_mlp

TABLE = {
    ours: theirs.replace("model.", "encoder.", 1).replace("lm_head", "diffusion_head")
    for ours, theirs in DECODER.items()
}
# A training view, [noisy | clean], is what "block_diff" stands for: such weights decode as the bidirectional ones do.
PARADIGMS: dict[str, AttentionKind] = {
    "bidirectional": "bidirectional",
    "block_diff": "bidirectional",
    "autoregressive": "causal",
}


def configure_nemotron(settings: Settings) -> ModelConfig:
    settings.harmless("ar_loss_weight", "dlm_loss_weight", "dp_varying_mask_ratio")
    settings.pin("sliding_window", None)
    paradigm = settings.take("dlm_paradigm", str, "bidirectional")
    if paradigm not in PARADIGMS:
        raise JaxsinkError(
            f"{settings.where}: 'dlm_paradigm' must be one of {', '.join(PARADIGMS)}, not {short(paradigm)}."
        )
    bias = settings.take("attention_bias", bool, False)
    return ModelConfig(
        family="nemotron",
        attention=PARADIGMS[paradigm],
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=settings.take("mlp_bias", bool, False),
        mask_id=settings.id("mask_token_id"),
        writes_causally=True,
        usual_block=settings.size("block_size", None),  # of training; a sampler has a block of its own
        **common(settings, head_dim=128, scaled_queries=True),
        **dense_mlp(settings),
    )


NEMOTRON = Family(
    name="nemotron",
    architectures=("NemotronLabsDiffusionModel",),
    configure=configure_nemotron,
    table=TABLE,
    tied_head="diffusion_head.weight",
    is_diffusion=True,
)
