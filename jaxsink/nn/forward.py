"""`forward`: whole sequences through a model, once, with what recorders see and what edits change."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Int, PyTree

from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.attention import choose_backend
from jaxsink.nn.batch import PROMPT, Batch, Execution
from jaxsink.nn.compilation import model_jit
from jaxsink.nn.config import AttentionKind, ModelConfig
from jaxsink.nn.edited import at_step
from jaxsink.nn.edits import Edit
from jaxsink.nn.inputs import ForwardInputs, check_inputs, check_tokens
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
from jaxsink.nn.pass_end import TunedLens
from jaxsink.nn.placed import Placed, Source, place_edits
from jaxsink.nn.recorder import Recorder, compile_record, given_arrays
from jaxsink.nn.sharding import keep_layout, mesh_of
from jaxsink.nn.transformer import Output, Transformer


@checked(block_length=at_least(1))
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
    edits: Edit | Sequence[Edit] | None = None,
    targets: PyTree[ArrayLike] = None,
    backend: str | None = None,
    attention: AttentionKind | None = None,
    block_length: int | None = None,
) -> Output:
    """Run the model over whole sequences, and return logits and what the recorders saw.

    Args:
        tokens: int[B,S]
        mask: bool[B,S], True = real token; padding may stand left, right or between
        visible: bool[B,S,S], (query, key) pairs that may see each other, on top of the family's own pattern
        drop: bool[L,B,H,S], True = no query of that layer and head may see this key
        scale: f32[L,B,H,S], factors on the attention that keys receive, before queries re-normalise: 0 hides
        record: a recorder (see jaxsink.record), a function of the tap, or any pytree of them
        prompt: bool[B,S], True = prompt token; tells tokens apart in records by kind of query, and for edits at="prompt"
        hidden_from: bool[B,S], True = drop and scale act on this query; the others see everything. None: on all
        positions: int[B,S], where each token stands for the model, from 0 on; None: counted from the first real one
        time: f32[B], what a model with `time_conditioning` is told of each sequence's noise, as its own code takes it (GIDD:
            the level t; "total": -log(1 - t); "constant" ignores it); None: by the share of its tokens that are masks
        edits: changes at the taps, made by jaxsink.edit: one, or several that are made in this order
        targets: int[B,S], the tokens that `record.lens(rank=True)` ranks
        backend: "naive", "blocked" or "pallas"; None chooses by device and size, with the same results
        attention: "causal", "bidirectional" or "block_causal", on the same weights; None: the model's own
        block_length: of "block_causal"

    Examples:
        >>> seen = jaxsink.forward(model, tokens, record=jaxsink.record.received())
        >>> seen.record.shape  # layers, sequences, heads, keys
        (4, 1, 4, 19)
        >>> causal = jaxsink.forward(model, tokens, attention="causal")  # the same weights
        >>> bool(jnp.allclose(causal.logits, seen.logits))
        False
    """
    model = model.with_attention(attention, block_length)
    config = model.config
    inputs = check_inputs(config, tokens, mask, visible, drop, scale, prompt, hidden_from, positions, time)
    recorders, treedef = compile_record(record, config.layers, config.heads)
    mesh, length = mesh_of(model), inputs.tokens.shape[1]
    execution = Execution(choose_backend(backend, length, length, mesh), mesh)
    inside = Inside.make(config, inputs.mask, edits, targets, record)
    if prompt is None and any(one.kind == PROMPT for one in inside.edits):
        raise JaxsinkError("forward: an edit at='prompt' needs to know which tokens are the prompt; give prompt=.")
    with explained("this pass", lambda: _bytes_needed(model, inputs, recorders, execution, inside)):
        out = _forward(model, inputs, recorders, execution, inside)
        wait_on_cpu(out.logits)
    return out._replace(record=jax.tree.unflatten(treedef, out.record))


class Inside(NamedTuple):
    """What a pass is given by who looks inside."""

    edits: tuple[Placed, ...] = ()
    sources: tuple[Source, ...] = ()
    targets: Int[Array, "B S"] | None = None
    tuned: TunedLens | None = None

    @classmethod
    def make(
        cls,
        config: ModelConfig,
        mask: Bool[Array, "B S"],
        edits: Edit | Sequence[Edit] | None,
        targets: PyTree[ArrayLike],
        record: PyTree,
    ) -> Inside:
        ranked = None if targets is None else jnp.asarray(check_tokens(config, targets), jnp.int32)
        return cls(*place_edits(edits, config, mask, None), ranked, given_arrays(record))


@model_jit(static=("recorders", "execution"))
def _forward(
    model: Transformer,
    inputs: ForwardInputs,
    recorders: tuple[Recorder, ...],
    execution: Execution,
    inside: Inside = Inside(),  # noqa: B008
) -> Output:
    batch = Batch.make(model.config, inputs.tokens, inputs.mask, prompt=inputs.prompt)
    visible = inputs.visible
    if inputs.positions is not None and visible is None and model.config.block_length is not None:
        visible = jnp.ones((*inputs.tokens.shape, inputs.tokens.shape[1]), bool)  # the kernel's blocks lie in order
    named = {"token_position": inputs.positions, "time": inputs.time}
    batch = batch._replace(visible=visible, hidden_from=inputs.hidden_from, **named)
    batch = batch._replace(edits=at_step(inside.edits, inside.sources), targets=inside.targets, tuned=inside.tuned)
    mesh = execution.mesh
    drop = keep_layout(inputs.drop, mesh, 1, 2)  # what enters lies as `layout_of` says, too
    out = model(batch, drop=drop, recorders=recorders, execution=execution)
    return Output(keep_layout(out.logits, mesh), keep_layout(out.record, mesh, 1, 2), keep_layout(out.hidden, mesh))


def _bytes_needed(
    model: Transformer, inputs: ForwardInputs, recorders: tuple[Recorder, ...], execution: Execution, inside: Inside
) -> dict[str, int]:
    """Of one pass, by what fills them."""
    run = partial(_forward, recorders=recorders, execution=execution)
    out = jax.eval_shape(lambda *given: run(*given[:2], inside=given[2]), model, inputs, inside)
    batch, length = inputs.tokens.shape
    maps = 4 * batch * model.config.heads * length**2 if execution.backend == "naive" else 0
    return {
        WEIGHTS: tree_bytes(model),
        ACTIVATIONS: activation_bytes(model.config, batch, length, model.dtype),
        RECORDS: tree_bytes(out.record),
        LOGITS: tree_bytes(out.logits),
        MAPS: maps,
    }
