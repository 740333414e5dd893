"""How likely a model finds a given answer: exactly for autoregressive models, by LLaDA's bound for diffusion models.

    likelihoods(model, [Pair(context, answer)], Scoring(samples=128))

Every answer is scored by itself: what is drawn for it follows from its own tokens and the seed, so neither the batch nor
the other answers change it. Answers of one shape share a program; the head runs for the answer's places only.

**Diffusion.** An answer is seen on several canvases with some of its tokens masked (canvases.py). A block-causal
model (SDAR) is scored block by block, each given what stands before it. Where sinks are masked, a first pass over the same
canvas finds them and a second one, with them hidden, is scored: there is no step before to take them from.

**Autoregressive.** One pass; where sinks are masked, the answer is written token by token, as `generate` would (`force`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxsink.errors import JaxsinkError
from jaxsink.evals.batching import batch_size, buckets, full_batches, power_of_two, round_up
from jaxsink.evals.likelihood.canvases import canvases, count
from jaxsink.evals.likelihood.fill import FillMasks
from jaxsink.nn.attention import choose_backend
from jaxsink.nn.batch import Batch, Execution
from jaxsink.nn.compilation import model_jit
from jaxsink.nn.sharding import keep_layout
from jaxsink.nn.transformer import Model
from jaxsink.parallel.hosts import to_host
from jaxsink.parallel.layout import put_batch
from jaxsink.parallel.mesh import DATA, mesh_of
from jaxsink.recording.spec import RecordSpec, make_record_spec
from jaxsink.runs.progress import progress
from jaxsink.sampling import interventions
from jaxsink.sampling.autoregressive import ARSampler
from jaxsink.sampling.generate import generate
from jaxsink.sampling.interventions import Previous, drop_where
from jaxsink.sampling.rng import sequence_keys

HEAD = 64  # places whose logits are in memory at a time
NARROWEST = 8  # places of an answer, so that short answers of all lengths share a program


class Pair(NamedTuple):
    """Token ids of what is given and of what is scored; a model that predicts the next place needs some context."""

    context: tuple[int, ...]
    answer: tuple[int, ...]


class Likelihood(NamedTuple):
    log_prob: float
    is_greedy: bool  # the model would write just this; False where it was not checked


@dataclass(frozen=True)
class Scoring:
    """samples: canvases per answer, for diffusion models. rows: of a batch. bucket: sequences are padded to a multiple of
    this. cfg_scale: LLaDA's guidance. intervene: a MaskSinks. check_greedy: also say whether the model would write the
    answer, which takes a diffusion model as many passes as the answer has tokens."""

    samples: int = 128
    rows: int = 32
    seed: int = 0
    bucket: int = 64
    cfg_scale: float = 0.0
    intervene: Any = None
    check_greedy: bool = True

    def __post_init__(self) -> None:
        for name in ("samples", "rows", "bucket"):
            if getattr(self, name) < 1:
                raise JaxsinkError(f"Scoring: {name} must be 1 or more, and is {getattr(self, name)}.")


class Row(NamedTuple):
    """One sequence to run. The answer's places are the last ones, but for causal models, which do not see its end."""

    part: int
    tokens: np.ndarray  # i32[S]
    given: int  # how many of them are context
    answer: Sequence[int]
    scored: np.ndarray  # bool, as long as the answer
    weight: float
    seed: int


def likelihoods(model: Model, pairs: Sequence[Pair], how: Scoring | None = None) -> list[Likelihood]:
    """One result per pair, in order."""
    how = how or Scoring()
    config = model.config
    check(model, pairs, how)
    parts = [(owner, part) for owner, pair in enumerate(pairs) for part in pieces(pair, config.block_length)]
    asked = [part for _, part in parts]
    if config.is_diffusion:
        sums, _ = in_passes(model, asked, how)
        greedy = preferred(model, asked, how) if how.check_greedy else [False] * len(asked)
    elif how.intervene is None:
        sums, greedy = in_passes(model, asked, how)
    else:
        sums, greedy = step_by_step(model, asked, how)
    total, all_greedy = np.zeros(len(pairs)), [how.check_greedy] * len(pairs)
    for (owner, _), value, best in zip(parts, sums, greedy, strict=True):
        total[owner] += value
        all_greedy[owner] = all_greedy[owner] and bool(best)
    return [Likelihood(float(value), best) for value, best in zip(total, all_greedy, strict=True)]


def check(model: Model, pairs: Sequence[Pair], how: Scoring) -> None:
    config = model.config
    interventions.check(how.intervene, config)
    if how.cfg_scale and not config.is_diffusion:
        raise JaxsinkError(f"cfg_scale is for diffusion models, and a {config.family} model is autoregressive.")
    if (config.attention == "causal" or config.shift_logits) and not all(pair.context for pair in pairs):
        raise JaxsinkError(
            f"a {config.family} model predicts a token from the one before it, so an answer needs at least one token of "
            "context, such as bos."
        )


def pieces(pair: Pair, block: int | None) -> Iterator[Pair]:
    """The pair itself; for a block-causal model the answer's part of every block, given all before it."""
    context, answer = tuple(pair.context), tuple(pair.answer)
    while answer:
        size = len(answer) if block is None else min(len(answer), block - len(context) % block)
        yield Pair(context, answer[:size])
        context, answer = context + answer[:size], answer[size:]


def seed_of(pair: Pair, seed: int) -> int:
    """32 bits that follow from the tokens and the seed alone."""
    text = f"{seed} {list(map(int, pair.context))} {list(map(int, pair.answer))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def shape_of(pair: Pair, bucket: int) -> tuple[int, int]:
    """(S, W): padded sizes of the sequence and of the answer."""
    width = max(power_of_two(len(pair.answer)), NARROWEST)
    return max(round_up(len(pair.context) + len(pair.answer), bucket), width), width


def share_of(model: Model) -> int:
    """In how many parts a batch is cut."""
    mesh = mesh_of(model)
    return 1 if mesh is None else mesh.shape[DATA]


def rows_of(number: int, pair: Pair, model: Model, how: Scoring) -> Iterator[Row]:
    """What has to be run for a pair."""
    config, (context, answer), seed = model.config, pair, seed_of(pair, how.seed)
    if config.mask_id is None:
        yield Row(number, np.array(context + answer)[:-1], len(context), answer, np.ones(len(answer), bool), 1.0, seed)
        return
    shown = canvases(len(answer), how.samples, seed)
    for place, (masked, weight) in enumerate(zip(shown.masked, shown.weight, strict=True)):
        tokens = np.concatenate([context, np.where(masked, config.mask_id, answer)]).astype(np.int32)
        yield Row(number, tokens, len(context), answer, masked, float(weight), seed + place)


def in_passes(model: Model, pairs: Sequence[Pair], how: Scoring) -> tuple[np.ndarray, np.ndarray]:
    """(f64[N] weighted sums of log-probabilities, bool[N] all scored tokens are the likeliest), one pass per row."""
    sums, best = np.zeros(len(pairs)), np.ones(len(pairs), bool)
    jobs = []
    for shape, numbers in buckets(range(len(pairs)), lambda n: shape_of(pairs[n], how.bucket)):
        per_pair = [count(len(pairs[n].answer), how.samples) if model.config.is_diffusion else 1 for n in numbers]
        size = batch_size(sum(per_pair), how.rows, share_of(model))
        jobs.append((shape, numbers, size, -(-sum(per_pair) // size)))
    with progress([shape[0] * size for shape, _, size, batches in jobs for _ in range(batches)]) as (begin, end):
        for shape, numbers, size, _ in jobs:
            rows = (row for number in numbers for row in rows_of(number, pairs[number], model, how))
            for batch, real in full_batches(rows, size):
                begin(f"likelihoods, sequences of up to {shape[0]} tokens")
                log_prob, likeliest = run_rows(model, batch, shape, how)
                for row, values, hits in zip(batch[:real], log_prob[:real], likeliest[:real], strict=True):
                    values, hits = values[-len(row.answer) :][row.scored], hits[-len(row.answer) :][row.scored]
                    sums[row.part] += row.weight * float(values.sum(dtype=np.float64))
                    best[row.part] &= bool(hits.all())
                end()
    return sums, best


def run_rows(model: Model, rows: Sequence[Row], shape: tuple[int, int], how: Scoring) -> tuple[np.ndarray, np.ndarray]:
    """(f32[B,W] log-probabilities of the answers' tokens, bool[B,W] likeliest), answers at the right edge."""
    length, width = shape
    pad = model.config.pad_id or 0
    tokens, real = np.full((len(rows), length), pad, np.int32), np.zeros((len(rows), length), bool)
    given, targets = real.copy(), np.zeros((len(rows), width), np.int32)
    for place, row in enumerate(rows):
        start = length - len(row.tokens)
        tokens[place, start:] = row.tokens
        real[place, start:] = True
        given[place, start : start + row.given] = True
        targets[place, width - len(row.answer) :] = row.answer
    mesh = mesh_of(model)
    seeds = np.array([row.seed & 0xFFFFFFFF for row in rows], np.uint32)
    ids, mask, context, answers = (put_batch(x, mesh) for x in (tokens, real, given, targets))
    keys = sequence_keys(put_batch(seeds, mesh))
    needed = None if how.intervene is None else interventions.needs(how.intervene)
    spec = make_record_spec(model.config, None, needed)
    execution = Execution(choose_backend(None, length, length, mesh), mesh)
    return to_host(_score(model, ids, mask, context, answers, keys, how.intervene, spec, how.cfg_scale, execution))


@model_jit(static=("intervene", "spec", "cfg_scale", "execution"))
def _score(
    model: Model,
    tokens: Array,
    real: Array,
    given: Array,
    targets: Array,
    keys: Array,
    intervene: Any,
    spec: RecordSpec,
    cfg_scale: float,
    execution: Execution,
) -> tuple[Array, Array]:
    config = model.config
    (batch, length), width = tokens.shape, targets.shape[1]
    places = jnp.maximum(jnp.arange(length - width, length) - config.shift_logits, 0)

    def run(tokens: Array, drop: Array | None, recorders: Any = ()) -> tuple[Array, Any]:
        canvas = Batch.make(config, tokens, real, prompt=given)
        canvas = canvas._replace(outputs=jnp.broadcast_to(places, (batch, width)))
        out = model(canvas, drop=drop, recorders=recorders, execution=execution, head=False)
        return out.hidden, out.record

    drop = None
    if intervene is not None:
        seen = jax.tree.unflatten(spec.needs_treedef, run(tokens, None, spec.needs)[1])
        nothing = jnp.zeros((config.layers, batch, config.heads, length), bool)
        previous = Previous(seen, jnp.int32(1), tokens, real, given, keys, nothing)
        drop = drop_where(intervene(previous), real[None, :, None, :])
    hidden = [run(tokens, drop)[0]]
    if cfg_scale:
        hidden.append(run(jnp.where(given, config.mask_id or 0, tokens), drop)[0])

    def head(part: tuple[list[Array], Array]) -> tuple[Array, Array]:
        states, target = part
        scores = model.logits(states[0])
        if cfg_scale:
            unguided = model.logits(states[1])
            scores = unguided + (cfg_scale + 1) * (scores - unguided)
        picked = jnp.take_along_axis(scores, target[..., None], axis=-1)[..., 0]
        return picked - jax.nn.logsumexp(scores, axis=-1), scores.argmax(axis=-1) == target

    chunk = min(width, HEAD)  # both are powers of two

    def cut(x: Array) -> Array:
        return jnp.moveaxis(x.reshape(batch, width // chunk, chunk, *x.shape[2:]), 1, 0)

    found = lax.map(head, (jax.tree.map(cut, hidden), cut(targets)))
    return keep_layout(jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(batch, width), found), execution.mesh)


def preferred(model: Model, pairs: Sequence[Pair], how: Scoring) -> np.ndarray:
    """bool[N]: a diffusion model that fills the masked answer one token at a time, the surest first, writes the answer."""
    best, mask_id = np.zeros(len(pairs), bool), model.config.mask_id
    sampler = FillMasks(how.cfg_scale)
    for numbers, real in generation_batches(model, pairs, how):
        asked = [pairs[n] for n in numbers]
        prompts = [[*pair.context, *[mask_id] * len(pair.answer)] for pair in asked]
        seeds = [seed_of(pair, how.seed) for pair in asked]
        out = generate(model, prompts, sampler, intervene=how.intervene, seed=seeds, pad_to=how.bucket)
        for number, row, pair in list(zip(numbers, np.asarray(to_host(out.tokens)), asked, strict=True))[:real]:
            best[number] = row[-len(pair.answer) :].tolist() == list(pair.answer)
    return best


def step_by_step(model: Model, pairs: Sequence[Pair], how: Scoring) -> tuple[np.ndarray, np.ndarray]:
    """(f64[N], bool[N]): an autoregressive model writes the answers under an intervention, and then what it likes."""
    sums, best = np.zeros(len(pairs)), np.zeros(len(pairs), bool)
    for numbers, real in generation_batches(model, pairs, how):
        asked = [pairs[n] for n in numbers]
        sampler = ARSampler(power_of_two(max(len(pair.answer) for pair in asked)), stop_at_eos=False)
        write = partial(
            generate, model, [list(pair.context) for pair in asked], sampler, intervene=how.intervene,
            seed=[seed_of(pair, how.seed) for pair in asked], pad_to=how.bucket,
        )  # fmt: skip
        forced = write(force=[pair.answer for pair in asked])
        log_prob = np.asarray(to_host(forced.log_prob), np.float64)[:, forced.prompt_length :]
        free = np.asarray(to_host(write().response)) if how.check_greedy else None
        for place, number in enumerate(numbers[:real]):
            answer = asked[place].answer
            sums[number] = log_prob[place, : len(answer)].sum()
            best[number] = free is not None and free[place, : len(answer)].tolist() == list(answer)
    return sums, best


def generation_batches(model: Model, pairs: Sequence[Pair], how: Scoring) -> Iterator[tuple[list[int], int]]:
    """(numbers of the pairs that run together, how many of them count), with progress."""
    jobs = [
        (shape, batch)
        for shape, numbers in buckets(range(len(pairs)), lambda n: shape_of(pairs[n], how.bucket))
        for batch in full_batches(numbers, batch_size(len(numbers), how.rows, share_of(model)))
    ]
    with progress([shape[0] * shape[1] * len(batch) for shape, (batch, _) in jobs]) as (begin, end):
        for shape, batch in jobs:
            begin(f"greedy answers, sequences of up to {shape[0]} tokens")
            yield batch
            end()
