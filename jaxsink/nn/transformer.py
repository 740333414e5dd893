"""The model: embedding, layers (scanned or unrolled), final norm and head."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array, lax
from jax.core import Tracer
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import Bool, Float, Float32, Int, PyTree

from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.nn.batch import Batch, Execution
from jaxsink.nn.cache import Cache
from jaxsink.nn.conditioning import Adapted, Modulation, TimeEmbedding
from jaxsink.nn.config import AttentionKind, ModelConfig
from jaxsink.nn.context import LayerContext
from jaxsink.nn.display import describe
from jaxsink.nn.edited import edited, with_sink_scores
from jaxsink.nn.layer import Layer, Stream
from jaxsink.nn.layer_stack import LayerStack, StackInputs
from jaxsink.nn.linear import Linear, Maker, Norm, product
from jaxsink.nn.origin import Origin, OriginHolder
from jaxsink.nn.parameters import is_exact, named_leaves
from jaxsink.nn.pass_end import PassEnd, in_layers, need_the_end, of_whole_pass
from jaxsink.nn.quantization import BESIDE, INT8, quantized, type_name, weights_dtype
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.sharding import on_tpu

if TYPE_CHECKING:
    from jaxsink.text.tokenizer import Tokenizer


class Output(NamedTuple):
    """What a pass gives. `Transformer.__call__` has one record per recorder, `forward` the pytree that it was given.

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record={"received": jaxsink.record.received()})
        >>> seen.logits.shape == (*tokens.shape, model.config.vocab)
        True
        >>> seen.record["received"].shape == (4, *tokens.shape[:1], 4, tokens.shape[1])
        True
    """

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

    Examples:
        >>> sorted(model.params)
        ['embedding', 'head', 'layers', 'norm']
        >>> model.dtype.name
        'float32'
        >>> model.with_origin(model.origin).tokenizer is model.tokenizer
        True
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
        served = with_sink_scores(in_layers(recorders), batch.edits)
        context = LayerContext.make(self.config, batch, served, execution)
        if self.time is not None:
            context = replace(context, condition=self.time(batch))
        runs = None if batch.runs is None else batch.of_queries(batch.runs)
        to_the_end = need_the_end(recorders) or bool(batch.edits)
        given = StackInputs(drop, cache, batch.start, runs, batch.outputs, to_the_end)
        stream = self.embed(batch, context)
        stream = stream._replace(x=edited(context, "embedding", stream.x))
        out, norm = self.stack(execution.mesh)(stream, context, given), self.final_norm(context)
        record = of_whole_pass(recorders, out.record, PassEnd(self, context, stream.x, out.last, norm))
        hidden = edited(context, "final_norm", norm(out.stream.x), outputs=batch.outputs)
        return Output(self.logits(hidden) if head else None, record, hidden, out.cache)

    def final_norm(self, context: LayerContext) -> Callable[[Float[Array, "*lead E"]], Float[Array, "*lead E"]]:
        """The norm after the last layer, as it is under the noise level of this pass."""
        if self.modulation is None or context.condition is None:
            return self.norm
        adapted = Adapted(*self.modulation(context.condition))
        return lambda x: adapted.enter(self.norm(x))

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
        """Of hidden states after the final norm.

        Examples:
            >>> seen = jaxsink.forward(model, tokens)
            >>> bool(jnp.allclose(model.logits(seen.hidden), seen.logits))
            True
        """
        weight, bias = self.head_weights
        logits = product(hidden, weight, jnp.float32)
        return logits if bias is None else logits + bias

    def some_logits(
        self, hidden: Float[Array, "*lead E"], first: Int[Array, ""] | int, count: int, parts: int = 1
    ) -> Float32[Array, "*lead P N"]:
        """Of `count` tokens from `first` on in each of so many equal parts of the vocabulary. In the parts that a mesh
        cuts the head into, no device needs weights of another."""

        def cut(x: Float[Array, "V ..."]) -> Float[Array, "P N ..."]:
            return lax.dynamic_slice_in_dim(x.reshape(parts, -1, *x.shape[1:]), first, count, axis=1)

        weight, bias = self.head_weights
        logits = product(hidden, cut(weight), jnp.float32)
        return logits if bias is None else logits + cut(bias)

    @property
    def head_weights(self) -> tuple[Float[Array, "V E"], Float[Array, " V"] | None]:
        """The matrix and the bias of the head."""
        if self.head is None:
            return self.embedding[...], None
        return self.head.weight[...], None if self.head.bias is None else self.head.bias[...]

    @property
    def _segments(self) -> tuple[Layer, ...]:
        return (self.layers,) if isinstance(self.layers, Layer) else tuple(self.layers)

    @property
    def params(self) -> dict[str, PyTree]:
        """The weights as nested dictionaries of arrays."""
        return nnx.to_pure_dict(nnx.state(self, nnx.Param))

    @property
    def dtype(self) -> np.dtype:
        """The type of the weights; of int8 models that of what is not rounded."""
        return self.embedding[...].dtype

    def astype(self, dtype: DTypeLike) -> Transformer:
        """With weights of another type; "int8" rounds those of the layers, as `load` does, with all else in bfloat16.

        Examples:
            >>> model.astype("bfloat16").dtype.name
            'bfloat16'
        """
        name = type_name(dtype)
        if name == INT8:
            return quantized(self if weights_dtype(self) == INT8 else self.astype(BESIDE))
        leaves, treedef = named_leaves(self)
        return jax.tree.unflatten(treedef, [x if is_exact(leaf) else x.astype(name) for leaf, x in leaves])

    def unrolled(self) -> Transformer:
        """The same model with a list of layers instead of stacked ones: compiles longer, runs faster on CPU.

        Examples:
            >>> model.unrolled()
            Transformer(llada, 4 unrolled layers of 128, ...)
        """
        if self.is_unrolled:
            return self
        segments = zip(self._segments, self.config.segments, strict=True)
        layers = [jax.tree.map(lambda x, i=i: x[i], layer) for layer, of in segments for i in range(of.layers)]
        return self._with_layers(nnx.List(layers), True)

    def stacked(self) -> Transformer:
        """The inverse of `unrolled`.

        Examples:
            >>> model.unrolled().stacked()
            Transformer(llada, 4 stacked layers of 128, ...)
        """
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

    @checked(block_length=at_least(1))
    def with_attention(self, attention: AttentionKind | None, block_length: int | None = None) -> Transformer:
        """The same weights under another attention pattern: "causal", "bidirectional" or "block_causal" (with a block
        length); None = the model's own. They are not copied, and what they were trained to predict stays the same (see
        `ModelConfig.with_attention`), but the sampler that the checkpoint recommends is for its own pattern.

        Examples:
            >>> model.with_attention("causal").config.attention
            'causal'
        """
        if self.config.with_attention(attention, block_length) == self.config:
            return self
        other = jax.tree.map(lambda x: x, self)
        for _, module in nnx.iter_modules(other):
            if isinstance(config := getattr(module, "config", None), ModelConfig):
                module.config = config.with_attention(attention, block_length)  # pyright: ignore[reportAttributeAccessIssue]
        return other.with_origin(replace(self.origin, sampler=None))

    @property
    def origin(self) -> Origin:
        """Where the model comes from."""
        return self.origin_holder.origin

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the checkpoint that the model was loaded from.

        Examples:
            >>> model.tokenizer.decode(model.tokenizer.encode("Mia has 4 apples."))
            'Mia has 4 apples.'
        """
        return self.origin.tokenizer(self.config.family)

    @checked()
    def with_origin(self, origin: Origin) -> Transformer:
        """The same weights under another origin."""
        other = copy(self)
        other.origin_holder = OriginHolder(origin)
        return other

    @checked()
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


Model = Transformer
"""The public name of `Transformer`, which `load` and `init` return."""


def empty_cache(model: Transformer, batch: int, length: int) -> Cache:
    """For `batch` sequences of `length` tokens."""
    return Cache.zeros(model.config, batch, length, model.dtype, model.is_unrolled)
