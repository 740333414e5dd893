"""Llama 2, 3, 3.1, 3.2, SmolLM2 (all model_type llama) and Mistral."""

from jaxsink.nn.config import ModelConfig

from ..table import Family, Settings
from .hugging_face import DECODER, ROTARY_BUFFERS, common, dense_mlp


def configure_llama(settings: Settings) -> ModelConfig:
    settings.pin("rope_interleaved", False)
    attention_bias = settings.take("attention_bias", bool, False)
    return ModelConfig(
        family="llama",
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        mlp_bias=settings.take("mlp_bias", bool, False),
        **common(settings),
        **dense_mlp(settings),
    )


def configure_mistral(settings: Settings) -> ModelConfig:
    """The window is 4096 unless the config says otherwise; null switches it off."""
    window = settings.size("sliding_window", None) if "sliding_window" in settings.values else 4096
    settings.harmless("sliding_window")
    return ModelConfig(family="mistral", window=window, **common(settings), **dense_mlp(settings))


LLAMA = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    configure=configure_llama,
    table=DECODER,
    harmless_tensors=ROTARY_BUFFERS,
    tied_head="lm_head.weight",
    gguf="llama",
    transformers_class="LlamaForCausalLM",
)
MISTRAL = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    configure=configure_mistral,
    table=DECODER,
    harmless_tensors=ROTARY_BUFFERS,
    tied_head="lm_head.weight",
    transformers_class="MistralForCausalLM",
)
