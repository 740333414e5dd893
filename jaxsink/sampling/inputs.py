"""What a run starts from, made of what the caller gives: padded prompts, the blank response, masks, seeds and policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax import Array
from jaxtyping import Bool, Int
from numpy.typing import ArrayLike

from jaxsink.arrays import check_array
from jaxsink.checks import check_value
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.inputs import TRUTHS, as_numbers
from jaxsink.nn.placed import Placed, Source
from jaxsink.sampling.base import Sampler, filler_id
from jaxsink.sampling.rng import DrawName, Draws, check_seeds, replayed, sequence_keys
from jaxsink.sampling.run import RunInputs, RunSpec

Place = Callable[[np.ndarray, int], Array]  # puts an array with its batch at the given axis on the devices


@dataclass(frozen=True)
class Start:
    """The canvas before the first step, on the host."""

    canvas: Int[np.ndarray, "B S"]
    mask: Bool[np.ndarray, "B S"]  # True = real token
    prompt: Bool[np.ndarray, "B S"]  # True = given by the caller, and not a mask to fill
    prompt_length: int
    masks: int  # the most masks that any sequence has to fill
    infill: bool  # some stand in the prompt

    @classmethod
    def make(
        cls,
        config: ModelConfig,
        sampler: Sampler,
        tokens: Int[np.ndarray, "B P"],
        mask: Bool[np.ndarray, "B P"],
        *,
        padded: bool = False,
        force: Sequence[Sequence[int]] | None = None,
    ) -> Start:
        """padded: give the response room for any prompt. force: what an autoregressive model is made to write."""
        fills = not sampler.is_autoregressive
        is_gap = (tokens == config.mask_id) & mask & fills
        response = sampler.response_mask(config, mask.sum(axis=1), padded)
        blank = np.where(response, sampler.blank_id(config), filler_id(config))
        if force is not None:
            blank = forced_response(force, blank.shape, config)
        canvas = np.concatenate([tokens, blank], axis=1).astype(np.int32)
        real = np.concatenate([mask, response], axis=1)
        longest = canvas.shape[1] if config.positions == "learned" else int(real.sum(axis=1).max())
        if longest > config.max_positions:
            raise JaxsinkError(
                f"prompt and response of {longest} tokens exceed the {config.max_positions} positions that the model was "
                "made for; shorten one of them."
            )
        return cls(
            canvas=canvas,
            mask=real,
            prompt=np.concatenate([mask & ~is_gap, np.zeros_like(response)], axis=1),
            prompt_length=tokens.shape[1],
            masks=int(is_gap.sum(axis=1).max()) + response.shape[1],
            infill=bool(is_gap.any()),
        )

    def inputs(
        self,
        spec: RunSpec,
        vocab: int,
        place: Place,
        seed: int | Sequence[int],
        draws: Mapping[DrawName, ArrayLike] | None,
        policy: Int[np.ndarray, " B"],
        edits: tuple[tuple[Placed, ...], tuple[Source, ...]] = ((), ()),
    ) -> RunInputs:
        """What stays the same in all steps, on the devices."""
        batch = len(self.canvas)
        keys = sequence_keys(place(check_seeds(seed, batch), 0))
        shape = (spec.total_steps, *self.canvas.shape)
        replay = {name: place(value, 1) for name, value in replayed(draws, shape, vocab).items()}
        return RunInputs(
            mask=place(self.mask, 0),
            prompt=place(self.prompt, 0),
            draws=Draws(keys, **replay),
            policy=place(policy.astype(np.int32), 0),
            edits=edits[0],
            sources=jax.tree.map(lambda x: place(np.asarray(x), 2), edits[1]),
        )


def policy_numbers(policies: Sequence[int] | None, batch: int, count: int | None) -> Int[np.ndarray, " B"]:
    """Which of an intervention's policies each sequence follows: in turns, unless the caller says so. count: how many it
    has; None: it does not say."""
    policy = np.arange(batch) if policies is None else np.asarray(policies)
    if policy.shape != (batch,) or not np.issubdtype(policy.dtype, np.integer):
        raise JaxsinkError(f"policies must be a whole number per prompt ({batch}), not {policies!r}.")
    if policies is None or count is None:
        return policy
    if ((policy < 0) | (policy >= count)).any():
        raise JaxsinkError(
            f"policies must be numbers from 0 to {count - 1}, as intervene has {count} (see sinks.Turns), not {policies!r}."
        )
    return policy


def pad_prompts(
    config: ModelConfig, prompts: ArrayLike | Sequence[Sequence[int]], mask: ArrayLike | None, pad_to: int | None
) -> tuple[Int[np.ndarray, "B P"], Bool[np.ndarray, "B P"]]:
    """(tokens, mask), padded on the left; pad_to: to a multiple of this."""
    pad = config.pad_id if config.pad_id is not None else 0
    if isinstance(prompts, (list, tuple)) and len({as_numbers("prompts", ids).shape for ids in prompts}) > 1:
        if mask is not None:
            raise JaxsinkError("prompts given as lists of different lengths need no mask.")
        lists = [list(ids) for ids in prompts]  # pyright: ignore[reportArgumentType]
        if not all(lists):
            raise JaxsinkError("prompts must not be empty: every sequence needs at least one token.")
        width = max(map(len, lists))
        mask = np.array([[False] * (width - len(ids)) + [True] * len(ids) for ids in lists])
        prompts = [[pad] * (width - len(ids)) + ids for ids in lists]
    tokens = np.asarray(as_numbers("prompts", prompts))
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise JaxsinkError(f"prompts must be [batch, length] or lists of ids, none of them empty, not {tokens.shape}.")
    if not np.issubdtype(tokens.dtype, np.integer):
        raise JaxsinkError(f"prompts must be token ids, not {tokens.dtype}.")
    real = np.ones(tokens.shape, bool) if mask is None else np.asarray(as_numbers("mask", mask)).astype(bool)
    if real.shape != tokens.shape:
        raise JaxsinkError(f"mask must have the prompts' shape {tokens.shape}, not {real.shape}.")
    if mask is not None:
        check_array("mask", mask, TRUTHS)
    if not real[:, -1].all():
        raise JaxsinkError("prompts must be padded on the left: the last token of every sequence must be real.")
    if config.block_length is not None and (real[:, :-1] & ~real[:, 1:]).any():
        raise JaxsinkError(
            "mask has padding between real tokens, where a block-causal model would lose count of its blocks; pad on the "
            "left only."
        )
    wrong = tokens[(tokens < 0) | (tokens >= config.vocab)]
    if wrong.size:
        raise JaxsinkError(f"token id {wrong[0]} is outside the model's vocabulary of {config.vocab} rows.")
    widths = ((0, 0), (0 if pad_to is None else -tokens.shape[1] % pad_to, 0))
    return np.pad(tokens, widths, constant_values=pad), np.pad(real, widths)


def forced_response(
    force: Sequence[Sequence[int]], shape: tuple[int, ...], config: ModelConfig
) -> Int[np.ndarray, "B R"]:
    """What is to be written, -1 where the model is free."""
    check_value("force", [tuple(ids) if isinstance(ids, list) else ids for ids in force], tuple[tuple[int, ...], ...])
    if len(force) != shape[0]:
        raise JaxsinkError(f"force has {len(force)} sequences, and there are {shape[0]} prompts.")
    wanted = np.full(shape, -1, np.int32)
    for sequence, ids in zip(wanted, force, strict=True):
        if len(ids) > shape[1]:
            raise JaxsinkError(f"force: {len(ids)} tokens do not fit the {shape[1]} that the sampler writes.")
        if any(not 0 <= int(token) < config.vocab for token in ids):
            raise JaxsinkError(f"force: token ids must lie between 0 and {config.vocab - 1}.")
        sequence[: len(ids)] = ids
    return wanted
