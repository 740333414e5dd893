"""The planted model of `jaxsink.study.planted` with a small vocabulary, and what its keys receive."""

from __future__ import annotations

import numpy as np

import jaxsink
from jaxsink.study import planted
from support.configs import FAMILIES

VOCAB, MASK = 12, 11


def planted_model(strength: np.ndarray) -> jaxsink.Model:
    """strength f32[L,H,V]: the attention logit that each token gets from every query of a head."""
    return planted.planted_model(strength, FAMILIES["llada"].replace(mask_id=MASK, eos_ids=(1,)))


def expected_received(strength: np.ndarray, canvas: np.ndarray, hidden: np.ndarray | None = None) -> np.ndarray:
    """f64[T,L,B,H,S] of canvases [T,B,S]: S times each row's softmax, with hidden [T,L,B,H,S] keys left out."""
    logits = np.moveaxis(strength[:, :, canvas].astype(np.float64), (0, 1), (1, 3))  # [T,L,B,H,S]
    weight = np.exp(logits) if hidden is None else np.where(hidden, 0, np.exp(logits))
    return canvas.shape[-1] * weight / weight.sum(axis=-1, keepdims=True)
