"""How likely a model finds a given answer: exactly for autoregressive models, by LLaDA's bound for diffusion models.

    likelihoods(model, [Pair(context, answer)], Scoring(samples=128))

Every answer is scored by itself: what is drawn for it follows from its own tokens and the seed, so neither the batch nor
the other answers change it. Answers of one shape share a program; the head runs for the answer's places only.

**Diffusion.** An answer is seen on several canvases with some of its tokens masked (canvases.py). A block-causal
model (SDAR) is scored block by block, each given what stands before it. Where sinks are masked, a first pass over the same
canvas finds them and a second one, with them hidden, is scored: there is no step before to take them from.

**Autoregressive.** One pass; where sinks are hidden from all rows, a second one as for diffusion; where they are hidden from
the newest row, the answer is written token by token, as `generate` would (`force`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from jaxsink.errors import JaxsinkError, a_model
from jaxsink.evals.batching import batch_size, buckets, full_batches, power_of_two
from jaxsink.evals.likelihood.canvases import canvases, count
from jaxsink.evals.likelihood.fill import FillMasks
from jaxsink.evals.likelihood.passes import Pass, Row, Shape, run_rows
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.transformer import Model
from jaxsink.parallel.hosts import to_host
from jaxsink.parallel.mesh import DATA, mesh_of
from jaxsink.runs.progress import progress
from jaxsink.sampling import interventions
from jaxsink.sampling.autoregressive import ARSampler
from jaxsink.sampling.generate import generate
from jaxsink.sampling.interventions import acts_on_all_rows


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
    elif how.intervene is None or acts_on_all_rows(how.intervene):
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
        raise JaxsinkError(f"cfg_scale is for diffusion models, and {a_model(config.family)} is autoregressive.")
    if (config.attention == "causal" or config.shift_logits) and not all(pair.context for pair in pairs):
        raise JaxsinkError(
            f"{a_model(config.family)} predicts a token from the one before it, so an answer needs at least one token of "
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


def shape_of(pair: Pair, bucket: int) -> Shape:
    return Shape.of(len(pair.context) + len(pair.answer), len(pair.answer), bucket)


def share_of(model: Model) -> int:
    """In how many parts a batch is cut."""
    mesh = mesh_of(model)
    return 1 if mesh is None else mesh.shape[DATA]


def rows_of(number: int, pair: Pair, model: Model, how: Scoring) -> Iterator[Row]:
    """What has to be run for a pair."""
    config, answer, seed = model.config, pair.answer, seed_of(pair, how.seed)
    if config.mask_id is None:
        yield whole_row(number, pair, seed)
        return
    shown = canvases(len(answer), how.samples, seed)
    for place, (masked, weight) in enumerate(zip(shown.masked, shown.weight, strict=True)):
        yield masked_row(config, number, pair, masked, seed + place)._replace(weight=float(weight))


def whole_row(owner: int, pair: Pair, seed: int) -> Row:
    """All of an answer, for an autoregressive model: every token is predicted from those before it."""
    tokens = np.array(pair.context + pair.answer, np.int32)[:-1]
    return Row(owner, tokens, len(pair.context), pair.answer, np.ones(len(pair.answer), bool), seed)


def masked_row(config: ModelConfig, owner: int, pair: Pair, masked: Bool[np.ndarray, " A"], seed: int) -> Row:
    """An answer with these of its tokens masked, and scored."""
    assert config.mask_id is not None
    tokens = np.concatenate([pair.context, np.where(masked, config.mask_id, pair.answer)]).astype(np.int32)
    return Row(owner, tokens, len(pair.context), pair.answer, masked, seed)


def in_passes(model: Model, pairs: Sequence[Pair], how: Scoring) -> tuple[np.ndarray, np.ndarray]:
    """(f64[N] weighted sums of log-probabilities, bool[N] all scored tokens are the likeliest), one pass per row."""
    sums, best = np.zeros(len(pairs)), np.ones(len(pairs), bool)
    jobs = []
    for shape, numbers in buckets(range(len(pairs)), lambda n: shape_of(pairs[n], how.bucket)):
        per_pair = [count(len(pairs[n].answer), how.samples) if model.config.is_diffusion else 1 for n in numbers]
        size = batch_size(sum(per_pair), how.rows, share_of(model))
        jobs.append((shape, numbers, size, -(-sum(per_pair) // size)))
    with progress([shape.length * size for shape, _, size, batches in jobs for _ in range(batches)]) as (begin, end):
        for shape, numbers, size, _ in jobs:
            rows = (row for number in numbers for row in rows_of(number, pairs[number], model, how))
            for batch, real in full_batches(rows, size):
                begin(f"likelihoods, sequences of up to {shape.length} tokens")
                scores = run_rows(model, batch, shape, Pass(how.intervene, how.cfg_scale))
                one_policy = scores.log_prob[:, 0], scores.likeliest[:, 0]
                for row, values, hits in list(zip(batch, *one_policy, strict=True))[:real]:
                    sums[row.owner] += row.weight * float(row.of_answer(np.asarray(values, np.float64)).sum())
                    best[row.owner] &= bool(row.of_answer(np.asarray(hits)).all())
                end()
    return sums, best


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
