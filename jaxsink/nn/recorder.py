"""Recorder: which tap of the network is read, by which function, and how its values join.

The network shows itself at seven named points of every layer, in this order, and at two of the whole pass (nn/taps.py):

    "embedding"         the residual stream before the first layer; once per pass              -> `VectorTap`
    "residual_before"   the residual stream that enters the layer                              -> `VectorTap`
    "attention"         the probabilities, with the queries, keys and values that made them    -> `Tap`
    "values"            what each head hands on: its probabilities times the values            -> `VectorTap`
    "head_outputs"      the same after the output projection: what each head adds              -> `VectorTap`
    "attention_output"  what all heads together add to the residual stream                     -> `VectorTap`
    "mlp"               what the mlp adds to the residual stream                               -> `VectorTap`
    "residual"          the residual stream after the layer                                    -> `VectorTap`
    "final_norm"        the residual stream after the last layer and the norm; once per pass   -> `VectorTap`

A tap that no recorder reads is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, PyTree

from jaxsink.checks import at_least, check_fields, check_value
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError

TapName = Literal[
    "attention",
    "values",
    "mlp",
    "residual",
    "embedding",
    "residual_before",
    "head_outputs",
    "attention_output",
    "final_norm",
]
OF_PASS = ("embedding", "final_norm")  # taps of the whole pass: a record of them has one layer
Join = Literal["sum", "rows", "once", "whole"]
TreeDef = Any  # jax.tree_util.PyTreeDef, which type checkers do not take for a type


@runtime_checkable
class SeesKeys(Protocol):
    """What a reduction gets beside the value: a tap without `probs`, or the `Keys` of a batch."""

    @property
    def mask(self) -> Bool[Array, "B S"]: ...
    @property
    def tokens(self) -> Int[Array, "B S"]: ...
    @property
    def key_kind(self) -> Int[Array, "B S"]: ...


Ending = Callable[..., PyTree[Array]]


@dataclass(frozen=True)
class Recorder:
    """A function of a tap, how its values on query blocks join, and the layers it is wanted for (None = all).

    Attributes:
        read: the function
        join: "sum" adds the blocks, "rows" puts them side by side along axis 2 ([B,H,Q,...]), "once" never looks at
            `probs` or the queries and runs once per layer, "whole" needs all queries at once (costs S x S memory per layer)
        layers: that it is wanted for; None: all
        reductions: what is made of the values, one after the other; see `then`
        columns: what `read` makes of `probs` is the same if queries are added up first, "all" of them or those of each kind
            ("by kind"). Then a kernel that never holds the probabilities can serve it: the tap has one query per sum
        tap: which point of the layer `read` is shown. Only that of "attention" comes in query blocks; the others are read
            once per layer, whatever `join` says
        of_last_query: only the last real query counts, so steps that do not run it have nothing to record, and values of
            several steps do not add up
        ending: what is made of the values of all layers after the last one, (values, PassEnd, layers) -> pytree; reductions
            come after it
        given: arrays that `ending` works with; they are arguments of the program, and not part of it
        settles: what a query adds is decided by the keys that it sees, so it stays where the query does not run again

    Examples:
        >>> strongest = jaxsink.record.Recorder(lambda tap: tap.probs.max(axis=-1), join="rows")
        >>> jaxsink.forward(model, tokens, record=strongest).record.shape  # layers, sequences, heads, queries
        (4, 1, 4, 19)
        >>> jaxsink.record.maps(heads=[0]).name, jaxsink.record.maps(heads=[0]).heads
        ('maps', (0,))
    """

    read: Callable[..., PyTree[Array]]
    join: Join = "whole"
    layers: tuple[int, ...] | None = None
    reductions: tuple[Callable[..., PyTree[Array]], ...] = ()
    columns: Literal["all", "by kind"] | None = None
    tap: TapName = "attention"
    of_last_query: bool = False
    ending: Ending | None = None
    given: PyTree[Array] = field(default=None, compare=False)
    settles: bool = False

    def __post_init__(self) -> None:
        check_fields(self, "record", {"layers": at_least(0)})
        if self.tap in OF_PASS and self.layers is not None:
            raise JaxsinkError(f"record: the tap {self.tap!r} belongs to no layer; leave the layers out.")

    @property
    def name(self) -> str:
        """What a record without a name of its own is called: "received" for `received()`."""
        found = getattr(self.read, "__name__", type(self.read).__name__).strip("_").lower()
        return found if found.isidentifier() else "value"

    @property
    def heads(self) -> tuple[int, ...] | None:
        """The heads that are kept; None = all."""
        return getattr(self.read, "heads", None)

    @checked(layers=at_least(0))
    def at(self, layers: Sequence[int]) -> Recorder:
        """The same recorder for these layers only; the leading axis then has len(layers) entries, in that order.

        Examples:
            >>> jaxsink.forward(model, tokens, record=jaxsink.record.received().at([0, 3])).record.shape[0]
            2
        """
        chosen = check_value("record: layers", layers, tuple[int, ...], at_least(0))
        if not chosen:
            raise JaxsinkError("record: a recorder needs at least one layer; leave `at` out for all of them.")
        return replace(self, layers=chosen)

    @checked()
    def then(self, reduction: Callable[..., PyTree[Array]]) -> Recorder:
        """Reduce each layer's joined value before it is kept: `received().then(top(5))`. See jaxsink.reduce.

        The reduction gets the value and a tap without `probs`, and must be hashable by value to avoid recompiling. Where
        an autoregressive sampler adds up whole maps, the reduction gets the `Keys` alone: mask, tokens, key_kind.

        Examples:
            >>> first_five = jaxsink.record.received().then(jaxsink.reduce.top(5))
            >>> jaxsink.forward(model, tokens, record=first_five).record["score"].shape  # layers, sequences, heads, ranks
            (4, 1, 4, 5)
        """
        return replace(self, reductions=(*self.reductions, reduction))

    def finish(self, value: PyTree[Array], tap: SeesKeys) -> PyTree[Array]:
        """The joined value of a layer, reduced."""
        for reduction in self.reductions:
            value = only_arrays(self, reduction(value, tap))
        return value

    def of_first_keys(self, length: int) -> Recorder:
        """The same recorder, shown the first `length` keys only: those after them do not belong to the sequence."""
        reductions = tuple(_OfFirstKeys(length, reduction) for reduction in self.reductions)
        return replace(self, read=_OfFirstKeys(length, self.read), reductions=reductions)


@dataclass(frozen=True)
class _OfFirstKeys:
    """The function of a recorder, or a reduction (value, tap), that sees the first `length` keys only."""

    length: int
    function: Callable[..., PyTree[Array]]

    def __call__(self, *arguments: PyTree[Array]) -> PyTree[Array]:
        *value, tap = arguments
        return self.function(*value, tap.first_keys(self.length))


def look(recorder: Recorder, tap: object) -> PyTree[Array]:
    """What its function sees at a tap."""
    return only_arrays(recorder, recorder.read(tap))


def only_arrays(recorder: Recorder, value: PyTree[Array]) -> PyTree[Array]:
    """The value, if it is arrays. They are traced, so that looking at them costs nothing when the program runs."""
    leaves = jax.tree.leaves(value, is_leaf=lambda one: one is None) or [None]
    for leaf in leaves:
        if not isinstance(leaf, (Array, np.ndarray, np.generic, float, int)):
            what = "nothing" if leaf is None else f"a {type(leaf).__name__}"
            raise JaxsinkError(
                f"record: {recorder.name} must return arrays made of what the tap shows, and returned {what}."
            )
    return value


Make = TypeVar("Make", bound=Callable[..., Recorder])
READY_MADE: dict[str, Callable[..., Recorder]] = {}


def ready_made(make: Make) -> Make:
    """Decorates functions that make recorders, so that one given by name or uncalled is recognised."""
    READY_MADE[make.__name__] = make
    return make


@checked(layers=at_least(1), heads=at_least(1))
def compile_record(record: PyTree, layers: int, heads: int) -> tuple[tuple[Recorder, ...], TreeDef]:
    """Flatten a pytree of recorders and functions into (recorders, treedef), both hashable; None records nothing.

    Examples:
        >>> recorders, tree = jaxsink.record.compile_record({"scores": jaxsink.record.received()}, layers=4, heads=4)
        >>> len(recorders), tree.num_leaves
        (1, 1)
    """
    leaves, treedef = jax.tree.flatten(record, is_leaf=callable)
    recorders = []
    for leaf in leaves:
        name = leaf if isinstance(leaf, str) else getattr(leaf, "__name__", "")
        if not isinstance(leaf, Recorder) and not callable(leaf):
            hint = f"; record.{name}() is one" if name in READY_MADE else ""
            raise JaxsinkError(f"record: expected a recorder or a function of the tap, not {leaf!r}{hint}.")
        if READY_MADE.get(name) is leaf:
            raise JaxsinkError(f"record: record.{name} makes a recorder; give record.{name}().")
        recorder = leaf if isinstance(leaf, Recorder) else Recorder(leaf)
        for layer in recorder.layers or ():
            if not 0 <= layer < layers:
                raise JaxsinkError(f"record: layer {layer} is asked for, but the model has layers 0 to {layers - 1}.")
        for head in recorder.heads or ():
            if not 0 <= head < heads:
                raise JaxsinkError(f"record: head {head} is asked for, but the model has heads 0 to {heads - 1}.")
        recorders.append(recorder if recorder.given is None else replace(recorder, given=None))
    return tuple(recorders), treedef


def given_arrays(record: PyTree) -> PyTree[Array]:
    """The arrays that recorders bring along: those of one tuned lens, or none."""
    leaves = jax.tree.leaves(record, is_leaf=callable)
    found = {id(leaf.given): leaf.given for leaf in leaves if isinstance(leaf, Recorder) and leaf.given is not None}
    if len(found) > 1:
        raise JaxsinkError("record: two lenses are tuned differently; record them in runs of their own.")
    return next(iter(found.values()), None)


def wants_targets(recorders: tuple[Recorder, ...]) -> bool:
    """Does one of them ask how a pass ranks the tokens that are written in the end?"""
    return any(getattr(recorder.ending, "wants_targets", False) for recorder in recorders)
