"""Autoregressive sampling: the prompt fills a key/value cache, then every step runs one token through it.

Step t runs the token at position P - 1 + t, and writes the next one. So step 0 runs the prompt's last token, and every step
records one query of attention: what the last token looks at while the next one is chosen.

An intervention with `rows = "all"` hides keys from every query, so nothing that was computed stays valid: there is no
cache, and every step runs all tokens so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, PyTree, Shaped

from jaxsink.errors import a_model
from jaxsink.nn.batch import Batch
from jaxsink.nn.cache import Cache
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.recorder import Recorder
from jaxsink.nn.transformer import Output, empty_cache
from jaxsink.parallel.axes import axes, constrain, pytree_dataclass
from jaxsink.recording.spec import zeros_like_shapes
from jaxsink.sampling.base import Sampler, require
from jaxsink.sampling.confidence import pick, shape_logits, token_noise, without
from jaxsink.sampling.interventions import acts_on_all_rows, ranks_on_clean
from jaxsink.sampling.rng import Draws
from jaxsink.sampling.run import Carry, Decoding, before_intervening, checked, intervened
from jaxsink.sampling.whole_sums import adds_up, reduced, unreduced


@pytree_dataclass
class ARCarry(Carry):
    """The carry of the autoregressive sampler."""

    log_prob: Float[Array, "B S"] = axes()  # of the tokens that were written, 0 elsewhere
    sums: tuple[PyTree, ...] = axes(1, 2)  # whole_map: over all queries so far, one per recorder that adds up
    cache: Cache | None = axes(batch=-4, heads=-3)  # None: every step runs all tokens
    clean_cache: Cache | None = axes(batch=-4, heads=-3)  # rank_on="clean": without any key ever dropped

    def caches(self) -> tuple[Cache | None, ...]:
        return self.cache, self.clean_cache


class Now(NamedTuple):
    """Where the next token is drawn."""

    step: Int[Array, ""]
    position: Int[Array, "B 1"]
    offset: Int[Array, "B 1"]


@dataclass(frozen=True)
class ARSampler(Sampler[ARCarry]):
    """Autoregressive generation with a key/value cache; one token per step.

    Models that were trained to write token by token beside something else (`ModelConfig.writes_causally`) run causally. Each
    step records the query of the token that was just written (what the last token attends to).

    Attributes:
        max_new_tokens: tokens of the response
        temperature: of the draws; 0 takes the likeliest token
        top_p: draw from the likeliest tokens that have this probability together
        top_k: draw from so many of the likeliest tokens
        stop_at_eos: a sequence ends with its first eos
        whole_map: add the queries up, so that `received` covers the whole causal map so far, prompt included, as the paper's
            figures need

    Examples:
        >>> llama = jaxsink.load("mini-llama")
        >>> jaxsink.generate(llama, question, jaxsink.ARSampler(max_new_tokens=16)).text.splitlines()[-1]
        '#### 7'
    """

    is_autoregressive = True
    prefills = True
    length_field = "max_new_tokens"

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    stop_at_eos: bool = True
    whole_map: bool = False

    def check(self, config: ModelConfig) -> None:
        super().check(config)
        require(
            config.attention == "causal" or config.writes_causally,
            f"ARSampler: {a_model(config.family)} is not autoregressive; model.with_attention('causal') runs it causally.",
        )

    def run_config(self, config: ModelConfig) -> ModelConfig:
        """Weights that were trained in both ways (Nemotron-Labs-Diffusion's) run causally here."""
        return config.with_attention("causal")

    def total_steps(self, masks: int) -> int:
        return self.max_new_tokens

    def window(self, config: ModelConfig) -> int:
        return 1

    def queries_per_step(self, length: int) -> float:
        return 1.0

    @property
    def ends_at_eos(self) -> bool:
        return self.stop_at_eos

    def log_prob(self, carry: ARCarry) -> Float[Array, "B S"]:
        return carry.log_prob

    def with_whole_map(self) -> ARSampler:
        return replace(self, whole_map=True)

    def init(self, run: Decoding, tokens: Int[Array, "B S"]) -> ARCarry:
        """The prompt runs later, inside the first chunk of steps (`prefill`)."""
        batch, length = tokens.shape
        intervene = run.spec.intervene
        is_cached = not acts_on_all_rows(intervene)
        needs_clean = intervene is not None and ranks_on_clean(intervene)
        zero = jnp.zeros(batch, jnp.int32)
        carry = ARCarry(
            step=jnp.int32(0),
            tokens=tokens,
            committed_at=jnp.full_like(tokens, -1),
            done=zero > 0,
            steps=zero,
            needed_record=None,
            drop=None,
            targets=None,
            log_prob=jnp.zeros(tokens.shape, jnp.float32),
            sums=(),
            cache=empty_cache(run.model, batch, length) if is_cached else None,
            clean_cache=empty_cache(run.model, batch, length) if is_cached and needs_clean else None,
        )

        def zeros(recorders: tuple[Recorder, ...]) -> tuple[PyTree, ...]:
            shapes = jax.eval_shape(lambda c: run_now(run, c, c.cache, recorders=recorders).record, carry)
            return zeros_like_shapes(shapes)

        if intervene is not None:
            carry = before_intervening(run, carry.replace(needed_record=zeros(run.spec.record.needs)))
        if adding := self.added_up(run):
            carry = carry.replace(sums=zeros(adding))
        return constrain(carry, run.spec.mesh)

    def prefill(self, run: Decoding, carry: ARCarry) -> ARCarry:
        """Fill the caches with the prompt, but for its last token, which step 0 runs."""
        count = run.spec.prompt_length - 1
        if count == 0 or carry.cache is None:
            return carry
        mask = run.inputs.mask & (jnp.arange(run.inputs.mask.shape[1]) < count)
        batch = Batch.make(run.config, carry.tokens, mask, prompt=run.inputs.prompt)._replace(queries=count)
        batch, recorders = run.looked_into(batch, carry.step), self.added_up(run)
        out = run.model(batch, cache=carry.cache, recorders=recorders, execution=run.spec.execution, head=False)
        clean = None if carry.clean_cache is None else jax.tree.map(jnp.copy, out.cache)
        return carry.replace(cache=out.cache, sums=out.record, clean_cache=clean)

    def step(self, run: Decoding, carry: ARCarry, *, record: bool) -> tuple[ARCarry, tuple[PyTree, ...]]:
        spec = run.spec
        position = spec.prompt_length + carry.step
        there_before = run.inputs.mask & (jnp.arange(run.inputs.mask.shape[1]) < position - 1)
        carry = intervened(run, carry, there_before)
        adding, needs = self.added_up(run), spec.record.needs
        wanted = tuple(r for r in spec.record.recorders if record and not (adding and adds_up(r)))
        out = run_now(run, carry, carry.cache, carry.drop, wanted + adding + needs)
        records, added, needed_record = split(out.record, len(wanted), len(adding))
        clean = None
        if spec.intervene is not None and ranks_on_clean(spec.intervene):
            on_clean = run_now(run, carry, carry.clean_cache, recorders=needs)
            needed_record, clean = on_clean.record, on_clean.cache
        sums = jax.tree.map(jnp.add, carry.sums, added)
        if adding and record:
            records = with_sums(run, carry, records, sums)
        carry = carry.replace(sums=sums, needed_record=None if spec.intervene is None else needed_record)
        carry = carry.replace(cache=out.cache, clean_cache=clean)
        logits = run.model.logits(out.hidden[:, 0])
        carry = checked(carry, logits[:, None], ~carry.done[:, None])
        return self._write(run, carry, logits), records

    def _write(self, run: Decoding, carry: ARCarry, logits: Float[Array, "B V"]) -> ARCarry:
        """Choose the next token and write it; sequences that write eos are done."""
        eos_ids, position = run.config.eos_ids, run.spec.prompt_length + carry.step
        mask_id = run.config.mask_id  # of a diffusion model that runs causally; it is no text
        open_to = logits if mask_id is None else without(logits, (mask_id,))
        token = self.next_token(open_to, carry.step, run.spec.prompt_length, run.inputs.draws)
        before = carry.tokens[:, position]
        if run.spec.forced:
            token = jnp.where(before >= 0, before, token)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), token[:, None], axis=-1)[:, 0]
        ends = jnp.isin(token, jnp.array(eos_ids)) if self.stop_at_eos and eos_ids else jnp.zeros_like(carry.done)
        token = jnp.where(carry.done, before, token).astype(jnp.int32)
        return carry.replace(
            step=carry.step + 1,
            tokens=carry.tokens.at[:, position].set(token),
            committed_at=carry.committed_at.at[:, position].set(jnp.where(carry.done, -1, carry.step)),
            log_prob=carry.log_prob.at[:, position].set(jnp.where(carry.done, 0.0, log_prob)),
            done=carry.done | ends,
            steps=carry.steps + ~carry.done,
        )

    def next_token(
        self, logits: Float[Array, "B V"], step: Int[Array, ""], prompt_length: int, draws: Draws
    ) -> Int[Array, " B"]:
        if self.temperature == 0:
            return jnp.argmax(logits, axis=-1)
        shaped = shape_logits(logits[:, None], self.temperature, self.top_p, self.top_k, k_first=True)
        offset = jnp.full((logits.shape[0], 1), step)
        now = Now(step, offset + prompt_length, offset)
        return pick(shaped, token_noise(draws, now, logits.shape[-1]))[:, 0]

    def added_up(self, run: Decoding) -> tuple[Recorder, ...]:
        """With whole_map, the recorders that add up; without their reductions, which wait until the sum is complete.

        Steps that run all tokens have the whole map anyway.
        """
        recorders = run.spec.record.recorders if self.whole_map and not acts_on_all_rows(run.spec.intervene) else ()
        return unreduced(tuple(r for r in recorders if adds_up(r)))


def batch_now(run: Decoding, carry: ARCarry) -> Batch:
    """The tokens so far."""
    mask = run.inputs.mask & (jnp.arange(run.inputs.mask.shape[1]) <= newest(run, carry))
    return Batch.make(run.config, carry.tokens, mask, prompt=run.inputs.prompt, done=carry.done)


def newest(run: Decoding, carry: ARCarry) -> Int[Array, ""]:
    """The position of the token that was written last."""
    return run.spec.prompt_length - 1 + carry.step


def run_now(
    run: Decoding,
    carry: ARCarry,
    cache: Cache | None,
    drop: Shaped[Array, "L B H S"] | None = None,
    recorders: tuple[Recorder, ...] = (),
) -> Output:
    """The newest token through the layers, on the cache; without one all tokens, of which the newest is wanted."""
    batch, last = run.looked_into(batch_now(run, carry), carry.step), newest(run, carry)
    if cache is not None:
        batch = batch._replace(start=last, queries=1)
    else:
        batch = batch._replace(outputs=jnp.full((carry.tokens.shape[0], 1), last))
    return run.model(batch, cache=cache, drop=drop, recorders=recorders, execution=run.spec.execution, head=False)


def split(values: tuple[PyTree, ...], *counts: int) -> tuple[tuple[PyTree, ...], ...]:
    parts = []
    for count in counts:
        parts.append(values[:count])
        values = values[count:]
    return *parts, values


def with_sums(
    run: Decoding, carry: ARCarry, records: tuple[PyTree, ...], sums: tuple[PyTree, ...]
) -> tuple[PyTree, ...]:
    """All recorders' values in order: sums over the queries so far, reduced layer by layer, among those of this step."""
    keys, of_step, of_all = batch_now(run, carry).keys, iter(records), iter(sums)
    return tuple(
        reduced(r, next(of_all), keys, carry.done) if adds_up(r) else next(of_step) for r in run.spec.record.recorders
    )
