"""What kind of token a sink is: sink frequency by token and by kind, beside how often each token occurs at all.

    canvas = canvases(out.tokens, out.committed_at, out.recorded_steps, model.config.mask_id)
    found = frequency(detect(out.record, Threshold(), out.mask), canvas, out.mask, model.config.vocab)
    top_tokens(found, tokenizer)

A share alone says little: a mask is the most frequent sink of a canvas that is all masks. So every share comes with the
base rate (the token's share of all occurrences) and their ratio, the lift. Results of several batches are pooled with `+`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Integer, Real, Shaped

from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.text import chat
from jaxsink.text.tokenizer import Tokenizer

KINDS = ("mask", "bos", "eos", "newline", "space", "punctuation", "digit", "special", "template", "word")
NEWLINES = frozenset("\n\r\x85\u2028\u2029")
NOT_THERE = -1
"""In a canvas: no token yet (autoregressive models, whose response grows)."""


@checked()
def kind_table(tokenizer: Tokenizer, config: ModelConfig) -> Int[np.ndarray, " V"]:
    """The kind of every token id, as an index into KINDS.

    The config's mask, bos, eos and eot (counted as eos) go first; an id that is both bos and eos, as in Dream, is eos. Then
    the tokenizer's added tokens: "template" if the model's chat template writes them, else "special". All others go by
    their text, whatever white space surrounds it; a part of a character is a word. Ids without a token are "special".

    Args:
        tokenizer: the model's
        config: the model's

    Examples:
        >>> table = jaxsink.sinks.kind_table(model.tokenizer, model.config)
        >>> table.shape == (model.config.vocab,)
        True
    """
    if tokenizer.size > config.vocab:
        raise JaxsinkError(
            f"the tokenizer in {tokenizer.source} has ids up to {tokenizer.size - 1} but the model has only "
            f"{config.vocab} vocabulary rows; use the tokenizer that belongs to this model."
        )
    table = np.full(config.vocab, KINDS.index("special"), np.int8)
    for index, text in single_texts(tokenizer).items():
        table[index] = KINDS.index(kind_of_text(text))
    spaces = tuple(map(KINDS.index, ("newline", "space")))
    added = {
        index
        for index, token in tokenizer.backend.get_added_tokens_decoder().items()
        if token.special or table[index] not in spaces  # runs of spaces are added tokens in some vocabularies
    }
    named = (*tokenizer.special.values(), config.pad_id)
    added |= {index for index in named if index is not None and index < config.vocab}
    table[list(added)] = KINDS.index("special")
    table[list(added & template_ids(tokenizer))] = KINDS.index("template")
    for kind, ids in (("bos", [config.bos_id]), ("eos", [*config.eos_ids, config.eot_id]), ("mask", [config.mask_id])):
        table[[index for index in ids if index is not None]] = KINDS.index(kind)
    return table


def template_ids(tokenizer: Tokenizer) -> set[int]:
    """Ids in a conversation with all three roles, closed by an answer and opened for the next."""
    if tokenizer.template is None:
        return set()
    messages = [{"role": role, "content": "x"} for role in chat.ROLES]
    return set(tokenizer.encode(chat.render(messages, tokenizer.template)))


def single_texts(tokenizer: Tokenizer) -> dict[int, str]:
    """The text each id adds to a sentence; SentencePiece would drop the space of a token that stands first."""
    vocab = tokenizer.backend.get_vocab(with_added_tokens=True)
    ids = sorted(set(vocab.values()))
    letters = [(len(piece), index) for piece, index in vocab.items() if piece.isascii() and piece.isalpha()]
    before = [min(letters)[1]] if letters else []
    start = len(tokenizer.decode(before, skip_special=False))
    texts = tokenizer.backend.decode_batch([[*before, index] for index in ids], skip_special_tokens=False)
    return {index: text[start:].replace("▁", " ") for index, text in zip(ids, texts, strict=True)}


def kind_of_text(text: str) -> str:
    """The kind of a token that is nothing but its text."""
    core = text.strip()
    if not core:
        return "special" if not text else "newline" if NEWLINES & set(text) else "space"
    classes = set(map(_class, core))
    if classes == {"N"}:
        return "digit"
    return "punctuation" if classes <= {"P", "S"} else "word"


@cache
def _class(char: str) -> str:
    """Unicode's major category; what stands for a part of a character is no symbol."""
    return "" if char == "\ufffd" else unicodedata.category(char)[0]


@checked()
def canvases(
    tokens: Int[ArrayLike, "B S"],
    committed_at: Int[ArrayLike, "B S"],
    recorded_steps: Int[ArrayLike, " T"],
    mask_id: int | None,
    commits: Int[ArrayLike, "steps B S"] | None = None,
) -> Int[Array, "T B S"]:
    """What the model saw at each recorded step; NOT_THERE for tokens that an autoregressive model has yet to write.

    Args:
        tokens: `Generation.tokens`
        committed_at: `Generation.committed_at`
        recorded_steps: `Generation.recorded_steps`
        mask_id: the config's; None: autoregressive
        commits: `Generation.commits`, where a sampler edits what it wrote

    Examples:
        >>> canvas = jaxsink.sinks.canvases(out.tokens, out.committed_at, out.recorded_steps, model.config.mask_id)
        >>> int((canvas[0] == model.config.mask_id).sum())  # masks before the first step
        16
    """
    seen = _canvases(jnp.asarray(tokens), jnp.asarray(committed_at), jnp.asarray(recorded_steps), mask_id)
    return seen if commits is None else _as_written(seen, jnp.asarray(commits), jnp.asarray(recorded_steps))


@jax.jit
def _as_written(
    seen: Int[Array, "T B S"], commits: Int[Array, "steps B S"], recorded_steps: Int[Array, " T"]
) -> Int[Array, "T B S"]:
    """With the tokens that stood there then: what was last committed before each of the steps."""
    step = jnp.arange(len(commits))[:, None, None]
    latest = jax.lax.cummax(jnp.where(commits >= 0, step, -1), axis=0)
    latest = jnp.where(recorded_steps[:, None, None] > 0, latest[recorded_steps - 1], -1)
    then = jnp.take_along_axis(commits, jnp.maximum(latest, 0), axis=0)
    return jnp.where(latest >= 0, then, seen)


@partial(jax.jit, static_argnames="mask_id")
def _canvases(
    tokens: Int[Array, "B S"], committed_at: Int[Array, "B S"], steps: Int[Array, " T"], mask_id: int | None
) -> Int[Array, "T B S"]:
    absent = committed_at >= steps[:, None, None]
    if mask_id is None:  # after an early stop, the rest was never written
        absent |= (committed_at < 0) & (jax.lax.cummax(committed_at, axis=1) >= 0)
    return jnp.where(absent, NOT_THERE if mask_id is None else mask_id, tokens).astype(jnp.int32)


@checked()
@jax.jit
def fresh(committed_at: Int[ArrayLike, "B S"], recorded_steps: Int[ArrayLike, " T"]) -> Bool[Array, "T B S"]:
    """Tokens that the model sees for the first time, because the step just before committed them.

    Args:
        committed_at: `Generation.committed_at`
        recorded_steps: `Generation.recorded_steps`

    Examples:
        >>> jaxsink.sinks.fresh(np.array([[-1, 0, 1]]), np.arange(3))[:, 0].tolist()
        [[False, False, False], [False, True, False], [False, False, True]]
    """
    committed_at = jnp.asarray(committed_at)
    return (committed_at >= 0) & (committed_at == jnp.asarray(recorded_steps)[:, None, None] - 1)


@dataclass(frozen=True)
class Rates:
    """Sinks of N classes (tokens or kinds).

    Attributes:
        count: how many sinks are of the class
        occurrences: how often the class occurs: a token at one step, sequence and position counts once
        all_sinks: sinks of any class
        all_occurrences: occurrences of any class

    Examples:
        >>> canvas = jaxsink.sinks.canvases(out.tokens, out.committed_at, out.recorded_steps, model.config.mask_id)
        >>> sinks = jaxsink.sinks.detect(out.record, jaxsink.sinks.Threshold(), out.mask)
        >>> rates = jaxsink.sinks.frequency(sinks, canvas, out.mask, model.config.vocab).by_token
        >>> int(rates.count.sum()) == rates.all_sinks
        True
        >>> rates.share.shape == rates.base.shape == rates.lift.shape == (model.config.vocab,)
        True
    """

    count: Integer[np.ndarray, "*N"] | np.int64
    occurrences: Integer[np.ndarray, "*N"] | np.int64
    all_sinks: int
    all_occurrences: int

    @property
    def share(self) -> Float[np.ndarray, "*N"]:
        """Of all sinks; NaN without any."""
        return _ratio(self.count, self.all_sinks)

    @property
    def base(self) -> Float[np.ndarray, "*N"]:
        """The base rate: the class's share of all occurrences."""
        return _ratio(self.occurrences, self.all_occurrences)

    @property
    def lift(self) -> Float[np.ndarray, "*N"]:
        """share / base: 1 for a class that sinks no more than its frequency explains; NaN where it never occurs."""
        return _ratio(self.share, self.base)

    def __add__(self, other: Rates) -> Rates:
        return Rates(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True)
class Frequency:
    """How often tokens and kinds are sinks, over all steps, layers, sequences and heads. `+` pools batches of any length.

    Attributes:
        by_token: one class per token id
        by_kind: one class per kind, in the order of KINDS
        freshly_committed: one class, which overlaps the kinds
        per_layer: sinks of each kind in each layer

    Examples:
        >>> sinks = np.array([True, False]).reshape(1, 1, 1, 1, 2)  # [T,L,B,H,S]
        >>> found = jaxsink.sinks.frequency(sinks, np.array([[[7, 9]]]), np.ones((1, 2)), vocab=10)
        >>> (found + found).by_token.all_sinks
        2
    """

    by_token: Rates
    by_kind: Rates | None
    freshly_committed: Rates | None
    per_layer: Integer[np.ndarray, "L kinds"] | None

    def __add__(self, other: Frequency) -> Frequency:
        pairs = list(zip(vars(self).values(), vars(other).values(), strict=True))
        fits = self.by_token.count.shape == other.by_token.count.shape
        if not fits or any(
            np.shape(mine) != np.shape(theirs) or (mine is None) != (theirs is None) for mine, theirs in pairs
        ):
            raise JaxsinkError("frequencies can be pooled if they count the same things of models of the same size.")
        return replace(self, **{n: None if v is None else v + vars(other)[n] for n, v in vars(self).items()})


def positions_that_count(
    canvas: Int[np.ndarray, "T B S"],
    mask: Shaped[np.ndarray, "B S"],
    steps: Int[np.ndarray, " B"] | None = None,
    recorded_steps: Int[np.ndarray, " T"] | None = None,
) -> Bool[np.ndarray, "T B S"]:
    """Real tokens that exist, at the steps that their sequence took."""
    counted = (canvas != NOT_THERE) & mask.astype(bool)
    if steps is not None:
        recorded = np.arange(len(canvas)) if recorded_steps is None else recorded_steps
        counted &= (recorded[:, None] < steps)[:, :, None]
    return counted


@checked(vocab=at_least(1))
def frequency(
    sinks: Bool[ArrayLike, "T L B H S"],
    canvas: Int[ArrayLike, "T B S"],
    mask: Shaped[ArrayLike, "B S"],
    vocab: int,
    table: Int[ArrayLike, " V"] | None = None,
    fresh: Bool[ArrayLike, "T B S"] | None = None,
    steps: Int[ArrayLike, " B"] | Sequence[int] | None = None,
    recorded_steps: Int[ArrayLike, " T"] | Sequence[int] | None = None,
) -> Frequency:
    """Count sinks by the token at their position.

    Args:
        canvas: the tokens of each step, from `canvases`
        mask: True = real token
        table: from `kind_table`, for counts by kind
        fresh: from `fresh`, for the rate of freshly committed tokens
        steps: steps that each sequence took (`Generation.steps`): what comes later counts nowhere
        recorded_steps: if not every step was recorded

    Examples:
        >>> canvas = jaxsink.sinks.canvases(out.tokens, out.committed_at, out.recorded_steps, model.config.mask_id)
        >>> sinks = jaxsink.sinks.detect(out.record, jaxsink.sinks.Threshold(eps=2.0), out.mask)
        >>> found = jaxsink.sinks.frequency(sinks, canvas, out.mask, model.config.vocab)
        >>> found.by_token.all_sinks == int(sinks.sum())
        True
    """
    canvas, counted = _counted(np.shape(sinks), canvas, mask, steps, recorded_steps)
    tokens = canvas[counted]
    wrong = tokens[(tokens < 0) | (tokens >= vocab)]
    if wrong.size:
        raise JaxsinkError(f"the canvas has token id {wrong[0]}, outside the vocabulary of {vocab} rows.")
    kinds = np.full(canvas.shape, len(KINDS))
    if table is not None:
        kinds[counted] = _fitting("table", table, (vocab,))[tokens]
    sums, layers = _sums(jnp.asarray(sinks, bool), jnp.asarray(counted), jnp.asarray(kinds, jnp.int32))
    found = np.asarray(sums).astype(np.int64)
    total, occurrences = int(found.sum()), int(counted.sum())

    def rates(classes: Integer[np.ndarray, "T B S"], size: int) -> Rates:
        weighted = np.bincount(classes[counted], found[counted], size).astype(np.int64)  # float64 is exact to 2**53
        return Rates(weighted, np.bincount(classes[counted], minlength=size), total, occurrences)

    new = None
    if fresh is not None:
        both = counted & _fitting("fresh", fresh, canvas.shape).astype(bool)
        new = Rates(np.asarray(found[both].sum()), np.asarray(both.sum()), total, occurrences)
    return Frequency(
        by_token=rates(canvas, vocab),
        by_kind=None if table is None else rates(kinds, len(KINDS)),
        freshly_committed=new,
        per_layer=None if table is None else np.asarray(layers).astype(np.int64),
    )


def _counted(
    shape: tuple[int, ...],
    canvas: Int[ArrayLike, "T B S"],
    mask: Shaped[ArrayLike, "B S"],
    steps: Int[ArrayLike, " B"] | Sequence[int] | None,
    recorded_steps: Int[ArrayLike, " T"] | Sequence[int] | None,
) -> tuple[Int[np.ndarray, "T B S"], Bool[np.ndarray, "T B S"]]:
    """The canvas, and where it counts, once everything fits sinks of this shape."""
    if len(shape) != 5:
        raise JaxsinkError(f"sinks must be [steps, layers, batch, heads, sequence], not of shape {shape}.")
    count, _, batch, _, length = shape
    canvas = _fitting("canvas", canvas, (count, batch, length))
    if recorded_steps is not None:
        recorded_steps = _fitting("recorded_steps", recorded_steps, (count,))
    if steps is not None:
        steps = _fitting("steps", steps, (batch,))
    return canvas, positions_that_count(canvas, _fitting("mask", mask, (batch, length)), steps, recorded_steps)


@jax.jit
def _sums(
    sinks: Bool[Array, "T L B H S"], counted: Bool[Array, "T B S"], kinds: Int[Array, "T B S"]
) -> tuple[Int[Array, "T B S"], Int[Array, "L kinds"]]:
    """Sums over heads, by token and by layer: the big array is read once, and only sums of it leave the device."""
    by_layer: Int[Array, "T L B S"] = (sinks & counted[:, None, :, None, :]).sum(axis=3, dtype=jnp.int32)
    by_token = by_layer.transpose(0, 2, 3, 1).reshape(-1, by_layer.shape[1])
    layers = jax.ops.segment_sum(by_token, kinds.reshape(-1), len(KINDS))  # kinds beyond the last are dropped
    return by_layer.sum(axis=1), layers.T


class TopToken(TypedDict):
    """A frequent sink token: its text and id, its share of all sinks, its base rate, and their ratio."""

    token: str
    id: int
    share: float
    base: float
    lift: float


@checked(n=at_least(1))
def top_tokens(found: Frequency, tokenizer: Tokenizer, n: int = 5) -> list[TopToken]:
    """The most frequent sink tokens, with their share of all sinks, base rate and lift; ties in order of id.

    Args:
        found: from `frequency`
        tokenizer: for their texts
        n: how many

    Examples:
        >>> canvas = jaxsink.sinks.canvases(out.tokens, out.committed_at, out.recorded_steps, model.config.mask_id)
        >>> sinks = jaxsink.sinks.detect(out.record, jaxsink.sinks.TopK(1), out.mask)
        >>> found = jaxsink.sinks.frequency(sinks, canvas, out.mask, model.config.vocab)
        >>> len(jaxsink.sinks.top_tokens(found, model.tokenizer, n=3))
        3
    """
    rates = found.by_token
    counts = np.asarray(rates.count)
    order = np.argsort(-counts, kind="stable")[:n]
    share, base, lift = rates.share, rates.base, rates.lift
    return [
        TopToken(token=tokenizer.token(i), id=int(i), share=float(share[i]), base=float(base[i]), lift=float(lift[i]))
        for i in order
        if counts[i]
    ]


def _fitting(
    name: str, value: Shaped[ArrayLike, "..."] | Sequence[int], shape: tuple[int, ...]
) -> Shaped[np.ndarray, "..."]:
    value = np.asarray(value)
    if value.shape != shape:
        raise JaxsinkError(f"{name} must have the shape {shape} to fit the sinks, not {value.shape}.")
    return value


def _ratio(part: Real[ArrayLike, "..."], whole: Real[ArrayLike, "..."] | int) -> Float[np.ndarray, "..."]:
    """part / whole in float64; NaN where the whole is 0."""
    part, whole = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
