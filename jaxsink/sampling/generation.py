"""`Generation`: the tokens that a model wrote, when it wrote them, and what was recorded on the way."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree, Shaped

import jaxsink
from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.parallel.hosts import to_host
from jaxsink.sampling.canvas import Appending
from jaxsink.sampling.leaves import AnyArray, Kept
from jaxsink.sampling.tidy import Selection, dataframe, dataset
from jaxsink.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class Generation:
    """What `generate` returns. Positions are those of the padded batch: `mask` tells real tokens.

    Examples:
        >>> out
        Generation(1 sequences of 36 tokens, 20 of them prompt, 8 recorded steps, record=float32[8, 4, 1, 4, 36])
        >>> out.texts == [out.text]
        True
        >>> int(out.steps[0]), int(out.committed_at[0, -1])  # the last position was filled in the step of this number
        (8, 2)
    """

    tokens: Int[AnyArray, "B S"]
    """Prompt and response."""
    committed_at: Int[AnyArray, "B S"]
    """The step at which a position was filled, for the first time if it was edited later; -1 for the prompt."""
    record: PyTree[Shaped[AnyArray, "T L B ..."]]
    """What was recorded, as the recorders were given; None without recorders. T counts recorded steps."""
    mask: Bool[AnyArray, "B S"]
    """True = real token."""
    steps: Int[AnyArray, " B"]
    """Steps that each sequence took; one that finished early has zero statistics from there on."""
    prompt_length: int
    """P: the position at which the response starts."""
    recorded_steps: Int[np.ndarray, " T"]
    """The numbers of the recorded steps."""
    approximate: str | None = None
    """"prefix" or "dual": passes ran on a part of the sequence only."""
    log_prob: Float[AnyArray, "B S"] | None = None
    """Of the tokens that an autoregressive model wrote, 0 elsewhere."""
    divergence: Float[AnyArray, "B S"] | None = None
    """KL(unmasked model ‖ this run) before each token that was written, where the sampler measures it."""
    autoregressive: bool = False
    """Whether tokens were written one by one."""
    recorders: PyTree[Kept] = None
    """Names, layers and heads of the record."""
    tokenizer: Tokenizer | None = None
    """That of the model, where it is known."""
    end_ids: tuple[int, ...] = ()
    """Tokens that end a text."""
    appending: Appending | None = None
    """How the canvas grew, where the sampler appended blocks to it."""
    commits: Int[AnyArray, "steps B S"] | None = None
    """Of samplers that may write a position again: the token that each step wrote there, which may be the mask again, -1
    where it wrote none. The first of a position is at `committed_at`, the last is in `tokens`. All steps count, recorded
    or not."""

    def __repr__(self) -> str:
        batch, length = self.tokens.shape
        kept = jax.tree.map(lambda x: f"{np.dtype(x.dtype).name}{list(x.shape)}", self.record)
        return (
            f"Generation({batch} sequences of {length} tokens, {self.prompt_length} of them prompt, "
            f"{len(self.recorded_steps)} recorded steps, record={kept})"
        )

    @property
    def response(self) -> Int[AnyArray, "B R"]:
        """The generated part.

        Examples:
            >>> out.response.shape == (1, out.tokens.shape[1] - out.prompt_length)
            True
        """
        return self.tokens[:, self.prompt_length :]

    @property
    def texts(self) -> list[str]:
        """What the model wrote for each prompt, up to the first end token; filled masks of a prompt count as written."""
        if self.tokenizer is None:
            raise JaxsinkError("the tokenizer of this model is not known; decode `response` with your own.")
        return [self.tokenizer.decode(ids) for ids in self.written()]

    @property
    def text(self) -> str:
        """What the model wrote, where there was one prompt."""
        if len(self.tokens) != 1:
            raise JaxsinkError(f"there are {len(self.tokens)} texts, one per prompt; see `texts`.")
        return self.texts[0]

    def written(self) -> list[list[int]]:
        """Token ids of `texts`: from the first position that was filled to the first end token.

        Examples:
            >>> [model.tokenizer.decode(ids) for ids in out.written()] == out.texts
            True
        """
        rows = []
        for tokens, committed, mask in zip(*map(np.asarray, (self.tokens, self.committed_at, self.mask)), strict=True):
            filled = np.flatnonzero(committed >= 0)
            start = min((self.prompt_length, *filled[:1]))
            response = tokens[self.prompt_length :][mask[self.prompt_length :]].tolist()
            rows.append(tokens[start : self.prompt_length].tolist() + before_end(response, self.end_ids))
        return rows

    def on_host(self) -> Generation:
        """The same with NumPy arrays, whole, in every process.

        Examples:
            >>> type(out.on_host().tokens).__name__
            'ndarray'
        """
        names = ("tokens", "committed_at", "record", "mask", "steps", "recorded_steps", "log_prob", "divergence")
        names += ("commits",)
        return replace(self, **to_host({name: getattr(self, name) for name in names}))

    def show(self, tokenizer: Tokenizer | None = None) -> None:
        """The player page (see `jaxsink.report`): in a notebook in place, else in the browser; its path is printed.

        Examples:
            >>> out.show()  # doctest: +ELLIPSIS
            /...
        """
        jaxsink.show(self, tokenizer)

    @checked(step=at_least(0), mask_id=at_least(0))
    def canvas(self, step: int, mask_id: int) -> Int[np.ndarray, "B S"]:
        """What the model saw at the given step.

        Examples:
            >>> seen = [out.canvas(step, model.config.mask_id) for step in (0, 1, 7)]
            >>> [int((canvas == model.config.mask_id).sum()) for canvas in seen]  # masks left
            [16, 14, 2]
        """
        committed, tokens = np.asarray(self.committed_at), np.asarray(self.tokens)
        if self.commits is not None:
            tokens = tokens_before(np.asarray(self.commits)[:step], tokens)
        return np.where(committed >= step, mask_id, tokens)

    def times_committed(self) -> Int[np.ndarray, "B S"]:
        """How often each position was written: once, unless the sampler edited it.

        Examples:
            >>> int(out.times_committed().sum())  # sixteen tokens, each once
            16
        """
        if self.commits is None:
            return (np.asarray(self.committed_at) >= 0).astype(int)
        return (np.asarray(self.commits) >= 0).sum(axis=0)

    def real_at(self) -> Bool[np.ndarray, "T B S"]:
        """The tokens that exist at each recorded step; an autoregressive model's are written one by one, and some samplers
        append blocks.

        Examples:
            >>> out.real_at().shape, bool(out.real_at().all())  # a canvas that is there from the beginning, without padding
            ((8, 1, 36), True)
        """
        mask = np.asarray(self.mask)
        there = np.ones((len(self.recorded_steps), *mask.shape), bool)
        if self.autoregressive:
            last = self.prompt_length - 1 + np.asarray(self.recorded_steps)
            there = np.arange(mask.shape[1]) <= last[:, None, None]
        if self.appending is not None:
            steps, committed_at = np.asarray(self.recorded_steps), np.asarray(self.committed_at)
            ends = self.appending.ends(committed_at, mask.argmax(axis=1), self.prompt_length, steps)
            there = np.arange(mask.shape[1]) < ends[..., None]
        return mask & there

    def filled(self) -> Bool[np.ndarray, "B S"]:
        """The positions that hold a token in the end: neither padding, nor those after an early end.

        Examples:
            >>> bool(out.filled().all())
            True
        """
        mask = np.asarray(self.mask)
        return mask & ((np.arange(mask.shape[1]) < self.prompt_length) | (np.asarray(self.committed_at) >= 0))

    def recorded_of(self) -> Int[np.ndarray, " B"]:
        """How many of the recorded steps each sequence took, for `sinks.track`.

        Examples:
            >>> out.recorded_of().tolist()
            [8]
        """
        return (np.asarray(self.recorded_steps)[:, None] < np.asarray(self.steps)).sum(axis=0)

    def to_dataframe(
        self,
        record: str | Sequence[str] | None = None,
        *,
        steps: int | Iterable[int] | None = None,
        layers: int | Iterable[int] | None = None,
        sequences: int | Iterable[int] | None = None,
        heads: int | Iterable[int] | None = None,
        max_rows: int = 10_000_000,
    ) -> pd.DataFrame:
        """The record as a tidy pandas table: one row per step, layer, sequence, head and position, a column per recorder.

        record   names of recorders, where several with different axes were given ("split.masked" for parts)
        steps, layers, sequences, heads   numbers to keep, as the model counts them; None = all
        max_rows a table that would be larger is refused

        Rows exist for real tokens (not for padding, nor for what an autoregressive model has not written yet) and for
        the steps that a sequence took. `token_position` counts from the first real token; `text` needs a tokenizer.

        Examples:
            >>> table = out.to_dataframe(steps=0, layers=3)
            >>> len(table)  # heads times positions
            144
            >>> table.nlargest(1, "received").text.item()
            '<|bos|>'
        """
        return dataframe(self, record, Selection(steps, layers, sequences, heads), max_rows)

    def to_xarray(
        self,
        record: str | Sequence[str] | None = None,
        *,
        steps: int | Iterable[int] | None = None,
        layers: int | Iterable[int] | None = None,
        sequences: int | Iterable[int] | None = None,
        heads: int | Iterable[int] | None = None,
    ) -> xr.Dataset:
        """The record as an xarray Dataset with named axes; tokens, `committed_at` and `mask` are coordinates.

        Arguments as for `to_dataframe`. Padding is kept: `mask` (sequence, position) tells real tokens.

        Examples:
            >>> out.to_xarray(layers=3).received.sizes["position"]
            36
        """
        return dataset(self, record, Selection(steps, layers, sequences, heads))

    def plot_received(self, **options: Any) -> Axes:
        """Attention received per position and step; options as for `jaxsink.plots.plot_received`.

        Examples:
            >>> out.plot_received(layer=3, head=0).get_xlabel()
            'step'
        """
        return jaxsink.plots.plot_received(self, **options)

    def plot_trajectory(self, **options: Any) -> Axes:
        """Where the largest sink of a head is, step by step; options as for `jaxsink.plots.plot_trajectory`.

        Examples:
            >>> out.plot_trajectory(layer=3, head=0).get_xlabel()
            'step'
        """
        return jaxsink.plots.plot_trajectory(self, **options)

    def plot_layers(self, **options: Any) -> Axes:
        """How strong the largest sink is in each layer and head; options as for `jaxsink.plots.plot_layers`.

        Examples:
            >>> out.plot_layers().get_ylabel()
            'layer'
        """
        return jaxsink.plots.plot_layers(self, **options)


def tokens_before(commits: Int[np.ndarray, "steps B S"], tokens: Int[np.ndarray, "B S"]) -> Int[np.ndarray, "B S"]:
    """What these steps wrote last at each position; `tokens` where they wrote nothing."""
    if not len(commits):
        return tokens
    last = len(commits) - 1 - (commits[::-1] >= 0).argmax(axis=0)
    written = np.take_along_axis(commits, last[None], axis=0)[0]
    return np.where(written >= 0, written, tokens)


def end_ids(config: ModelConfig) -> tuple[int, ...]:
    """The tokens that end a text."""
    return tuple(dict.fromkeys((*config.eos_ids, *(() if config.eot_id is None else (config.eot_id,)))))


def before_end(ids: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The ids up to the first end token."""
    return list(itertools.takewhile(lambda token: token not in ends, ids))
