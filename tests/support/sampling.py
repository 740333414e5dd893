"""What the samplers' tests share: prompts, models that like to write end tokens, and an intervention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxsink
from support.configs import FAMILIES, VARIANTS
from support.models import lively

PROMPTS = np.random.default_rng(7).integers(4, 60, (2, 6))
EOS = {
    "llada": {"eos_ids": (47, 5), "eot_id": 18},
    "sdar": {"eos_ids": (57,)},
    "fast_dllm": {"eos_ids": (57,)},
    "llada2": {"eos_ids": (57,)},
}  # tokens that these models like to write


@cache
def model_of(family: str) -> jaxsink.Model:
    return lively((FAMILIES | VARIANTS)[family].replace(**EOS.get(family.partition(",")[0], {})), seed=3)


@dataclass(frozen=True)
class DropLargest:
    """Hide from every head the key that received most in the step before."""

    rank_on: str = "masked"

    def __call__(self, previous: Any) -> Any:
        score = jnp.where(previous.mask[None, :, None, :], previous.record, -1.0)
        return jax.nn.one_hot(score.argmax(axis=-1), score.shape[-1], dtype=bool)
