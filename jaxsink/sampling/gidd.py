"""GIDD's sampler: noise that mixes masks with other tokens, so that what stands there may be written anew."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float32

from jaxsink.errors import a_model
from jaxsink.nn.conditioning import as_time
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import require
from jaxsink.sampling.canvas import Commit, Window
from jaxsink.sampling.confidence import softmax, token_noise, without
from jaxsink.sampling.diffusion import DiffusionSampler
from jaxsink.sampling.rng import Draws


class Marginal(NamedTuple):
    """A token after noise: itself with weight `kept`, the mask with `mask`, any other token with `other` each."""

    kept: np.ndarray
    mask: np.ndarray
    other: np.ndarray


class Posterior(NamedTuple):
    """Of every step from level t to level s: how a token at s becomes one at t, and what a clean one is at s."""

    level: Float32[np.ndarray, " T"]  # t
    forward: Marginal  # from s to t
    before: Marginal  # from nothing to s

    def at(self, step: Array) -> Posterior:
        """The numbers of one step."""
        return jax.tree.map(lambda x: jnp.asarray(x)[step], self)


@cache
def posterior(steps: int, eps: float, uniform: float, vocab: int) -> Posterior:
    """In float64 on the host: the differences are small ones of large numbers."""
    t = (1 - 2 * eps) * np.linspace(1, 0, steps + 1) + eps
    others = 2 * uniform / (1 - uniform) * np.sqrt(t * (1 - t))  # at t = 1/2 they are a share `uniform`
    whole = 1 + others
    now = Marginal((1 - t) / whole, t / whole, others / whole / (vocab - 1))
    ratio = now.kept[:-1] / now.kept[1:]
    forward = Marginal(ratio, now.mask[:-1] - ratio * now.mask[1:], now.other[:-1] - ratio * now.other[1:])
    narrow = (Marginal(*(x.astype(np.float32) for x in part)) for part in (forward, Marginal(*(x[1:] for x in now))))
    return Posterior(t[:-1].astype(np.float32), *narrow)


@dataclass(frozen=True)
class GIDDSampler(DiffusionSampler):
    """GIDD's generation: every step draws all positions of the response from the posterior between two noise levels.

    Levels go from 1 - eps to eps in equal steps. A position that holds a token may take another one, or the mask again
    (rarely), as long as noise is left: `Generation.commits` has all of it. The last step leaves no mask.

    Attributes:
        gen_length: tokens of the response
        steps: noise levels
        eps: distance of the first and the last noise level from 1 and 0

    Examples:
        >>> jaxsink.GIDDSampler(gen_length=16, steps=32).total_steps(16)
        32
    """

    gen_length: int = 128
    steps: int = 128
    eps: float = 1e-4

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        require(0 < self.eps < 0.5, f"GIDDSampler: eps must lie in (0, 0.5), and is {self.eps}.")
        require(
            config.uniform_noise > 0,
            f"GIDDSampler: {a_model(config.family)}'s config does not say how much noise is tokens (uniform_noise).",
        )

    @property
    def edits(self) -> bool:
        return True

    def total_steps(self, masks: int) -> int:
        return self.steps

    def _posterior(self, config: ModelConfig, window: Window) -> Posterior:
        return posterior(self.steps, self.eps, config.uniform_noise, config.vocab).at(window.step)

    def time(self, config: ModelConfig, window: Window) -> Float32[Array, " B"] | None:
        return as_time(config, jnp.full(len(window.position), self._posterior(config, window).level))

    def decide(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window, draws: Draws) -> Commit:
        assert config.mask_id is not None
        log_weight = self.log_weights(config, logits, window)
        is_last = (window.step == self.steps - 1) & (jnp.arange(config.vocab) == config.mask_id)
        noise = token_noise(draws, window, config.vocab)
        token = jnp.argmax(jnp.where(is_last, -jnp.inf, log_weight + noise), axis=-1)
        return Commit(token, window.read & (token != window.token))

    def log_weights(self, config: ModelConfig, logits: Float[Array, "B W V"], window: Window) -> Float[Array, "B W V"]:
        """log q(token at s | token at t): q(t | s) times q(s | clean), over q(t), with what the model takes for clean."""
        assert config.mask_id is not None and window.token is not None
        _, forward, before = self._posterior(config, window)
        ids = jnp.arange(config.vocab)
        clean = softmax(without(logits, (config.mask_id,)))
        at_s = before.kept * clean + jnp.where(ids == config.mask_id, before.mask, before.other)
        here = window.token[..., None]
        arrives = jnp.where(here == config.mask_id, forward.mask, forward.other)
        return jax.nn.log_softmax(jnp.log(at_s) + jnp.log(arrives + jnp.where(ids == here, forward.kept, 0.0)))
