"""Fast-dLLM v2: Qwen2.5 made block-causal, with the names and settings of Qwen2 and one of its own, the block."""

from __future__ import annotations

from jaxsink.nn.config import ModelConfig

from ..table import Family, Settings
from .hugging_face import DECODER, ROTARY_BUFFERS
from .qwen import configure_qwen2


def configure_fast_dllm(settings: Settings) -> ModelConfig:
    """`conplemenrary_mask` (so spelt) is of training; the mask is no setting, the tokenizer has it as |<MASK>|."""
    settings.harmless("conplemenrary_mask", "complementary_mask")
    changes = {"attention": "block_causal", "block_length": settings.size("bd_size", 32), "shift_logits": True}
    return configure_qwen2(settings).replace(family="fast_dllm", mask_id=settings.id("mask_token_id"), **changes)


FAST_DLLM = Family(
    name="fast_dllm",
    architectures=("Fast_dLLM_QwenForCausalLM",),
    configure=configure_fast_dllm,
    table=DECODER,
    harmless_tensors=ROTARY_BUFFERS,
    tied_head="lm_head.weight",
    is_diffusion=True,
    published_ids={"mask": 151665, "eos": 151645},  # no config names the mask
)
