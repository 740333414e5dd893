"""GPT-2: LayerNorm, learned positions, and Conv1D weights stored [in, out] with q, k and v in one tensor."""

from __future__ import annotations

import numpy as np

from jaxsink.nn.config import ModelConfig

from ..table import MOST_LAYERS, Family, From, Settings, split_width

ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}


def transposed(source: str) -> From:
    return From(source, shape=lambda ours: ours[::-1], take=lambda x, config: x.T)


def one_of_qkv(source: str, number: int) -> From:
    """The number-th third of the last axis; a matrix is also turned to [out, in]."""

    def shape(ours: tuple[int, ...]) -> tuple[int, ...]:
        return (*ours[:0:-1], 3 * ours[0])

    def take(x: np.ndarray, config: ModelConfig) -> np.ndarray:
        return np.split(x, 3, axis=-1)[number].T

    return From(source, shape, take)


TABLE = {
    "embedding": "{prefix}wte.weight",
    "position": "{prefix}wpe.weight",
    "layers.attention_norm.weight": "{prefix}h.{layer}.ln_1.weight",
    "layers.attention_norm.bias": "{prefix}h.{layer}.ln_1.bias",
    "layers.attention.q.weight": one_of_qkv("{prefix}h.{layer}.attn.c_attn.weight", 0),
    "layers.attention.k.weight": one_of_qkv("{prefix}h.{layer}.attn.c_attn.weight", 1),
    "layers.attention.v.weight": one_of_qkv("{prefix}h.{layer}.attn.c_attn.weight", 2),
    "layers.attention.q.bias": one_of_qkv("{prefix}h.{layer}.attn.c_attn.bias", 0),
    "layers.attention.k.bias": one_of_qkv("{prefix}h.{layer}.attn.c_attn.bias", 1),
    "layers.attention.v.bias": one_of_qkv("{prefix}h.{layer}.attn.c_attn.bias", 2),
    "layers.attention.o.weight": transposed("{prefix}h.{layer}.attn.c_proj.weight"),
    "layers.attention.o.bias": "{prefix}h.{layer}.attn.c_proj.bias",
    "layers.mlp_norm.weight": "{prefix}h.{layer}.ln_2.weight",
    "layers.mlp_norm.bias": "{prefix}h.{layer}.ln_2.bias",
    "layers.mlp.up.weight": transposed("{prefix}h.{layer}.mlp.c_fc.weight"),
    "layers.mlp.up.bias": "{prefix}h.{layer}.mlp.c_fc.bias",
    "layers.mlp.down.weight": transposed("{prefix}h.{layer}.mlp.c_proj.weight"),
    "layers.mlp.down.bias": "{prefix}h.{layer}.mlp.c_proj.bias",
    "norm.weight": "{prefix}ln_f.weight",
    "norm.bias": "{prefix}ln_f.bias",
    "head.weight": "lm_head.weight",
}


def configure_gpt2(settings: Settings) -> ModelConfig:
    settings.pin("scale_attn_weights", True)
    settings.pin("scale_attn_by_inverse_layer_idx", False)
    settings.pin("n_special", 0)  # rows of the embedding beyond the vocabulary, in files of 2019
    settings.harmless(
        "attn_pdrop",
        "embd_pdrop",
        "n_ctx",
        "predict_special_tokens",
        "reorder_and_upcast_attn",
        "resid_pdrop",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    )
    settings.pin("activation_function", *ACTIVATIONS)
    width, heads = settings.size("n_embd"), settings.size("n_head")
    return ModelConfig(
        family="gpt2",
        layers=settings.size("n_layer", most=MOST_LAYERS),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_dim=split_width(settings, width, heads),
        mlp_width=settings.size("n_inner", 4 * width),
        vocab=settings.size("vocab_size"),
        norm="layer",
        norm_eps=settings.positive("layer_norm_epsilon", 1e-5),
        mlp="plain",
        activation=ACTIVATIONS[settings.take("activation_function", str, "gelu_new")],  # pyright: ignore
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        positions="learned",
        max_positions=settings.size("n_positions"),
        tied=settings.take("tie_word_embeddings", bool, True),
        eos_ids=settings.ids("eos_token_id"),
        bos_id=settings.id("bos_token_id"),
        pad_id=settings.id("pad_token_id"),
        eot_id=settings.id("eot_token_id"),
    )


GPT2 = Family(
    name="gpt2",
    architectures=("GPT2LMHeadModel",),
    configure=configure_gpt2,
    table=TABLE,
    harmless_tensors=("{prefix}h.{layer}.attn.bias", "{prefix}h.{layer}.attn.masked_bias"),
    tied_head="lm_head.weight",
    prefixes=("transformer.", ""),
    transformers_class="GPT2LMHeadModel",
)
