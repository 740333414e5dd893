"""The three models that come with the package: one size, one task, three ways to be trained and to write.

    mini-llama   autoregressive
    mini-llada   masked diffusion from scratch, decoded block by block
    mini-dream   masked diffusion, adapted from mini-llama: shifted logits, the whole answer at once

`jaxsink.load("mini-llada")` finds the weights; this table has everything else that belongs to a name.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.autoregressive import ARSampler
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.dream import DreamSampler
from jaxsink.sampling.llada import LLaDASampler
from jaxsink.tasks.word_tasks import SUMS
from jaxsink.training.settings import Settings

_IDS, RESPONSE = SUMS.tokenizer().special, SUMS.response
_LLAMA = ModelConfig(
    family="llama",
    layers=4,
    width=128,
    heads=4,
    kv_heads=4,
    head_dim=32,
    mlp_width=384,
    vocab=SUMS.tokenizer().size,
    norm_eps=1e-5,
    rope_theta=1e3,
    max_positions=4 * SUMS.length,
    eos_ids=(_IDS["eos"],),
    bos_id=_IDS["bos"],
    pad_id=_IDS["pad"],
)
_LLADA = _LLAMA.replace(family="llada", attention="bidirectional", skip_gaps=False, mask_id=_IDS["mask"])
_DREAM = _LLAMA.replace(family="dream", attention="bidirectional", shift_logits=True, mask_id=_IDS["mask"])


@dataclass(frozen=True)
class Builtin:
    """A built-in model: the sampler that it is meant for, and the settings that it was trained with."""

    config: ModelConfig
    sampler: Sampler
    settings: Settings


BUILTIN: dict[str, Builtin] = {
    "mini-llama": Builtin(
        _LLAMA,
        ARSampler(max_new_tokens=RESPONSE),
        Settings(objective="causal", steps=600),
    ),
    "mini-llada": Builtin(
        _LLADA,
        LLaDASampler(gen_length=RESPONSE, steps=RESPONSE, block_length=8),
        Settings(objective="diffusion", steps=8000, predict="mixed"),
    ),
    "mini-dream": Builtin(
        _DREAM,
        DreamSampler(max_new_tokens=RESPONSE, steps=RESPONSE, alg="entropy"),
        Settings(objective="adaptation", steps=1800, predict="mixed", init="mini-llama"),
    ),
}


def builtin(name: str) -> Builtin:
    """The built-in model of that name, or an error that lists all."""
    if name not in BUILTIN:
        raise JaxsinkError(f"there is no built-in model {name!r}; there are {', '.join(BUILTIN)}.")
    return BUILTIN[name]
