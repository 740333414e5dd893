"""The model: embedding, layers (scanned or unrolled), final norm and head; and `forward`, the one way through it."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jax.core import Tracer
from jax.sharding import Mesh

from jaxsink.errors import JaxsinkError
from jaxsink.nn.attention import Inputs, Sequence, Visibility, attend, choose_backend, heads_first
from jaxsink.nn.batch import Batch, Execution, token_kinds
from jaxsink.nn.compilation import model_jit
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.kernels.tiles import on_tpu
from jaxsink.nn.layer import Layer, Linear, Maker, Norm, product, random_maker, rope_table
from jaxsink.nn.layer_stack import scanned_layers, unrolled_layers
from jaxsink.nn.memory import (
    ACTIVATIONS,
    LOGITS,
    MAPS,
    RECORDS,
    WEIGHTS,
    activation_bytes,
    explained,
    tree_bytes,
    wait_on_cpu,
)
from jaxsink.nn.origin import Luggage, Origin
from jaxsink.parallel.layout import keep_layout
from jaxsink.recording.recorders import Recorder, compile_record

if TYPE_CHECKING:
    from jaxsink.text.tokenizer import Tokenizer


class Transformer(nnx.Module):
    """Weights and their configuration; a pytree, so it passes through jit, grad, device_put and tree.map.

    Its origin (tokenizer, recommended sampler) goes along through astype, device_put and tree.map, which takes that of its
    first model. A function under jax.jit sees and returns models without one, because its program serves all models of
    the config; `with_origin` gives it back.
    """

    def __init__(self, config: ModelConfig, make: Maker):
        self.config = config
        self.luggage = Luggage(Origin())
        self.embedding = nnx.Param(make((config.vocab, config.width), "matrix"))
        learned = config.positions == "learned"
        self.position = nnx.Param(make((config.max_positions, config.width), "matrix")) if learned else None
        self.extra_sink = nnx.Param(make((config.width,), "matrix")) if config.extra_sink else None
        self.layers: Layer | nnx.List[Layer] = Layer(make, (config.layers,), config)
        self.norm = Norm(make, (), config.width, config)
        self.head = Linear(make, (), config.vocab, config.width) if config.has_head else None

    @property
    def params(self) -> dict[str, Any]:
        """The weights as nested dictionaries of arrays."""
        return nnx.to_pure_dict(nnx.state(self, nnx.Param))

    @property
    def dtype(self) -> Any:
        return self.embedding[...].dtype

    @property
    def is_unrolled(self) -> bool:
        return not isinstance(self.layers, Layer)

    @property
    def origin(self) -> Origin:
        return self.luggage.origin

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the checkpoint that the model was loaded from."""
        return self.origin.tokenizer(self.config.family)

    def with_origin(self, origin: Origin) -> Transformer:
        """The same weights under another origin."""
        other = copy(self)
        other.luggage = Luggage(origin)
        return other

    @classmethod
    def _pytree__unflatten(cls, static: Any, node_attrs: Any) -> Transformer:
        """Flax's own; but what is traced has no origin, or a compiled function would give all models that of the first."""
        model = super()._pytree__unflatten(static, node_attrs)
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(model.embedding)):
            object.__setattr__(model, "luggage", Luggage(Origin()))
        return model

    def __call__(
        self,
        batch: Batch,
        *,
        cache: Cache | None = None,
        drop: Array | None = None,
        recorders: tuple[Recorder, ...] = (),
        execution: Execution = Execution(),  # noqa: B008
        head: bool = True,
    ) -> Output:
        """One pass. drop: bool[L,B,H,S], True = hidden from every query; or f32[L,B,H,S], factors on attention."""
        run = Pass(
            Sequence(batch.tokens, batch.kind, batch.counted), batch.mask, batch.visible, drop, cache, batch.start,
            batch.queries, batch.outputs, execution.mesh,
        )  # fmt: skip
        hidden, records, cache = transform(self, run, recorders, execution.backend)
        return Output(logits(self, hidden) if head else None, records, hidden, cache)

    def logits(self, hidden: Array) -> Array:
        """f32[…,V] of hidden states […,E] after the final norm."""
        return logits(self, hidden)

    def astype(self, dtype: Any) -> Transformer:
        return jax.tree.map(lambda x: x.astype(dtype), self)

    def unrolled(self) -> Transformer:
        """The same model with a list of layers instead of stacked ones: compiles longer, runs faster on CPU."""
        if self.is_unrolled:
            return self
        layers = [jax.tree.map(lambda x, i=i: x[i], self.layers) for i in range(self.config.layers)]
        return self._with_layers(nnx.List(layers))

    def stacked(self) -> Transformer:
        """The inverse of `unrolled`."""
        if isinstance(self.layers, Layer):
            return self
        return self._with_layers(jax.tree.map(lambda *xs: jnp.stack(xs), *self.layers))

    def _with_layers(self, layers: Layer | nnx.List[Layer]) -> Transformer:
        other = jax.tree.map(lambda x: x, self)
        other.layers = layers
        return other


Model = Transformer  # the public name


def init(config: ModelConfig, seed: int = 0, dtype: Any = "float32") -> Transformer:
    """A model with random weights, for training and tests."""
    return jax.jit(lambda: Transformer(config, random_maker(seed, dtype)))()


def abstract(config: ModelConfig, dtype: Any = "float32") -> Transformer:
    """The model with shapes in the place of weights; allocates nothing, whatever its size."""
    from jaxsink.nn.quantization import BESIDE, INT8, quantized  # which knows models

    if dtype == INT8:
        return jax.eval_shape(lambda: quantized(Transformer(config, random_maker(0, BESIDE))))
    return jax.eval_shape(lambda: Transformer(config, random_maker(0, dtype)))


class Output(NamedTuple):
    """What a pass gives. `Transformer.__call__` has one record per recorder, `forward` the pytree that it was given."""

    logits: Array | None  # f32[B,S or W,V], raw: Dream's are not shifted; None without the head
    record: Any  # each leaf with a leading layer axis; None without recorders
    hidden: Array  # [B,S or W,E], after the final norm
    cache: Cache | None = None  # with the keys and values of the tokens that ran


def forward(
    model: Transformer,
    tokens: Any,
    mask: Any = None,
    visible: Any = None,
    drop: Any = None,
    record: Any = None,
    *,
    scale: Any = None,
    prompt: Any = None,
    backend: str | None = None,
) -> Output:
    """Run the model over whole sequences, and return logits and what the recorders saw.

    tokens   int[B,S]
    mask     bool[B,S], True = real token; padding may stand left, right or between
    visible  bool[B,S,S], (query, key) pairs that may see each other, on top of the family's own pattern
    drop     bool[L,B,H,S], True = no query of that layer and head may see this key
    scale    f32[L,B,H,S], factors on the attention that keys receive, before rows re-normalise: 0 hides, 1 leaves alone
    record   a recorder (see jaxsink.record), a function of the tap, or any pytree of them
    prompt   bool[B,S], True = prompt token; only used to tell queries apart in `record.received_by_query`
    backend  "naive", "blocked" or "pallas"; None chooses by device and size, with the same results
    """
    config = model.config
    tokens, mask, visible, drop, scale, prompt = check_inputs(config, tokens, mask, visible, drop, scale, prompt)
    if scale is not None:
        drop = scale if drop is None else jnp.where(drop, 0.0, scale)
    recorders, treedef = compile_record(record, config.layers, config.heads)
    from jaxsink.parallel.mesh import mesh_of  # which knows models

    mesh = mesh_of(model)
    backend = choose_backend(backend, tokens.shape[1], tokens.shape[1], mesh)
    with explained(
        "this pass", lambda: _bytes_needed(model, tokens, mask, visible, drop, prompt, recorders, backend, mesh)
    ):
        logits_, records, hidden = _forward(model, tokens, mask, visible, drop, prompt, recorders, backend, mesh)
        wait_on_cpu(logits_)
    return Output(logits_, jax.tree.unflatten(treedef, records), hidden)


@model_jit(static=("recorders", "backend", "mesh"))
def _forward(
    model: Transformer,
    tokens: Array,
    mask: Array,
    visible: Array | None,
    drop: Array | None,
    prompt: Array | None,
    recorders: tuple[Recorder, ...],
    backend: str,
    mesh: Any,
) -> tuple[Array, tuple[Any, ...], Array]:
    sequence = Sequence(tokens, token_kinds(model.config, tokens, prompt), counted=mask)
    hidden, records, _ = transform(model, Pass(sequence, mask, visible, drop, mesh=mesh), recorders, backend)
    return keep_layout(logits(model, hidden), mesh), keep_layout(records, mesh, 1, 2), keep_layout(hidden, mesh)


def _bytes_needed(model: Transformer, tokens: Array, *inputs: Any) -> dict[str, int]:
    """Of one pass, by what fills them; inputs: those of `_forward`."""
    *arrays, recorders, backend, mesh = inputs
    run = partial(_forward, recorders=recorders, backend=backend, mesh=mesh)
    logits_, records, _ = jax.eval_shape(run, model, tokens, *arrays)
    batch, length = tokens.shape
    maps = 4 * batch * model.config.heads * length**2 if backend == "naive" else 0
    return {
        WEIGHTS: tree_bytes(model),
        ACTIVATIONS: activation_bytes(model.config, batch, length, model.dtype),
        RECORDS: tree_bytes(records),
        LOGITS: tree_bytes(logits_),
        MAPS: maps,
    }


class Cache(NamedTuple):
    """Keys and values of every layer, written at the places of the tokens that run.

    They lie heads first, as products read them: [L,B,K,S,D] for stacked layers. Unrolled ones have L arrays [B,K,S,D], so
    that a step copies none of them.
    """

    k: Array | tuple[Array, ...]
    v: Array | tuple[Array, ...]

    @property
    def length(self) -> int:
        return jax.tree.leaves(self.k)[0].shape[-2]


def empty_cache(model: Transformer, batch: int, length: int) -> Cache:
    config = model.config
    shape = (batch, config.kv_heads, length, config.head_dim)

    def empty() -> Array | tuple[Array, ...]:
        if model.is_unrolled:
            return tuple(jnp.zeros(shape, model.dtype) for _ in range(config.layers))
        return jnp.zeros((config.layers, *shape), model.dtype)

    return Cache(empty(), empty())


class Pass(NamedTuple):
    """What one pass through the layers works on, besides the model."""

    sequence: Sequence  # all S tokens
    mask: Array  # bool[B,S], True = real token
    visible: Array | None = None  # bool[B,Q,S]
    drop: Array | None = None  # bool[L,B,H,S], or f32[L,B,H,S] factors
    cache: Cache | None = None  # keys and values of the tokens that do not run
    start: Array | int = 0  # with a cache: index of the first token that runs …
    queries: int | None = None  # … and how many run; without one, all do
    outputs: Array | None = None  # i32[B,W], which of those that run the caller wants the hidden states of; None = all
    mesh: Mesh | None = None  # where the model lies


def transform(
    model: Transformer, run: Pass, recorders: tuple[Recorder, ...], backend: str
) -> tuple[Array, tuple[Any, ...], Cache | None]:
    """Everything below the head: (hidden [B,Q or W,E], one record per recorder with layers leading, the written cache).

    Where few outputs are wanted, an unrolled model runs the end of its last layer for those only.
    """
    config = model.config
    key_position = positions(config, run.mask)

    def that_run(x: Array) -> Array:
        return x if run.queries is None else lax.dynamic_slice_in_dim(x, run.start, run.queries, axis=1)

    tokens, position = that_run(run.sequence.tokens), that_run(key_position)
    rows, row_kind = that_run(run.sequence.counted), that_run(run.sequence.kind)
    x = model.embedding[...][tokens]
    if model.position is not None:
        x = x + model.position[...][jnp.clip(position, 0, config.max_positions - 1)]
    table = rope_table(config, position) if config.positions == "rope" else None
    visibility = Visibility(
        mask=run.mask,
        key_position=key_position,
        query_position=position,
        query_index=run.start + jnp.arange(tokens.shape[1]),
        custom=run.visible,
        causal=config.attention == "causal",
        block=config.block_length,
        window=config.window,
        use_window=None,
    )

    before_first = rope_table(config, jnp.full((1, 1), -1)) if config.positions == "rope" else None

    def run_layer(
        layer: Layer, state: Any, cache: Cache | None, drop: Any, index: Any, use_window: Any, wanted: Any, last: bool
    ) -> Any:
        x, sink = state
        extra = None
        if sink is not None:
            _, sink_k, sink_v = layer.attention.project(layer.attention_norm(sink), before_first)
            extra = (sink_k[0, 0], sink_v[0, 0])
            sink = layer.finish(sink, jnp.repeat(sink_v, config.heads // config.kv_heads, axis=2))
        q, k, v = layer.attention.project(layer.attention_norm(x), table)
        if cache is not None:
            all_k, k = written(cache.k, k, index, run.start)
            all_v, v = written(cache.v, v, index, run.start)
            cache = Cache(all_k, all_v)
        see = visibility._replace(use_window=use_window)
        inputs = Inputs(q, k, v, see, drop, rows, row_kind, x, jnp.asarray(index), run.sequence, extra, run.mesh)
        mixed, records = attend(inputs, wanted, backend)
        if last:
            x, mixed = wanted_rows(x, run.outputs), wanted_rows(mixed, run.outputs)
        return (layer.finish(x, mixed), sink), cache, records

    windows = None if config.window_layers is None else np.array(config.window_layers)
    if isinstance(model.layers, Layer):
        loop, layers = scanned_layers, model.layers.by_head() if on_tpu(run.mesh) else model.layers
    else:
        loop, layers = unrolled_layers, model.layers
    state = (x, None if model.extra_sink is None else model.extra_sink[...][None, None])
    (x, _), cache, records = loop(layers, run_layer, state, run.cache, run.drop, windows, recorders, config.layers)
    if not model.is_unrolled:
        x = wanted_rows(x, run.outputs)
    return model.norm(x), records, cache


def wanted_rows(x: Array, index: Array | None) -> Array:
    """[B,Q,…] at i32[B,W] -> [B,W,…]."""
    return x if index is None else jnp.take_along_axis(x, index.reshape(*index.shape, *[1] * (x.ndim - 2)), axis=1)


def written(cache: Any, new: Array, layer: Any, start: Any) -> tuple[Any, Array]:
    """One half of a cache with new keys or values [B,Q,K,D] of one layer in it, and all [B,S,K,D] of that layer."""
    new = heads_first(new)
    if isinstance(cache, tuple):
        here = lax.dynamic_update_slice(cache[layer], new, (0, 0, start, 0))
        return (*cache[:layer], here, *cache[layer + 1 :]), heads_first(here)
    cache = lax.dynamic_update_slice(cache, new[None], (layer, 0, 0, start, 0))
    return cache, heads_first(cache[layer])


def logits(model: Transformer, hidden: Array) -> Array:
    """f32[...,V] of hidden states [...,E] after the final norm."""
    weight = model.embedding[...] if model.head is None else model.head.weight[...]
    return product(hidden, weight, jnp.float32)


def positions(config: ModelConfig, mask: Array) -> Array:
    """i32[B,S]: 0 at the first real token, so left padding never changes what a token sees of its distances."""
    if config.skip_gaps:
        return jnp.maximum(jnp.cumsum(mask, axis=1) - 1, 0)
    return jnp.maximum(jnp.arange(mask.shape[1]) - jnp.argmax(mask, axis=1, keepdims=True), 0)


def check_inputs(
    config: ModelConfig, tokens: Any, mask: Any, visible: Any, drop: Any, scale: Any, prompt: Any
) -> tuple[Any, ...]:
    """The inputs as arrays of the right shapes and kinds, or one sentence about what is wrong."""
    shape = np.shape(tokens)
    if len(shape) != 2 or 0 in shape:
        raise JaxsinkError(f"tokens must be [batch, sequence] with at least one token, not of shape {shape}.")
    tokens = tokens if isinstance(tokens, jax.Array) else np.asarray(tokens)
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise JaxsinkError(f"tokens must be whole numbers, not {tokens.dtype}.")
    if not isinstance(tokens, Tracer):
        values = np.asarray(tokens)
        if values.min() < 0 or values.max() >= config.vocab:
            wrong = values.min() if values.min() < 0 else values.max()
            raise JaxsinkError(f"token id {wrong} is outside the model's vocabulary of {config.vocab} rows.")
    batch, length = shape
    if config.positions == "learned" and length > config.max_positions:
        raise JaxsinkError(
            f"{length} tokens are more than the {config.max_positions} positions this model has learned."
        )
    expected = {
        "mask": (mask, (batch, length)),
        "visible": (visible, (batch, length, length)),
        "drop": (drop, (config.layers, batch, config.heads, length)),
        "scale": (scale, (config.layers, batch, config.heads, length)),
        "prompt": (prompt, (batch, length)),
    }
    arrays = []
    for name, (value, wanted) in expected.items():
        if value is not None and np.shape(value) != wanted:
            raise JaxsinkError(f"{name} must have the shape {wanted}, not {np.shape(value)}.")
        if name == "drop" and value is not None and jnp.issubdtype(jnp.asarray(value).dtype, jnp.floating):
            raise JaxsinkError("drop must be bool, True = hidden; factors on the attention of keys go into scale.")
        arrays.append(None if value is None else jnp.asarray(value).astype("float32" if name == "scale" else bool))
    if arrays[0] is None:
        arrays[0] = jnp.ones((batch, length), bool)
    return jnp.asarray(tokens).astype(jnp.int32), *arrays
