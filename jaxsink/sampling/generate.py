"""`generate`: prompts in, text and attention statistics out, from one compiled program per shape."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from jaxsink.errors import JaxsinkError
from jaxsink.nn.attention import choose_backend
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.memory import explained, wait_on_cpu
from jaxsink.nn.transformer import Model
from jaxsink.parallel.hosts import to_host
from jaxsink.parallel.layout import put_batch
from jaxsink.parallel.mesh import DATA, mesh_of
from jaxsink.parallel.pmap import check_devices, pad_batch
from jaxsink.recording.spec import make_plan
from jaxsink.sampling import autoregressive, diffusion
from jaxsink.sampling import rng as noise
from jaxsink.sampling.arguments import check_arguments
from jaxsink.sampling.execution import Dealt, OneProgram, copied
from jaxsink.sampling.generation import Generation, end_ids
from jaxsink.sampling.leaves import Kept
from jaxsink.sampling.needs import bytes_needed
from jaxsink.sampling.prompts import encode_prompts, known_tokenizer
from jaxsink.sampling.recommend import sampler_for
from jaxsink.sampling.samplers import ARSampler, mask_count

# (steps done, tokens i32[B,S], committed_at i32[B,S]); one that has a parameter `record` also gets that of the last steps
Listener = Callable[..., None]


def generate(
    model: Model,
    prompts: Any,
    sampler: Any = None,
    mask: Any = None,
    record: Any = None,
    intervene: Any = None,
    seed: int | Sequence[int] = 0,
    *,
    chat: bool = False,
    every: int = 1,
    stream: int | None = None,
    pad_to: int | None = None,
    backend: str | None = None,
    draws: dict[str, Any] | None = None,
    force: Sequence[Sequence[int]] | None = None,
    edit_logits: Any = None,
    edit_tokens: Any = None,
    listener: Listener | None = None,
    devices: Sequence[Any] | None = None,
    policies: Sequence[int] | None = None,
) -> Generation:
    """Generate from prompts, and return attention statistics of every step along with the tokens.

    prompts    a text or a list of texts, for the model's own tokenizer; or int[B,P], left-padded where `mask` bool[B,P]
               says so; or a list of lists of ids. Masks inside are filled.
    sampler    LLaDASampler, DreamSampler, SDARSampler or ARSampler; None takes what the model recommends (`sampler_for`)
    record     recorders, as for `forward`; see also jaxsink.reduce
    intervene  a function of the previous step that names the keys to hide; see jaxsink.sampling.interventions
    chat       put texts into the model's chat template
    seed       one for all rows, or one per row; draws do not depend on batch or padding
    every      record every n-th step only
    stream     move records to the host after every n steps, so that the device holds those of n steps at most
    pad_to     pad prompts to a multiple of this, so that prompts of many lengths share a compiled program
    draws      recorded uniform draws to replay: {"token": [T,B,S,V], "remask": [T,B,S], "transfer": [T,B,S]}
    force      ids per row that an autoregressive model is made to write before it goes on freely: `log_prob` then says how
               likely they were, with what is hidden hidden
    edit_logits  traceable f(step, logits f32[B,W,V], index i32[B,W]) -> logits, before the sampler decides (diffusion)
    edit_tokens  traceable f(step, tokens i32[B,S]) -> tokens, before the first step (step = -1) and after each (diffusion)
    listener   called on the host after every `stream` steps, for live displays: f(steps done, tokens, committed_at), or
               f(…, record) for the record of these steps too
    devices    deal the rows out over these devices by pmap, each with a copy of the weights; a model that was loaded onto
               a mesh uses that instead. Neither changes the results, and batches need not divide.
    policies   which of the intervention's policies each row follows (sinks.Turns); None takes them in turns
    """
    config = model.config
    prompts = encode_prompts(model, prompts, mask, chat)
    sampler = sampler_for(model) if sampler is None else sampler
    check_arguments(config, sampler, intervene, force, edit_logits, edit_tokens)
    is_ar = isinstance(sampler, ARSampler)
    tokens, real = prepare(prompts, mask, config, pad_to)
    batch, prompt = tokens.shape
    plan = make_plan(record, intervene, every, config)
    if stream is not None and (stream < 1 or stream % every):
        raise JaxsinkError(f"stream must be a multiple of every ({every}), and is {stream}.")

    infill = not is_ar and bool(((tokens == config.mask_id) & real).any())
    if infill and getattr(sampler, "cache", None) is not None:
        raise JaxsinkError("masks inside the prompt cannot be filled with a cache.")
    response = response_mask(sampler, config, real, pad_to)
    filler = filler_id(config)
    blank = np.where(response, filler if is_ar or config.mask_id is None else config.mask_id, filler)
    if force is not None:
        blank = forced_response(force, blank.shape, config)
    canvas = np.concatenate([tokens, blank], axis=1).astype(np.int32)
    real = np.concatenate([real, response], axis=1)
    if config.positions == "learned" and canvas.shape[1] > config.max_positions:
        raise JaxsinkError(
            f"prompt and response of {canvas.shape[1]} tokens exceed the {config.max_positions} positions."
        )
    given_by_caller = (np.arange(canvas.shape[1]) < prompt) & real
    if not is_ar:
        given_by_caller = given_by_caller & (canvas != config.mask_id)
    prompt_masks = mask_count(np.where(real[:, :prompt], tokens, -1), config)
    total = sampler.length if is_ar else sampler.total_steps(prompt_masks + response.shape[1])
    mesh = mesh_of(model)
    if mesh is not None and devices is not None:
        raise JaxsinkError("this model lies on a mesh, which places the rows as well; leave devices out.")
    devices = None if devices is None else check_devices(devices)[:batch]
    settings = diffusion.Settings(
        sampler, plan, intervene, prompt, infill, choose_backend(backend, canvas.shape[1], canvas.shape[1], mesh), total,
        edit_logits, edit_tokens, mesh, force is not None,
    )  # fmt: skip
    share = len(devices) if devices is not None else 1 if mesh is None else mesh.shape[DATA]

    def rows(x: np.ndarray, axis: int = 0) -> Array:
        return put_batch(pad_batch(x, axis, share), mesh, axis)

    policy = np.arange(batch) if policies is None else np.asarray(policies)
    if policy.shape != (batch,) or not np.issubdtype(policy.dtype, np.integer):
        raise JaxsinkError(f"policies must be a whole number per prompt ({batch}), not {policies!r}.")
    draw = make_draws(seed, batch, draws, rows)
    given = diffusion.Given(rows(real), rows(given_by_caller), draw, rows(policy.astype(np.int32)))
    loop = autoregressive if is_ar else diffusion
    parts = (loop, model if devices is None else copied(model, devices), rows(canvas), given, settings)
    program = OneProgram(*parts) if devices is None else Dealt(*parts, devices)
    with explained("this run", partial(bytes_needed, loop, model, *parts[2:], stream or total)):
        carry, values = run(program, settings, stream, listener)
        wait_on_cpu(carry.tokens)

    def first_rows(x: Any, axis: int = 0) -> Any:
        """Without the rows that only filled the batch up."""
        filled = batch % share and x.ndim > axis and x.shape[axis] == real_rows
        return x[(slice(None),) * axis + (slice(batch),)] if filled else x

    real_rows = given.mask.shape[0]
    tokens = first_rows(carry.tokens)
    return Generation(
        tokens=tokens if force is None else jax.numpy.where(tokens < 0, filler, tokens),
        committed_at=first_rows(carry.committed_at),
        record=jax.tree.unflatten(plan.treedef, jax.tree.map(lambda x: first_rows(x, 2), values)),
        mask=first_rows(given.mask),
        steps=first_rows(carry.steps),
        prompt_length=prompt,
        recorded_steps=np.arange(0, total, every),
        approximate=getattr(sampler, "cache", None),
        log_prob=first_rows(carry.log_prob) if is_ar else None,
        autoregressive=is_ar,
        recorders=jax.tree.unflatten(plan.treedef, map(Kept.of, plan.recorders)),
        tokenizer=known_tokenizer(model),
        end_ids=() if is_ar and not sampler.stop_at_eos else end_ids(config),
    )


def forced_response(force: Sequence[Sequence[int]], shape: tuple[int, ...], config: ModelConfig) -> np.ndarray:
    """i32[B,gen]: what is to be written, -1 where the model is free."""
    if len(force) != shape[0]:
        raise JaxsinkError(f"force has {len(force)} rows, and there are {shape[0]} prompts.")
    wanted = np.full(shape, -1, np.int32)
    for row, ids in zip(wanted, force, strict=True):
        if len(ids) > shape[1]:
            raise JaxsinkError(f"force: {len(ids)} tokens do not fit the {shape[1]} that the sampler writes.")
        if any(not 0 <= int(token) < config.vocab for token in ids):
            raise JaxsinkError(f"force: token ids must lie between 0 and {config.vocab - 1}.")
        row[: len(ids)] = ids
    return wanted


def run(
    program: OneProgram | Dealt, settings: Any, stream: int | None, listener: Listener | None
) -> tuple[Any, tuple[Any, ...]]:
    """All steps in one program, or chunk by chunk with the records of each moved to the host."""
    carry = program.start()
    if stream is None:
        carry, values = program.advance(carry, settings.total, begin=True)
        return program.rows(carry), values
    wants_record = listener is not None and "record" in inspect.signature(listener).parameters
    chunks, rows, chunk = [], 0, min(stream, settings.total)
    while rows < settings.plan.rows(settings.total):
        begin = not chunks and program.loop is autoregressive  # the prompt's pass; diffusion has one program for all
        carry, values = program.advance(carry, chunk, begin=begin)
        chunks.append(to_host(values))
        rows += settings.plan.rows(chunk)
        if listener is not None:
            now = program.rows(carry)
            more = {"record": jax.tree.unflatten(settings.plan.treedef, chunks[-1])} if wants_record else {}
            listener(int(now.step), *to_host((now.tokens, now.committed_at)), **more)
        if bool(carry.done.all()):
            break
    return program.rows(carry), jax.tree.map(
        lambda *parts: all_rows(parts, settings.plan.rows(settings.total)), *chunks
    )


def all_rows(parts: tuple[np.ndarray, ...], count: int) -> np.ndarray:
    """The chunks as one array of `count` rows; rows that an early end left out are zero."""
    joined = np.concatenate(parts)[:count]
    return np.concatenate([joined, np.zeros((count - len(joined), *joined.shape[1:]), joined.dtype)])


def prepare(prompts: Any, mask: Any, config: ModelConfig, pad_to: int | None) -> tuple[np.ndarray, np.ndarray]:
    """(tokens i32[B,P], real bool[B,P]), padded on the left."""
    pad = config.pad_id if config.pad_id is not None else 0
    if isinstance(prompts, (list, tuple)) and len({np.shape(ids) for ids in prompts}) > 1:
        if mask is not None:
            raise JaxsinkError("prompts given as lists of different lengths need no mask.")
        if not all(len(ids) for ids in prompts):
            raise JaxsinkError("prompts must not be empty: every row needs at least one token.")
        width = max(len(ids) for ids in prompts)
        mask = np.array([[False] * (width - len(ids)) + [True] * len(ids) for ids in prompts])
        prompts = [[pad] * (width - len(ids)) + list(ids) for ids in prompts]
    tokens = np.asarray(prompts)
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise JaxsinkError(f"prompts must be [batch, length] or lists of ids, none of them empty, not {tokens.shape}.")
    if not np.issubdtype(tokens.dtype, np.integer):
        raise JaxsinkError(f"prompts must be token ids, not {tokens.dtype}.")
    real = np.ones(tokens.shape, bool) if mask is None else np.asarray(mask).astype(bool)
    if real.shape != tokens.shape:
        raise JaxsinkError(f"mask must have the prompts' shape {tokens.shape}, not {real.shape}.")
    if not real[:, -1].all():
        raise JaxsinkError("prompts must be padded on the left: the last token of every row must be real.")
    wrong = tokens[(tokens < 0) | (tokens >= config.vocab)]
    if wrong.size:
        raise JaxsinkError(f"token id {wrong[0]} is outside the model's vocabulary of {config.vocab} rows.")
    extra = 0 if pad_to is None else -tokens.shape[1] % pad_to
    widths = ((0, 0), (extra, 0))
    return np.pad(tokens, widths, constant_values=pad), np.pad(real, widths)


def response_mask(sampler: Any, config: ModelConfig, real: np.ndarray, pad_to: int | None) -> np.ndarray:
    """bool[B,gen]: the places of the response that exist; rows end apart where a sampler completes its last block."""
    if not hasattr(sampler, "overhang"):
        return np.ones((len(real), sampler.length), bool)
    length = sampler.length + sampler.overhang(config, real.sum(axis=1))
    widest = int(length.max()) if pad_to is None else sampler.length + (config.block_length or 1) - 1
    return np.arange(widest) < length[:, None]


def filler_id(config: ModelConfig) -> int:
    """What stands where a row has ended."""
    return config.pad_id if config.pad_id is not None else (config.eos_ids or (0,))[0]


def make_draws(
    seed: Any, batch: int, draws: dict[str, Any] | None, rows: Callable[[np.ndarray, int], Array]
) -> noise.Draws:
    """`rows(x, axis)` places an array with rows at the given axis."""
    seeds = np.asarray(seed)
    if seeds.shape not in ((), (batch,)) or not np.issubdtype(seeds.dtype, np.integer):
        raise JaxsinkError(f"seed must be a whole number, or one per prompt ({batch}), not {seed!r}.")
    replay = {name: np.asarray(value, np.float64) for name, value in (draws or {}).items()}
    if unknown := set(replay) - {"token", "remask", "transfer"}:
        raise JaxsinkError(f"draws: there are no draws called {sorted(unknown)[0]!r}.")
    if "token" in replay:  # the host has float64, so recorded draws close to 0 and 1 keep their noise
        replay["token"] = -np.log(-np.log(replay["token"]))
    replay = {name: rows(value.astype(np.float32), 1) for name, value in replay.items()}
    seeds = np.broadcast_to((seeds & 0xFFFFFFFF).astype(np.uint32), (batch,))
    return noise.Draws(noise.row_keys(rows(seeds, 0)), **replay)
