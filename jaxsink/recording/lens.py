"""The logit lens: what each layer would predict if it were the last one.

The final norm and the head are applied to the residual stream after every layer. A layer keeps the residual stream of the
chosen queries only; after the last layer all of them are read at once, in blocks of the vocabulary and, if there are many,
of queries, so that [L, B, S, V] is never there: sums, divergences and the best tokens grow from block to block.

A lens belongs to a query, as raw logits do: where logits are shifted (Dream), where the model predicts the next token, and
where a sampler reads it so, the query of a position speaks of the token after it; "position" says of which. Tokens, ranks
and positions of queries that do not count (padding, finished sequences, queries and steps that did not run) are -1, and
their numbers 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Float32, Int

from jaxsink.checks import at_least, check_value
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.context import LayerContext, select
from jaxsink.nn.pass_end import PassEnd, TunedLens
from jaxsink.nn.recorder import Recorder, ready_made
from jaxsink.nn.sharding import DATA, keep_layout
from jaxsink.nn.taps import VectorTap
from jaxsink.recording.lens_sums import Aim, Block, Sums, best_on
from jaxsink.recording.tuned import load_lens

VOCABULARY = 1024  # tokens in a block, of each part of the head
MISSING = {"token": -1, "rank": -1, "position": -1}
BLOCK_BYTES = 4 << 20  # of the logits of a block, on each device

Tuned = TunedLens | str | os.PathLike[str] | None
TOKEN = at_least(0, 1 << 31)
Positions = Literal["window"] | Sequence[int] | None


@ready_made
@checked(top=at_least(1), positions=TOKEN)
def lens(top: int = 5, positions: Positions = None, *, rank: bool = False, tuned: Tuned = None) -> Recorder:
    """{"token": i32, "log_prob": f32[B,P,top], "entropy", "kl": f32[B,P], "position": i32[B,P]} of each layer.

    The `top` best tokens and their log-probabilities; the entropy in nats; KL(last layer ‖ this layer); and the position
    that the prediction is about, -1 where there is none.

    Args:
        positions: token positions of the queries, counted from the first real token; "window": the queries from
            which the sampler reads in the step (what it may write next); None: all
        rank: also "rank": i32[B,P], the rank of the token that is written there in the end, 0 = the best.
            `generate` runs twice for it, first without records; `forward`, and a `generate` that shall not,
            take `targets=`
        tuned: an affine map per layer before the norm: a TunedLens, or the file that `jaxsink train --lens`
            wrote

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.lens(top=3))
        >>> seen.record["token"].shape  # layers, sequences, positions, best tokens
        (4, 1, 19, 3)
        >>> bool((abs(seen.record["kl"][-1]) < 1e-3).all())  # the last layer against itself
        True
    """
    return _recorder(Lens(top, rank, tuned is not None), positions, tuned)


@ready_made
@checked(positions=TOKEN)
def lens_logits(positions: Positions = None, *, tuned: Tuned = None) -> Recorder:
    """f32[B,P,V]: all logits of each layer, [L,B,P,V] in memory: for few positions, or few layers (`.at`).

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.lens_logits(positions=[0]))
        >>> seen.record.shape == (4, 1, 1, model.config.vocab)
        True
    """
    return _recorder(LensLogits(tuned is not None), positions, tuned)


def _recorder(ending: Lens | LensLogits, positions: Positions, tuned: Tuned) -> Recorder:
    if isinstance(positions, str):
        if positions != "window":
            raise JaxsinkError(f"record.lens: positions must be token positions, 'window' or None, not {positions!r}.")
        chosen: Queries = Queries(window=True)
    else:
        hint = tuple[int, ...] | None
        chosen = Queries(check_value("record.lens: positions", positions, hint, at_least(0)))
        if chosen.positions == ():
            raise JaxsinkError("record.lens: positions names none; leave it out for all of them.")
    read = ChosenResidual(chosen)
    given = tuned if tuned is None or isinstance(tuned, TunedLens) else load_lens(tuned)
    return Recorder(read, "once", tap="residual", ending=Ended(ending, chosen), given=given)


@dataclass(frozen=True)
class Queries:
    """Those whose predictions are read; None = all of the pass."""

    positions: tuple[int, ...] | None = None
    window: bool = False

    def index(self, context: LayerContext) -> Int[Array, "B P"] | None:
        """Which queries of the pass; None = all."""
        if self.window:
            return context.window
        if self.positions is None:
            return None
        length = context.keys.mask.shape[-1]
        if max(self.positions) >= length:
            raise JaxsinkError(f"record.lens: there is no position {max(self.positions)} in {length} tokens.")
        return jnp.argmax(self._is_at(context), axis=1)

    def found(self, context: LayerContext) -> Bool[Array, "B P"]:
        """True = it ran, and counts."""
        counted = select(context.queries.counted, self.index(context))
        return counted if self.positions is None else counted & self._is_at(context).any(axis=1)

    def _is_at(self, context: LayerContext) -> Bool[Array, "B Q P"]:
        queries = context.queries
        number = context.keys.counted.cumsum(axis=1) - 1
        number = jnp.take_along_axis(
            number, jnp.broadcast_to(queries.position, queries.kind.shape), axis=1, mode="clip"
        )
        return (number[..., None] == jnp.array(self.positions)) & queries.counted[..., None]


@dataclass(frozen=True)
class ChosenResidual:
    """Of a layer: the residual stream of the chosen queries."""

    queries: Queries

    def __call__(self, tap: VectorTap) -> Float[Array, "B P E"]:
        return select(tap.vectors, self.queries.index(tap.context))

    @property
    def __name__(self) -> str:
        return "lens"


@dataclass(frozen=True)
class Ended:
    """After the last layer: the chosen queries of all layers become what is kept."""

    kept: Lens | LensLogits
    queries: Queries

    @property
    def missing(self) -> dict[str, int]:
        """What stands for a query that did not run, where it is not 0."""
        return {} if isinstance(self.kept, LensLogits) else MISSING

    @property
    def wants_targets(self) -> bool:
        return isinstance(self.kept, Lens) and self.kept.rank

    def __call__(
        self, residual: Float[Array, "L B P E"], end: PassEnd, layers: tuple[int, ...] | None
    ) -> dict[str, Array] | Array:
        context = end.context
        if self.kept.is_tuned:
            assert context.tuned is not None
            residual = context.tuned.moved(residual, layers)
        index = self.queries.index(context)
        found = self.queries.found(context)
        whole = layers is None and not self.kept.is_tuned
        position = select(_position(context), index)
        query = jnp.broadcast_to(jnp.arange(found.shape[1]), found.shape) if index is None else index
        read = Read(residual, end.final(index), found, query, position, len(residual), whole)
        return self.kept.read(read, end)


class Read(NamedTuple):
    """What the head is applied to. Of the last layer it is what the model's own head reads, in the same shape, so its
    logits are the model's to the bit."""

    hidden: Float[Array, "L B P E"]  # once `normed`; the residual streams before
    final: Float[Array, "B P E"]  # of the last layer
    found: Bool[Array, "B P"]
    query: Int[Array, "B P"]  # its number in the pass
    position: Int[Array, "B P"]
    layers: int
    with_final: bool  # `final` is the last of the layers, and not in `hidden` once that is normed

    def normed(self, end: PassEnd) -> Read:
        """Left to each block of queries, because norms are as large as the residual streams of all layers."""
        return self._replace(hidden=end.all_normed(self.hidden[:-1] if self.with_final else self.hidden, self.query))

    def both(self, function: Callable[[Float[Array, "*lead E"]], Array]) -> tuple[Array, Array]:
        """What a function of hidden states makes of (all layers, the last layer)."""
        others, final = function(self.hidden), function(self.final)
        return jnp.concatenate([others, final[None]]) if self.with_final else others, final

    def cut(self, start: Int[Array, ""], size: int) -> Read:
        """Some of the queries."""
        part = lambda x, axis: lax.dynamic_slice_in_dim(x, start, size, axis)  # noqa: E731
        queries = {name: part(getattr(self, name), 1) for name in ("final", "found", "query", "position")}
        return self._replace(hidden=part(self.hidden, 2), **queries)


@dataclass(frozen=True)
class LensLogits:
    is_tuned: bool

    def read(self, read: Read, end: PassEnd) -> Float32[Array, "L B P V"]:
        read = read.normed(end)
        logits = read.both(lambda x: lax.map(end.model.logits, x) if x.ndim == 4 else end.model.logits(x))[0]
        return jnp.where(read.found[..., None], logits, 0.0)


@dataclass(frozen=True)
class Lens:
    top: int
    rank: bool
    is_tuned: bool

    def read(self, read: Read, end: PassEnd) -> dict[str, Array]:
        vocab = end.config.vocab
        if self.top > vocab:
            raise JaxsinkError(f"record.lens: top {self.top} is more than the vocabulary of {vocab} tokens.")
        batch, queries, _ = read.final.shape
        mesh, parts = end.context.execution.mesh, end.head_parts
        room = BLOCK_BYTES * parts * (1 if mesh is None else mesh.shape[DATA])
        size = max(1, room // (4 * read.layers * batch * parts * tokens_at_once(end)))
        kept = self._rows(end, read) if size >= queries else self._by_queries(end, read, size)
        kept = {name: jnp.where(_like(read.found, x), x, MISSING.get(name, 0)) for name, x in kept.items()}
        about = jnp.where(read.found, read.position + ahead(end), -1)
        return kept | {"position": jnp.broadcast_to(about, kept["kl"].shape)}

    def _by_queries(self, end: PassEnd, read: Read, size: int) -> dict[str, Array]:
        """The same, `size` queries at a time; the last block begins where it ends with the last query."""
        count = read.final.shape[1]
        starts = jnp.minimum(jnp.arange(0, count, size), count - size)

        blocks = lax.map(lambda start: self._rows(end, read.cut(start, size)), starts)
        number = jnp.minimum(jnp.arange(count) // size, len(starts) - 1)
        place = jnp.arange(count) - starts[number]
        return {name: jnp.moveaxis(x[number, :, :, place], 0, 2) for name, x in blocks.items()}

    def _rows(self, end: PassEnd, read: Read) -> dict[str, Array]:
        """All blocks of the vocabulary."""
        parts, mesh = end.head_parts, end.context.execution.mesh
        each, size = end.config.vocab // parts, tokens_at_once(end)
        read = read.normed(end)
        hidden, final = (keep_layout(x, mesh, -3) for x in (read.hidden, read.final))  # once, not for every block
        read = read._replace(hidden=hidden, final=final)
        aim = None
        if self.rank:
            token = _targets(end, read.position)
            aim = Aim(token, read.both(lambda hidden: end.logits_of(hidden, token))[0])
        begins = each * jnp.arange(parts)[:, None]

        def add(number: Int[Array, ""] | int, sums: Sums) -> Sums:
            first = jnp.minimum(number * size, each - size)
            within = first + jnp.arange(size)
            logits, last = read.both(lambda hidden: end.some_logits(hidden, first, size))
            block = Block(logits, last, begins + within, within >= number * size)
            return sums.with_block(block, aim, best_of).spread(mesh)

        count, best_of = -(-each // size), best_on(mesh)
        start = Sums.empty((read.layers, *read.found.shape, parts), self.top).spread(mesh)
        sums = add(0, start) if count == 1 else lax.fori_loop(0, count, add, start)
        return keep_layout(sums, mesh, 1).kept(self.rank, read.with_final, best_of)


def tokens_at_once(end: PassEnd) -> int:
    """In a block, of each part."""
    return min(end.config.vocab // end.head_parts, VOCABULARY)


def ahead(end: PassEnd) -> Int[Array, "B 1"] | int:
    """From a query to the position that it speaks of: as the sampler reads it, or as the model predicts."""
    return int(end.config.predicts_next) if end.context.ahead is None else end.context.ahead[:, None]


def _position(context: LayerContext) -> Int[Array, "B Q"]:
    return jnp.broadcast_to(context.queries.position, context.queries.kind.shape)


def _targets(end: PassEnd, position: Int[Array, "B P"]) -> Int[Array, "B P"]:
    """The token that a query's prediction is about; of the last one in a shifted model, its own."""
    tokens = end.context.targets
    if tokens is None:
        raise JaxsinkError("record.lens: rank=True needs to know the tokens; give targets=.")
    return jnp.take_along_axis(tokens, jnp.minimum(position + ahead(end), tokens.shape[1] - 1), axis=1, mode="clip")


def _like(found: Bool[Array, "B P"], x: Array) -> Bool[Array, "..."]:
    return found.reshape(*found.shape, *[1] * (x.ndim - 3))
