"""AdamW for everything, or Muon for the matrices of the layers and Adam for the rest; warm-up and cosine, clipped gradients.

Muon steps along the nearest orthogonal matrix of the momentum. On the word problems that come with the package it needs
about three quarters of AdamW's steps for the same loss. Its own products do not depend on the batch: for small batches of
wide models they cost as much as the gradient, and AdamW is the better choice.
"""

from __future__ import annotations

import jax
import optax
from jaxtyping import PyTree
from optax import contrib

from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import Model
from jaxsink.training.settings import Settings

DECAY_OF_SQUARES = 0.98  # Adam's second moment
MUON = 10.0  # its learning rate, in units of Adam's
LAST = 0.01  # of the learning rate is left at the end


def schedule(settings: Settings) -> optax.Schedule:
    """Step -> Adam's learning rate: up to the peak in `warmup` steps, then down a half cosine to 1 % of it."""
    peak, warmup = settings.learning_rate, min(settings.warmup, settings.steps // 2)
    start = peak / (warmup + 1)
    return optax.warmup_cosine_decay_schedule(start, peak, warmup, settings.steps, LAST * peak)


def is_matrix(name: str) -> bool:
    """The matrices of the layers: not norms, biases, embeddings and the head. They decay, and are Muon's."""
    return name.startswith("layers.") and name.endswith("weight") and "norm" not in name


def for_muon(model: Model) -> PyTree:
    """The model's tree with Muon's description of each matrix, None for what is Adam's."""
    leaves, treedef = named_leaves(model)
    return jax.tree.unflatten(
        treedef,
        [contrib.MuonDimensionNumbers() if is_matrix(name) and leaf.ndim == 2 else None for name, leaf in leaves],
    )


def decaying(params: PyTree) -> PyTree:
    """True where weights decay: the matrices of the layers, and all adapters."""
    if not isinstance(params, Model):
        return jax.tree.map(lambda leaf: True, params)
    leaves, treedef = named_leaves(params)
    return jax.tree.unflatten(treedef, [is_matrix(name) for name, _ in leaves])


def make_optimizer(settings: Settings) -> optax.GradientTransformation:
    """For unrolled models, whose matrices have two axes, or for adapters."""
    rate = schedule(settings)
    if settings.optimizer == "adamw":
        steps = optax.adamw(rate, b2=DECAY_OF_SQUARES, weight_decay=settings.decay, mask=decaying)
    else:
        steps = contrib.muon(
            lambda step: MUON * rate(step),
            weight_decay=settings.decay,
            adam_b2=DECAY_OF_SQUARES,
            adam_weight_decay=0.0,
            adam_learning_rate=rate,
            muon_weight_dimension_numbers=for_muon,  # pyright: ignore[reportArgumentType]
        )
    return optax.chain(optax.clip_by_global_norm(settings.clip), steps)
