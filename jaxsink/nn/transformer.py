"""The model: embedding, layers (scanned or unrolled), final norm and head; and `forward`, the public way through it."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.core import Tracer
from jax.sharding import Mesh, Sharding
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Bool, Float, Float32, PyTree

from jaxsink.checks import check_value
from jaxsink.nn.attention import choose_backend
from jaxsink.nn.batch import Batch, Execution
from jaxsink.nn.cache import Cache
from jaxsink.nn.compilation import model_jit
from jaxsink.nn.conditioning import Adapted, Modulation, TimeEmbedding
from jaxsink.nn.config import AttentionKind, ModelConfig
from jaxsink.nn.context import LayerContext
from jaxsink.nn.display import describe
from jaxsink.nn.inputs import ForwardInputs, check_inputs, check_positions, check_time
from jaxsink.nn.layer import Layer, Stream
from jaxsink.nn.layer_stack import LayerStack, StackInputs
from jaxsink.nn.linear import Linear, Maker, Norm, product, random_maker
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
from jaxsink.nn.origin import Origin, OriginHolder
from jaxsink.nn.parameters import is_exact, named_leaves
from jaxsink.nn.quantization import BESIDE, INT8, quantized, type_name, weights_dtype
from jaxsink.nn.recorder import Recorder, compile_record
from jaxsink.nn.sharding import keep_layout, mesh_of, on_tpu

if TYPE_CHECKING:
    from jaxsink.text.tokenizer import Tokenizer


class Output(NamedTuple):
    """What a pass gives. `Transformer.__call__` has one record per recorder, `forward` the pytree that it was given."""

    logits: Float32[Array, "B W V"] | None  # raw: Dream's are not shifted; None without the head
    record: PyTree[Array]  # each leaf with a leading layer axis; None without recorders
    hidden: Float[Array, "B W E"]  # after the final norm
    cache: Cache | None = None  # with the keys and values of the tokens that ran

    def __repr__(self) -> str:
        return describe(self, self._fields)


class Transformer(nnx.Module):
    """Weights and their configuration; a pytree, so it passes through jit, grad, device_put and tree.map.

    Its origin (tokenizer, recommended sampler) goes along through astype, device_put and tree.map, which takes that of its
    first model. A function under jax.jit sees and returns models without one, because its program serves all models of
    the config; `with_origin` gives it back.
    """

    def __init__(self, config: ModelConfig, make: Maker):
        self.config = config
        self.origin_holder = OriginHolder(Origin())
        self.is_unrolled = False
        self.embedding = nnx.Param(make((config.vocab, config.width), "matrix"))
        learned = config.positions == "learned"
        self.position = nnx.Param(make((config.max_positions, config.width), "matrix")) if learned else None
        self.extra_sink = nnx.Param(make((config.width,), "matrix")) if config.extra_sink else None
        segments = [Layer(make, (segment.layers,), segment) for segment in config.segments]
        self.layers: Layer | nnx.List[Layer] = segments[0] if len(segments) == 1 else nnx.List(segments)
        self.norm = Norm(make, (), config.width, config)
        self.head = Linear(make, (), config.vocab, config.width, config.head_bias) if config.has_head else None
        self.time = TimeEmbedding(make, config) if config.time_conditioning else None
        self.modulation = Modulation(make, (), config, 2) if config.time_conditioning else None

    def __call__(
        self,
        batch: Batch,
        *,
        cache: Cache | None = None,
        drop: Bool[Array, "L B H S"] | Float32[Array, "L B H S"] | None = None,
        recorders: tuple[Recorder, ...] = (),
        execution: Execution = Execution(),  # noqa: B008
        head: bool = True,
    ) -> Output:
        """One pass. drop: True = hidden from every query, or from those that the batch names; or factors on the attention
        that keys receive."""
        context = LayerContext.make(self.config, batch, recorders, execution)
        if self.time is not None:
            context = replace(context, condition=self.time(batch))
        runs = None if batch.runs is None else batch.of_queries(batch.runs)
        given = StackInputs(drop, cache, batch.start, runs, batch.outputs)
        out = self.stack(execution.mesh)(self.embed(batch, context), context, given)
        hidden = self.adapted(context).enter(self.norm(out.stream.x))
        return Output(self.logits(hidden) if head else None, out.record, hidden, out.cache)

    def adapted(self, context: LayerContext) -> Adapted:
        """How the final norm changes with the noise level."""
        if self.modulation is None or context.condition is None:
            return Adapted()
        return Adapted(*self.modulation(context.condition))

    def embed(self, batch: Batch, context: LayerContext) -> Stream:
        """The residual stream before the first layer."""
        x = self.embedding[...][batch.of_queries(batch.tokens)]
        if self.position is not None:
            x = x + self.position[...][jnp.clip(context.queries.token_position, 0, self.config.max_positions - 1)]
        return Stream(x, None if self.extra_sink is None else self.extra_sink[...][None, None])

    def stack(self, mesh: Mesh | None = None) -> LayerStack:
        """The layers as one callable, laid out for the devices of the mesh."""
        windows = None if self.config.window_layers is None else np.array(self.config.window_layers)
        segments = self._segments
        if on_tpu(mesh) and not self.is_unrolled:
            segments = tuple(segment.by_head() for segment in segments)
        return LayerStack(segments, self.is_unrolled, windows)

    def logits(self, hidden: Float[Array, "*lead E"]) -> Float32[Array, "*lead V"]:
        """Of hidden states after the final norm."""
        weight = self.embedding[...] if self.head is None else self.head.weight[...]
        logits = product(hidden, weight, jnp.float32)
        return logits if self.head is None or self.head.bias is None else logits + self.head.bias[...]

    @property
    def _segments(self) -> tuple[Layer, ...]:
        return (self.layers,) if isinstance(self.layers, Layer) else tuple(self.layers)

    @property
    def params(self) -> dict[str, PyTree]:
        """The weights as nested dictionaries of arrays."""
        return nnx.to_pure_dict(nnx.state(self, nnx.Param))

    @property
    def dtype(self) -> np.dtype:
        return self.embedding[...].dtype

    def astype(self, dtype: DTypeLike) -> Transformer:
        """With weights of another type; "int8" rounds those of the layers, as `load` does, with all else in bfloat16."""
        name = type_name(dtype)
        if name == INT8:
            return quantized(self if weights_dtype(self) == INT8 else self.astype(BESIDE))
        leaves, treedef = named_leaves(self)
        return jax.tree.unflatten(treedef, [x if is_exact(leaf) else x.astype(name) for leaf, x in leaves])

    def unrolled(self) -> Transformer:
        """The same model with a list of layers instead of stacked ones: compiles longer, runs faster on CPU."""
        if self.is_unrolled:
            return self
        segments = zip(self._segments, self.config.segments, strict=True)
        layers = [jax.tree.map(lambda x, i=i: x[i], layer) for layer, of in segments for i in range(of.layers)]
        return self._with_layers(nnx.List(layers), True)

    def stacked(self) -> Transformer:
        """The inverse of `unrolled`."""
        if not self.is_unrolled:
            return self
        layers = iter(self._segments)
        segments = [[next(layers) for _ in range(of.layers)] for of in self.config.segments]
        joined = [jax.tree.map(lambda *xs: jnp.stack(xs), *segment) for segment in segments]
        return self._with_layers(joined[0] if len(joined) == 1 else nnx.List(joined), False)

    def _with_layers(self, layers: Layer | nnx.List[Layer], unrolled: bool) -> Transformer:
        other = jax.tree.map(lambda x: x, self)
        other.layers, other.is_unrolled = layers, unrolled
        return other

    def with_attention(self, attention: AttentionKind | None, block_length: int | None = None) -> Transformer:
        """The same weights under another attention pattern: "causal", "bidirectional" or "block_causal" (with a block
        length); None = the model's own. They are not copied, and what they were trained to predict stays the same (see
        `ModelConfig.with_attention`), but the sampler that the checkpoint recommends is for its own pattern."""
        if self.config.with_attention(attention, block_length) == self.config:
            return self
        other = jax.tree.map(lambda x: x, self)
        for _, module in nnx.iter_modules(other):
            if isinstance(config := getattr(module, "config", None), ModelConfig):
                module.config = config.with_attention(attention, block_length)  # pyright: ignore[reportAttributeAccessIssue]
        return other.with_origin(replace(self.origin, sampler=None))

    @property
    def origin(self) -> Origin:
        return self.origin_holder.origin

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the checkpoint that the model was loaded from."""
        return self.origin.tokenizer(self.config.family)

    def with_origin(self, origin: Origin) -> Transformer:
        """The same weights under another origin."""
        other = copy(self)
        other.origin_holder = OriginHolder(origin)
        return other

    def with_config(self, config: ModelConfig) -> Transformer:
        """The same weights under a configuration that differs in what they do not decide, such as the length of blocks."""
        if config == self.config:
            return self
        other = copy(self)
        other.config = config
        return other

    @classmethod
    def _pytree__unflatten(cls, static: object, node_attrs: object) -> Transformer:
        """Flax's own; but what is traced has no origin, or a compiled function would give all models that of the first."""
        model = super()._pytree__unflatten(static, node_attrs)  # pyright: ignore[reportArgumentType]
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(model.embedding)):
            object.__setattr__(model, "origin_holder", OriginHolder(Origin()))
        return model

    def __repr__(self) -> str:
        config, count = self.config, sum(leaf.size for leaf in jax.tree.leaves(self))
        layers = f"{config.layers} {'unrolled' if self.is_unrolled else 'stacked'} layers"
        return f"Transformer({config.family}, {layers} of {config.width}, {count:,} numbers, {weights_dtype(self)})"

    __str__ = __repr__


Model = Transformer  # the public name


def init(
    config: ModelConfig,
    seed: int = 0,
    dtype: DTypeLike = "float32",
    shardings: PyTree[Sharding] | None = None,
) -> Transformer:
    """A model with random weights, for training and tests. shardings: where each leaf lies; None: on one device."""
    return jax.jit(partial(_random, config, seed, type_name(dtype)), out_shardings=shardings)()


def abstract(config: ModelConfig, dtype: DTypeLike = "float32") -> Transformer:
    """The model with shapes in the place of weights; allocates nothing, whatever its size."""
    return jax.eval_shape(partial(_random, config, 0, type_name(dtype)))


def _random(config: ModelConfig, seed: int, dtype: str) -> Transformer:
    if dtype == INT8:
        return quantized(Transformer(config, random_maker(seed, BESIDE)))
    return Transformer(config, random_maker(seed, dtype))


def empty_cache(model: Transformer, batch: int, length: int) -> Cache:
    """For `batch` sequences of `length` tokens."""
    return Cache.zeros(model.config, batch, length, model.dtype, model.is_unrolled)


def forward(
    model: Transformer,
    tokens: PyTree[ArrayLike],
    mask: PyTree[ArrayLike] = None,
    visible: PyTree[ArrayLike] = None,
    drop: PyTree[ArrayLike] = None,
    record: PyTree = None,
    *,
    scale: PyTree[ArrayLike] = None,
    prompt: PyTree[ArrayLike] = None,
    hidden_from: PyTree[ArrayLike] = None,
    positions: PyTree[ArrayLike] = None,
    time: PyTree[ArrayLike] = None,
    backend: str | None = None,
    attention: AttentionKind | None = None,
    block_length: int | None = None,
) -> Output:
    """Run the model over whole sequences, and return logits and what the recorders saw.

    tokens   int[B,S]
    mask     bool[B,S], True = real token; padding may stand left, right or between
    visible  bool[B,S,S], (query, key) pairs that may see each other, on top of the family's own pattern
    drop     bool[L,B,H,S], True = no query of that layer and head may see this key
    scale    f32[L,B,H,S], factors on the attention that keys receive, before queries re-normalise: 0 hides, 1 leaves alone
    record   a recorder (see jaxsink.record), a function of the tap, or any pytree of them
    prompt   bool[B,S], True = prompt token; only used to tell queries apart in `record.received_by_query`
    hidden_from  bool[B,S], True = drop and scale act on this query; the others see everything. None: on all
    positions  int[B,S], where each token stands for the model, from 0 on; None: counted from the first real token
    time     f32[B], what a model with `time_conditioning` is told of each sequence's noise, as its own code takes it (GIDD:
             the level t; "total": -log(1 - t); "constant" ignores it). None: that of the share of its tokens that are masks
    backend  "naive", "blocked" or "pallas"; None chooses by device and size, with the same results
    attention  "causal", "bidirectional" or "block_causal" with a block_length, on the same weights; None = the model's own
    """
    check_value("forward: model", model, Transformer)
    model = model.with_attention(attention, block_length)
    config = model.config
    inputs = check_inputs(config, tokens, mask, visible, drop, scale, prompt, hidden_from)
    inputs = inputs._replace(positions=check_positions(config, positions, inputs.tokens.shape))
    inputs = inputs._replace(time=check_time(config, time, len(inputs.tokens)))
    recorders, treedef = compile_record(record, config.layers, config.heads)
    mesh, length = mesh_of(model), inputs.tokens.shape[1]
    execution = Execution(choose_backend(backend, length, length, mesh), mesh)
    with explained("this pass", lambda: _bytes_needed(model, inputs, recorders, execution)):
        out = _forward(model, inputs, recorders, execution)
        wait_on_cpu(out.logits)
    return out._replace(record=jax.tree.unflatten(treedef, out.record))


@model_jit(static=("recorders", "execution"))
def _forward(
    model: Transformer, inputs: ForwardInputs, recorders: tuple[Recorder, ...], execution: Execution
) -> Output:
    batch = Batch.make(model.config, inputs.tokens, inputs.mask, prompt=inputs.prompt)
    visible = inputs.visible
    if inputs.positions is not None and visible is None and model.config.block_length is not None:
        visible = jnp.ones((*inputs.tokens.shape, inputs.tokens.shape[1]), bool)  # the kernel's blocks lie in order
    named = {"token_position": inputs.positions, "time": inputs.time}
    batch = batch._replace(visible=visible, hidden_from=inputs.hidden_from, **named)
    mesh = execution.mesh
    drop = keep_layout(inputs.drop, mesh, 1, 2)  # what enters lies as `layout_of` says, too
    out = model(batch, drop=drop, recorders=recorders, execution=execution)
    return Output(keep_layout(out.logits, mesh), keep_layout(out.record, mesh, 1, 2), keep_layout(out.hidden, mesh))


def _bytes_needed(
    model: Transformer, inputs: ForwardInputs, recorders: tuple[Recorder, ...], execution: Execution
) -> dict[str, int]:
    """Of one pass, by what fills them."""
    out = jax.eval_shape(partial(_forward, recorders=recorders, execution=execution), model, inputs)
    batch, length = inputs.tokens.shape
    maps = 4 * batch * model.config.heads * length**2 if execution.backend == "naive" else 0
    return {
        WEIGHTS: tree_bytes(model),
        ACTIVATIONS: activation_bytes(model.config, batch, length, model.dtype),
        RECORDS: tree_bytes(out.record),
        LOGITS: tree_bytes(out.logits),
        MAPS: maps,
    }
