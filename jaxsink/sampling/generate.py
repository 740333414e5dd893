"""`generate`: prompts in, text and attention statistics out, from one compiled program per shape."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int, PyTree
from numpy.typing import ArrayLike

from jaxsink.checks import at_least, check_fields, check_value
from jaxsink.errors import JaxsinkError, check_keywords
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.memory import explained, wait_on_cpu
from jaxsink.nn.transformer import Transformer
from jaxsink.parallel.hosts import to_host
from jaxsink.parallel.layout import put_batch
from jaxsink.parallel.mesh import DATA, Device, mesh_of
from jaxsink.parallel.pmap import check_devices, pad_batch
from jaxsink.sampling import interventions
from jaxsink.sampling.base import Sampler, filler_id
from jaxsink.sampling.execution import Program
from jaxsink.sampling.generation import Generation, end_ids
from jaxsink.sampling.inputs import Start, pad_prompts, policy_numbers
from jaxsink.sampling.interventions import Intervention
from jaxsink.sampling.leaves import Kept
from jaxsink.sampling.needs import bytes_needed
from jaxsink.sampling.prompts import Prompts, encode_prompts, known_tokenizer
from jaxsink.sampling.rng import DrawName
from jaxsink.sampling.run import Carry, EditLogits, EditTokens, RunInputs, RunSpec
from jaxsink.zoo.recommend import model_sampler

# (steps done, tokens, committed_at); one that has a parameter `record` also gets that of the last steps
Listener = Callable[..., None]


class Options(TypedDict, total=False):
    """The types of the further keywords of `generate`, for editors."""

    every: int
    stream: int | None
    pad_to: int | None
    backend: str | None
    draws: Mapping[DrawName, ArrayLike] | None
    force: Sequence[Sequence[int]] | None
    edit_logits: EditLogits | None
    edit_tokens: EditTokens | None
    listener: Listener | None
    devices: Sequence[Device] | None
    policies: Sequence[int] | None


@dataclass(frozen=True)
class RunOptions:
    """The further keywords of `generate`, and what they are if not given."""

    every: int = 1
    stream: int | None = None
    pad_to: int | None = None
    backend: str | None = None
    draws: Mapping[DrawName, ArrayLike] | None = None
    force: Sequence[Sequence[int]] | None = None
    edit_logits: EditLogits | None = None
    edit_tokens: EditTokens | None = None
    listener: Listener | None = None
    devices: Sequence[Device] | None = None
    policies: Sequence[int] | None = None

    def __post_init__(self) -> None:
        check_fields(self, "generate", dict.fromkeys(("every", "stream", "pad_to"), at_least(1, 1 << 31)))
        if self.stream is not None and self.stream % self.every:
            raise JaxsinkError(f"stream must be a multiple of every ({self.every}), and is {self.stream}.")
        if self.listener is not None and self.stream is None:
            raise JaxsinkError("a listener is called after every `stream` steps; give stream=1 or more.")

    @classmethod
    def make(cls, given: Options) -> RunOptions:
        """Of the caller's keywords, or one sentence about one that does not exist."""
        check_keywords("generate", given, (field.name for field in fields(cls)))
        return cls(**given)


def generate(
    model: Transformer,
    prompts: Prompts,
    sampler: Sampler | None = None,
    mask: ArrayLike | None = None,
    record: PyTree = None,
    intervene: Intervention | None = None,
    seed: int | Sequence[int] = 0,
    *,
    chat: bool = False,
    **options: Unpack[Options],
) -> Generation:
    """Generate from prompts, and return attention statistics of every step along with the tokens.

    prompts    a text or a list of texts, for the model's own tokenizer; or int[B,P], left-padded where `mask` bool[B,P]
               says so; or a list of lists of ids. Masks inside are filled.
    sampler    LLaDASampler, DreamSampler, SDARSampler … or your own; None takes what the model recommends
    record     recorders, as for `forward`; see also jaxsink.reduce
    intervene  a function of the previous step that names the keys to hide; see jaxsink.sampling.interventions
    seed       one for all sequences, or one each; draws do not depend on batch or padding
    chat       put texts into the model's chat template

    Further keywords:
    every      record every n-th step only
    stream     move records to the host after every n steps, so that the device holds those of n steps at most
    pad_to     pad prompts to a multiple of this, so that prompts of many lengths share a compiled program
    backend    of the attention, as for `forward`
    draws      recorded uniform draws to replay: {"token": [T,B,S,V], "remask": [T,B,S], "transfer": [T,B,S]}
    force      ids per sequence that an autoregressive model has to write first; `log_prob` says how likely they were
    edit_logits  traceable f(step, logits f32[B,W,V], position i32[B,W]) -> logits, before the sampler decides (diffusion)
    edit_tokens  traceable f(step, tokens i32[B,S]) -> tokens, before the first step (step = -1) and after each (diffusion)
    listener   called on the host after every `stream` steps: f(steps done, tokens, committed_at), or f(…, their record)
    devices    deal the sequences out over these devices by pmap, each with a copy of the weights; a model that was loaded
               onto a mesh uses that instead. Neither changes the results, and batches need not divide.
    policies   which of the intervention's policies each sequence follows (sinks.Turns); None takes them in turns
    """
    check_value("generate: model", model, Transformer)
    check_value("generate: chat", chat, bool)
    config, how = model.config, RunOptions.make(options)
    sampler = model_sampler(model) if sampler is None else sampler
    check_run(config, sampler, intervene, how)
    tokens, real = pad_prompts(config, encode_prompts(model, prompts, mask, chat), mask, how.pad_to)
    start = Start.make(config, sampler, tokens, real, padded=how.pad_to is not None, force=how.force)
    policy = policy_numbers(how.policies, len(tokens))
    interventions.check(intervene, config, sampler, start.mask.sum(axis=1), policy)
    spec = make_spec(model, sampler, start, record, intervene, how)
    devices = chosen_devices(how, spec, len(tokens))
    share = len(devices) if devices is not None else 1 if spec.mesh is None else spec.mesh.shape[DATA]

    def place(x: np.ndarray, axis: int = 0) -> Array:
        return put_batch(pad_batch(x, axis, share), spec.mesh, axis)

    inputs = start.inputs(spec, config.vocab, place, seed, how.draws, policy)
    canvas = place(start.canvas)
    program = Program.on(model, sampler, spec, devices)
    needed = partial(bytes_needed, Program(model, sampler, spec), canvas, inputs, how.stream or spec.total_steps)
    with explained("this run", needed):
        carry, records = run(program, canvas, inputs, how.stream, how.listener, len(tokens))
        wait_on_cpu(carry.tokens)
    return as_generation(program, start, inputs, carry, records)


def check_numbers(carry: Carry, count: int) -> Carry:
    """The same carry, if nothing was chosen by logits that are no numbers."""
    broken = np.flatnonzero(to_host(carry.broken)[:count])
    if broken.size:
        raise JaxsinkError(
            f"the logits of sequence {broken[0]} became NaN or infinite in step {int(carry.step) - 1}, so there is nothing "
            "to choose by; look at the weights (jaxsink.load verifies them), at the type, and at what intervenes."
        )
    return carry


def chosen_devices(how: RunOptions, spec: RunSpec, count: int) -> tuple[Device, ...] | None:
    """Devices for pmap, no more than there are sequences; None: the default one, or the model's mesh."""
    if how.devices is None:
        return None
    if spec.mesh is not None:
        raise JaxsinkError("this model lies on a mesh, which places the sequences as well; leave devices out.")
    return check_devices(how.devices)[:count]


def check_run(config: ModelConfig, sampler: Sampler, intervene: Intervention | None, how: RunOptions) -> None:
    """One sentence about the first thing that cannot be."""
    if isinstance(sampler, type):
        raise JaxsinkError(f"sampler is the class {sampler.__name__}; give one of its objects, {sampler.__name__}(…).")
    if not isinstance(sampler, Sampler):
        raise JaxsinkError(
            "sampler must be a LLaDASampler, DreamSampler, ARSampler or another one, or None for the one that the model "
            f"recommends, not {type(sampler).__name__}: {sampler!r}."
        )
    Sampler.check(sampler, config)  # also one of the caller's own, whose `check` may not begin with it
    sampler.check(config)
    interventions.check(intervene, config, sampler)
    if not sampler.is_autoregressive and config.mask_id is None:
        raise JaxsinkError(f"a {config.family} model has no mask token, so {type(sampler).__name__} cannot run on it.")
    if sampler.is_autoregressive and (how.edit_logits is not None or how.edit_tokens is not None):
        raise JaxsinkError("edit_logits and edit_tokens are for diffusion samplers.")
    if how.force is not None and not sampler.is_autoregressive:
        raise JaxsinkError("force is for autoregressive models; masks in the prompt make a diffusion model fill gaps.")


def make_spec(
    model: Transformer,
    sampler: Sampler,
    start: Start,
    record: PyTree,
    intervene: Intervention | None,
    how: RunOptions,
) -> RunSpec:
    if start.infill and sampler.cache is not None:
        raise JaxsinkError("masks inside the prompt cannot be filled with a cache.")
    if start.infill and not sampler.infills:
        raise JaxsinkError(
            f"masks stand in the prompt, and {type(sampler).__name__} cannot fill them with these settings: take them out, "
            "or choose a sampler that does, such as LLaDASampler or MDLMSampler."
        )
    spec = RunSpec.make(
        model.config,
        record,
        intervene,
        every=how.every,
        prompt_length=start.prompt_length,
        length=start.canvas.shape[1],
        total_steps=sampler.total_steps(start.masks),
        backend=how.backend,
        mesh=mesh_of(model),
    )
    return spec._replace(
        infill=start.infill,
        edit_logits=how.edit_logits,
        edit_tokens=how.edit_tokens,
        forced=how.force is not None,
    )


def run(
    program: Program,
    canvas: Int[Array, "B S"],
    inputs: RunInputs,
    stream: int | None,
    listener: Listener | None,
    count: int,
) -> tuple[Carry, tuple[PyTree, ...]]:
    """All steps in one program, or chunk by chunk with the records of each moved to the host.

    count: the sequences that the listener is shown; the others only fill the batch up.
    """
    spec, batch = program.spec, len(canvas)
    carry = program.start(canvas, inputs)
    if stream is None:
        carry, records = program.advance(carry, inputs, spec.total_steps, is_first=True)
        return check_numbers(program.joined(carry, batch), count), records
    chunks, chunk, wanted = [], min(stream, spec.total_steps), spec.record.recorded(spec.total_steps)
    while len(chunks) * spec.record.recorded(chunk) < wanted and not bool(carry.done.all()):
        carry, records = program.advance(carry, inputs, chunk, is_first=not chunks)
        chunks.append(to_host(records))
        now = check_numbers(program.joined(carry, batch), count)
        if listener is not None:
            records = cut(chunks[-1], batch, count, axis=2)
            tell(listener, now, count, jax.tree.unflatten(spec.record.treedef, records))
    return program.joined(carry, batch), jax.tree.map(lambda *parts: all_steps(parts, wanted), *chunks)


def tell(listener: Listener, carry: Carry, count: int, record: PyTree) -> None:
    """How far the sequences are; and the record of the last steps, to a listener that takes it."""
    more = {"record": record} if "record" in inspect.signature(listener).parameters else {}
    tokens, committed_at = to_host((carry.tokens, carry.committed_at))
    listener(int(carry.step), tokens[:count], committed_at[:count], **more)


def cut(tree: PyTree, filled: int, count: int, axis: int = 0) -> PyTree:
    """The first `count` of `filled` sequences, in arrays that have them at this axis."""

    def one(x: Array | np.ndarray) -> Array | np.ndarray:
        is_filled = count != filled and x.ndim > axis and x.shape[axis] == filled
        return x[(slice(None),) * axis + (slice(count),)] if is_filled else x

    return jax.tree.map(one, tree)


def all_steps(parts: tuple[np.ndarray, ...], count: int) -> np.ndarray:
    """The chunks as one array of `count` recorded steps; those that an early end left out are zero."""
    joined = np.concatenate(parts)[:count]
    return np.concatenate([joined, np.zeros((count - len(joined), *joined.shape[1:]), joined.dtype)])


def as_generation(
    program: Program, start: Start, inputs: RunInputs, carry: Carry, records: tuple[PyTree, ...]
) -> Generation:
    """What the caller gets, without the sequences that only filled the batch up."""
    sampler, spec, config = program.sampler, program.spec, program.model.config
    only = partial(cut, filled=inputs.mask.shape[0], count=len(start.canvas))
    tokens = only(carry.tokens)
    return Generation(
        tokens=jnp.where(tokens < 0, filler_id(config), tokens) if spec.forced else tokens,
        committed_at=only(carry.committed_at),
        record=jax.tree.unflatten(spec.record.treedef, only(records, axis=2)),
        mask=only(inputs.mask),
        steps=only(carry.steps),
        prompt_length=spec.prompt_length,
        recorded_steps=np.arange(0, spec.total_steps, spec.record.every),
        approximate=sampler.cache,
        log_prob=only(sampler.log_prob(carry)),
        divergence=only(sampler.divergence(carry)),
        commits=only(sampler.commits(carry), axis=1),
        autoregressive=sampler.is_autoregressive,
        recorders=jax.tree.unflatten(spec.record.treedef, map(Kept.of, spec.record.recorders)),
        tokenizer=known_tokenizer(program.model),
        end_ids=end_ids(config) if sampler.ends_at_eos else (),
        appending=sampler.appending,
    )
