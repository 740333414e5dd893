"""MMaDA, its text half: LLaDA's names and settings, and rows of the vocabulary that are image codes."""

from __future__ import annotations

from jaxsink.nn.config import ModelConfig

from ..table import Family, Settings
from .llada import LLADA_IDS, TABLE, olmo_fields


def configure_mmada(settings: Settings) -> ModelConfig:
    settings.harmless(
        "codebook_size",
        "new_vocab_size",
        "num_new_special_tokens",
        "num_vq_tokens",
        "pretrained_model_path",
        "tokenizer_path",
        "w_clip_vit",
    )
    return ModelConfig(family="mmada", text_vocab=settings.size("llm_vocab_size", None), **olmo_fields(settings))


MMADA = Family(
    name="mmada",
    architectures=("MMadaModelLM",),
    configure=configure_mmada,
    table=TABLE,
    tied_head="model.transformer.ff_out.weight",
    is_diffusion=True,
    published_ids=LLADA_IDS,
)
