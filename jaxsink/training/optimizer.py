"""AdamW with warm-up and cosine, clipped gradients, and weight decay where it belongs."""

from __future__ import annotations

from typing import Any

import jax
import optax

from jaxsink.model import Model
from jaxsink.storage import named_leaves
from jaxsink.training.settings import Settings

BETAS = (0.9, 0.98)
LAST = 0.01  # of the learning rate is left at the end


def schedule(settings: Settings) -> optax.Schedule:
    """Step -> learning rate: up to the peak in `warmup` steps, then down a half cosine to 1 % of it."""
    peak, warmup = settings.learning_rate, min(settings.warmup, settings.steps // 2)
    start = peak / (warmup + 1)
    return optax.warmup_cosine_decay_schedule(start, peak, warmup, settings.steps, LAST * peak)


def decays(name: str) -> bool:
    """Weight decay is for the matrices of the layers: not for norms, biases, embeddings and the head."""
    return name.startswith("layers.") and name.endswith("weight") and "norm" not in name


def decay_mask(model: Model) -> Any:
    """The model's tree with True where weights decay."""
    leaves, treedef = named_leaves(model)
    return jax.tree.unflatten(treedef, [decays(name) for name, _ in leaves])


def make_optimizer(settings: Settings) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(settings.clip),
        optax.adamw(schedule(settings), *BETAS, weight_decay=settings.decay, mask=decay_mask),
    )
