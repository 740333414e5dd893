"""What a sampler is: the way in which a model writes its response, step by step.

`generate`, the planner, the likelihood and the evaluation engine know samplers by this class alone. Subclass
`DiffusionSampler` (diffusion.py) for one that fills masks: it has the loop, and asks for what to commit.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, PyTree

from jaxsink.checks import Range, above, at_least, check_fields
from jaxsink.errors import JaxsinkError, a_model
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.canvas import Appending
from jaxsink.sampling.run import Carry, Decoding

C = TypeVar("C", bound=Carry)

LENGTH = at_least(1, 1 << 20)  # of a response, in tokens or steps
RANGES: Mapping[str, Range] = {  # of settings, in whatever sampler has them
    "gen_length": LENGTH,
    "max_new_tokens": LENGTH,
    "steps": LENGTH,
    "block_length": LENGTH,
    "block_size": LENGTH,
    "small_block_size": LENGTH,
    "steps_per_block": LENGTH,
    "num_to_transfer": LENGTH,
    "max_post_steps": at_least(0, 1 << 20),
    "temperature": at_least(0, 1e6),
    "alg_temp": at_least(0, 1e6),
    "cfg_scale": at_least(0, 1e6),
    "threshold": at_least(0, 1),
    "editing_threshold": at_least(0, 1),
    "top_p": above(0, 1),
    "top_k": at_least(0),
    "eps": Range(0, 1, frozenset({0, 1})),
}


class Sampler(abc.ABC, Generic[C]):
    """Base of all samplers, which are frozen dataclasses of their settings: hashable, so that equal ones share a program.

    Examples:
        >>> isinstance(sampler, jaxsink.Sampler)
        True
        >>> sampler.settings()[:3]
        ('gen_length', 'steps', 'block_length')
        >>> sampler.with_settings({"temperature": 0.5}).temperature
        0.5
        >>> sampler.stated()["remasking"]
        'low_confidence'
        >>> sampler.check(model.config)  # nothing to object to
        >>> sampler.response_length, sampler.with_length(32).response_length, sampler.window(model.config)
        (16, 32, 16)
        >>> sampler.total_steps(16), sampler.passes, sampler.queries_per_step(36)
        (8, 1, 36.0)
        >>> sampler.blank_id(model.config) == model.config.mask_id, sampler.ends_at_eos, sampler.keeps(model.config)
        (True, True, False)
        >>> jaxsink.ARSampler().with_whole_map().whole_map
        True
    """

    is_autoregressive: ClassVar[bool] = False
    length_field: ClassVar[str] = "gen_length"  # the setting that holds the length of the response
    prefills: ClassVar[bool] = False  # has something to run before the first step
    cache: Literal["prefix", "dual"] | None = None  # reuses keys and values, approximately
    infills: ClassVar[bool] = True  # fills masks that stand in the prompt
    later: ClassVar[tuple[str, ...]] = ()  # fields younger than files that name the sampler

    @property
    def response_length(self) -> int:
        """Positions of the response, unless the last block makes it longer (`response_mask`)."""
        return getattr(self, self.length_field)

    @classmethod
    def settings(cls) -> tuple[str, ...]:
        """The names of its fields."""
        return tuple(field.name for field in dataclasses.fields(cls))  # pyright: ignore[reportArgumentType]

    def stated(self) -> dict[str, object]:
        """Its settings, but for those of `later` that are None: older files, reprs and fingerprints stay as they were."""
        values = {name: getattr(self, name) for name in self.settings()}
        return {name: value for name, value in values.items() if name not in self.later or value is not None}

    def check(self, config: ModelConfig) -> None:
        """Raise a JaxsinkError if a setting has not its type or lies outside its range (`RANGES`).

        Subclasses begin with this, and go on with settings that have to fit each other, or the model.
        """
        check_fields(self, type(self).__name__, RANGES)
        if not self.is_autoregressive and config.mask_id is None:
            raise JaxsinkError(
                f"{a_model(config.family)} has no mask token, so {type(self).__name__} cannot run on it."
            )

    @abc.abstractmethod
    def total_steps(self, masks: int) -> int:
        """The most steps that a run takes in which no sequence has more than `masks` masks to fill."""

    @abc.abstractmethod
    def init(self, run: Decoding, tokens: Int[Array, "B S"]) -> C:
        """The carry before the first step."""

    def prefill(self, run: Decoding, carry: C) -> C:
        """What runs once before the first step."""
        return carry

    @abc.abstractmethod
    def step(self, run: Decoding, carry: C, *, record: bool) -> tuple[C, tuple[PyTree, ...]]:
        """One step: the next carry, and one record per recorder of the spec (none unless `record`)."""

    def log_prob(self, carry: C) -> Float[Array, "B S"] | None:
        """Of the tokens that were written, if the sampler knows it."""
        return None

    def divergence(self, carry: C) -> Float[Array, "B S"] | None:
        """From the unmasked model, at the tokens that were written, if the sampler measures it."""
        return None

    def commits(self, carry: C) -> Int[Array, "T B S"] | None:
        """The token that each step wrote at each position, -1 elsewhere; of samplers that may write a position again."""
        return None

    def appending(self, config: ModelConfig) -> Appending | None:
        """How the canvas grows; None = all of it is there from the beginning, or it is written token by token.

        Examples:
            >>> sampler.appending(model.config) is None, jaxsink.BD3LMSampler().appending(model.config) is None
            (True, False)
        """
        return None

    def run_config(self, config: ModelConfig) -> ModelConfig:
        """The configuration under which the model runs: its own, or with blocks of the sampler's length.

        Examples:
            >>> sampler.run_config(model.config) == model.config
            True
        """
        return config

    @property
    def ends_at_eos(self) -> bool:
        """A text is over at its first end token."""
        return True

    def response_mask(
        self, config: ModelConfig, prompt_lengths: Int[np.ndarray, " B"], padded: bool
    ) -> Bool[np.ndarray, "B R"]:
        """The positions of the response that exist. padded: as wide as any prompt could need.

        Examples:
            >>> sampler.response_mask(model.config, np.array([20]), padded=False).shape
            (1, 16)
        """
        return np.ones((len(prompt_lengths), self.response_length), bool)

    def widest_response(self, config: ModelConfig) -> int:
        """Positions of a response in a padded batch, whatever the prompts.

        Examples:
            >>> sampler.widest_response(model.config)
            16
        """
        return self.response_mask(config, np.ones(1, int), padded=True).shape[1]

    def blank_id(self, config: ModelConfig) -> int:
        """What stands in the response before it is written."""
        return filler_id(config)

    @abc.abstractmethod
    def window(self, config: ModelConfig) -> int:
        """Positions whose logits a step computes."""

    def keeps(self, config: ModelConfig) -> bool:
        """What is finished never changes again, nor its keys and values: a step may run its block alone, exactly."""
        return False

    def queries_per_step(self, length: int) -> float:
        """Tokens of a sequence of this length that run in a step, on average."""
        return float(length)

    @property
    def passes(self) -> int:
        """Times that the layers run in a step."""
        return 1

    def with_length(self, length: int) -> Self:
        """The sampler for a response of another length."""
        return self.with_settings({self.length_field: length})

    def with_settings(self, changes: Mapping[str, object]) -> Self:
        """The sampler with these settings changed."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def with_whole_map(self) -> Self:
        """The sampler that records the attention of all queries so far, where a step has only the newest one."""
        return self


def filler_id(config: ModelConfig) -> int:
    """What stands where a sequence has ended."""
    return config.pad_id if config.pad_id is not None else (config.eos_ids or (0,))[0]


def require(condition: bool, message: str) -> None:
    if not condition:
        raise JaxsinkError(message)
