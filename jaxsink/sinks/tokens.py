"""What kind of token a sink is: sink frequency by token and by kind, beside how often each stands there anyway.

    canvas = canvases(out.tokens, out.committed_at, out.recorded_steps, model.config.mask_id)
    found = frequency(detect(out.record, Threshold(), out.mask), canvas, out.mask, model.config.vocab)
    top_tokens(found, tokenizer)

A share alone says little: a mask is the most frequent sink of a canvas that is all masks. So every share comes with the
base rate (the token's share of all places) and their ratio, the lift. Results of several batches are pooled with `+`.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.text import chat
from jaxsink.text.tokenizer import Tokenizer

KINDS = ("mask", "bos", "eos", "newline", "space", "punctuation", "digit", "special", "template", "word")
NEWLINES = frozenset("\n\r\x85\u2028\u2029")
NOT_THERE = -1  # in a canvas: no token yet (autoregressive models, whose response grows)


def kind_table(tokenizer: Tokenizer, config: ModelConfig) -> np.ndarray:
    """i8[V]: index into KINDS of every vocabulary row.

    The config's mask, bos, eos and eot (counted as eos) go first; an id that is both bos and eos, as in Dream, is eos. Then
    the tokenizer's added tokens: "template" if the model's chat template writes them, else "special". All others go by
    their text, whatever white space surrounds it; a part of a character is a word. Rows without a token are "special".
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


def canvases(tokens: Any, committed_at: Any, recorded_steps: Any, mask_id: int | None) -> Array:
    """i32[T,B,S]: what the model saw at each recorded step; NOT_THERE for tokens an autoregressive model has yet to write.

    tokens, committed_at: i32[B,S] and recorded_steps: i32[T], as in `Generation`. mask_id None: autoregressive.
    """
    return _canvases(jnp.asarray(tokens), jnp.asarray(committed_at), jnp.asarray(recorded_steps), mask_id)


@partial(jax.jit, static_argnames="mask_id")
def _canvases(tokens: Array, committed_at: Array, steps: Array, mask_id: int | None) -> Array:
    absent = committed_at >= steps[:, None, None]
    if mask_id is None:  # a row that stopped early leaves a rest that was never written
        absent |= (committed_at < 0) & (jax.lax.cummax(committed_at, axis=1) >= 0)
    return jnp.where(absent, NOT_THERE if mask_id is None else mask_id, tokens).astype(jnp.int32)


@jax.jit
def fresh(committed_at: Any, recorded_steps: Any) -> Array:
    """bool[T,B,S]: tokens the model sees for the first time, because the step just before committed them.

    committed_at: i32[B,S], recorded_steps: i32[T].
    """
    committed_at = jnp.asarray(committed_at)
    return (committed_at >= 0) & (committed_at == jnp.asarray(recorded_steps)[:, None, None] - 1)


@dataclass(frozen=True)
class Rates:
    """Sinks of N classes (tokens or kinds). A place is one (step, row, position); all places weigh the same."""

    count: np.ndarray  # i64[N], sinks
    places: np.ndarray  # i64[N], places where the class stood
    all_sinks: int
    all_places: int

    @property
    def share(self) -> np.ndarray:
        """f64[N]: of all sinks; NaN without any."""
        return _ratio(self.count, self.all_sinks)

    @property
    def base(self) -> np.ndarray:
        """f64[N]: of all places."""
        return _ratio(self.places, self.all_places)

    @property
    def lift(self) -> np.ndarray:
        """f64[N]: share / base, 1 for a class that sinks no more than its frequency explains; NaN where it never stood."""
        return _ratio(self.share, self.base)

    def __add__(self, other: Rates) -> Rates:
        return Rates(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass(frozen=True)
class Frequency:
    """How often tokens and kinds are sinks, over all steps, layers, rows and heads. `+` pools batches of any length."""

    by_token: Rates  # N = V
    by_kind: Rates | None  # N = len(KINDS), in that order
    freshly_committed: Rates | None  # N = (), overlaps the kinds
    per_layer: np.ndarray | None  # i64[L, len(KINDS)], sinks

    def __add__(self, other: Frequency) -> Frequency:
        parts: list[tuple[Any, Any]] = list(zip(vars(self).values(), vars(other).values(), strict=True))
        fits = self.by_token.count.shape == other.by_token.count.shape
        if not fits or any(
            np.shape(mine) != np.shape(theirs) or (mine is None) != (theirs is None) for mine, theirs in parts
        ):
            raise JaxsinkError("frequencies can be pooled if they count the same things of models of the same size.")
        pooled: list[Any] = [None if mine is None else mine + theirs for mine, theirs in parts]
        return Frequency(*pooled)


def frequency(
    sinks: Any, canvas: Any, mask: Any, vocab: int, table: Any = None, fresh: Any = None, steps: Any = None,
    recorded_steps: Any = None,
) -> Frequency:  # fmt: skip
    """Count sinks bool[T,L,B,H,S] by the token that stands there, canvas i32[T,B,S], where mask bool[B,S] is real.

    table           i8[V] from `kind_table`, for counts by kind
    fresh           bool[T,B,S] from `fresh`, for the row "freshly committed"
    steps           i32[B], steps each row took (`Generation.steps`): what comes later counts nowhere
    recorded_steps  i32[T], if not every step was recorded
    """
    shape = np.shape(sinks)
    if len(shape) != 5:
        raise JaxsinkError(f"sinks must be [steps, layers, batch, heads, sequence], not of shape {shape}.")
    count, _, batch, _, length = shape
    canvas = _fitting("canvas", canvas, (count, batch, length))
    counted = (canvas != NOT_THERE) & _fitting("mask", mask, (batch, length)).astype(bool)
    if steps is not None:
        recorded = np.arange(count) if recorded_steps is None else _fitting("recorded_steps", recorded_steps, (count,))
        counted &= (recorded[:, None] < _fitting("steps", steps, (batch,)))[:, :, None]
    where = canvas[counted]
    wrong = where[(where < 0) | (where >= vocab)]
    if wrong.size:
        raise JaxsinkError(f"the canvas has token id {wrong[0]}, outside the vocabulary of {vocab} rows.")
    kinds = np.full(canvas.shape, len(KINDS))
    if table is not None:
        kinds[counted] = _fitting("table", table, (vocab,))[where]
    sums, layers = _sums(jnp.asarray(sinks, bool), jnp.asarray(counted), jnp.asarray(kinds, jnp.int32))
    found = np.asarray(sums).astype(np.int64)
    total, places = int(found.sum()), int(counted.sum())

    def rates(classes: np.ndarray, size: int) -> Rates:
        weighted = np.bincount(classes[counted], found[counted], size).astype(np.int64)  # float64 is exact to 2**53
        return Rates(weighted, np.bincount(classes[counted], minlength=size), total, places)

    new = None
    if fresh is not None:
        both = counted & _fitting("fresh", fresh, canvas.shape).astype(bool)
        new = Rates(np.asarray(found[both].sum()), np.asarray(both.sum()), total, places)
    return Frequency(
        by_token=rates(canvas, vocab),
        by_kind=None if table is None else rates(kinds, len(KINDS)),
        freshly_committed=new,
        per_layer=None if table is None else np.asarray(layers).astype(np.int64),
    )


@jax.jit
def _sums(sinks: Array, counted: Array, kinds: Array) -> tuple[Array, Array]:
    """(i32[T,B,S], i32[L,len(KINDS)]): the big array is read once, and only sums of it leave the device."""
    by_layer = (sinks & counted[:, None, :, None, :]).sum(axis=3, dtype=jnp.int32)  # [T,L,B,S]
    rows = by_layer.transpose(0, 2, 3, 1).reshape(-1, by_layer.shape[1])
    layers = jax.ops.segment_sum(rows, kinds.reshape(-1), len(KINDS))  # kinds beyond the last are dropped
    return by_layer.sum(axis=1), layers.T


def top_tokens(found: Frequency, tokenizer: Tokenizer, n: int = 5) -> list[dict[str, Any]]:
    """The n most frequent sink tokens, with their share of all sinks, base rate and lift; ties in order of id."""
    rates = found.by_token
    order = np.argsort(-rates.count, kind="stable")[:n]
    share, base, lift = rates.share, rates.base, rates.lift
    return [
        {"token": tokenizer.token(i), "id": int(i), "share": float(share[i]), "base": float(base[i]), "lift": float(lift[i])}
        for i in order
        if rates.count[i]
    ]  # fmt: skip


def _fitting(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    value = np.asarray(value)
    if value.shape != shape:
        raise JaxsinkError(f"{name} must have the shape {shape} to fit the sinks, not {value.shape}.")
    return value


def _ratio(part: Any, whole: Any) -> np.ndarray:
    """f64: part / whole; NaN where the whole is nothing."""
    part, whole = np.broadcast_arrays(np.asarray(part, np.float64), np.asarray(whole, np.float64))
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
