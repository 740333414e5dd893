"""Wrong calls of the public interface: every one is a JaxsinkError, a sentence, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.golden import golden
from support.shape_checks import no_shape_checks

import jaxsink
from jaxsink import ARSampler, DreamSampler, DropPositions, JaxsinkError, LLaDASampler, SDARSampler, record, reduce
from jaxsink.checks import Range, above, at_least, check_value
from jaxsink.nn.config import Experts, RopeScaling
from jaxsink.sinks import Importance, MaskSinks, Outlier, Threshold, TopK, Turns

api: Any = jaxsink  # type checkers would refuse what follows
NAN, INF = float("nan"), float("inf")
PROMPT = [[5, 6, 7]]
SAMPLER = LLaDASampler(4, 4, 4)


def run(**options: Any) -> Any:
    return api.generate(golden("llada_tiny").model, **{"prompts": PROMPT, "sampler": SAMPLER, **options})


def made(kind: Any, /, **settings: Any) -> Any:
    """Samplers say what is wrong when they are to run, all others when they are made."""
    one = kind(**settings)
    if isinstance(one, jaxsink.Sampler):
        one.check(golden("llada_tiny").model.config)


def received() -> np.ndarray:
    return np.ones((4, 2, 1, 2, 5), np.float32)


NUMBERS = (None, "4", 1.5, True, NAN, -1, [3], 10**12)
CALLS: dict[str, Callable[[], Any]] = {}
for kind, name in (
    (LLaDASampler, "gen_length"),
    (LLaDASampler, "steps"),
    (LLaDASampler, "block_length"),
    (DreamSampler, "max_new_tokens"),
    (DreamSampler, "steps"),
    (ARSampler, "max_new_tokens"),
    (SDARSampler, "gen_length"),
):
    for value in (*NUMBERS, 0):
        CALLS[f"{kind.__name__} {name} {value}"] = lambda kind=kind, name=name, value=value: made(kind, **{name: value})
for kind, name, values in (
    (LLaDASampler, "temperature", (NAN, INF, -1, "1", None)),
    (LLaDASampler, "cfg_scale", (NAN, INF, -1)),
    (LLaDASampler, "threshold", (NAN, 1.5, "x")),
    (LLaDASampler, "remasking", ("best", None, 3)),
    (LLaDASampler, "cache", ("both", True)),
    (LLaDASampler, "stop_at_eos", ("yes", 1, None)),
    (DreamSampler, "alg", ("foo", None)),
    (DreamSampler, "alg_temp", (NAN, INF, -1)),
    (DreamSampler, "eps", (NAN, 0, 1, INF)),
    (DreamSampler, "top_p", (NAN, 0, 1.5)),
    (DreamSampler, "top_k", (1.5, -1, "a")),
    (ARSampler, "temperature", (NAN, INF, -INF)),
    (ARSampler, "whole_map", (1,)),
    (SDARSampler, "steps_per_block", (0, 1.5)),
    (SDARSampler, "threshold", (NAN, 2)),
    (MaskSinks, "k", (1.5, NAN, "1", True, -1, None)),
    (MaskSinks, "eps", (NAN, INF, "3", None)),
    (MaskSinks, "select", ("best", None, ["top"])),
    (MaskSinks, "rule", ("best", 3, Threshold)),
    (MaskSinks, "rank_on", ("dirty", None)),
    (MaskSinks, "per", ("model",)),
    (MaskSinks, "layers", ((1.5,), (), 3, ("a",), (-1,))),
    (MaskSinks, "positions", ((1.5,), (), (-1,), (NAN,))),
    (MaskSinks, "spare", (-1, 1.5)),
    (MaskSinks, "keep", ("yes",)),
    (MaskSinks, "factor", (NAN, INF, -1, 1)),
    (MaskSinks, "share", (0, 1, NAN)),
    (MaskSinks, "rows", ("some",)),
    (Threshold, "eps", (NAN, INF, "3", None)),
    (Threshold, "scale", ("max", None)),
    (Importance, "eps", (NAN, True)),
    (Importance, "causal", (1,)),
    (Outlier, "sigmas", (NAN, "3")),
    (TopK, "k", (1.5, -1, 0, None, "2")),
    (DropPositions, "positions", (3, (1.5,), (-1,), ("a",))),
    (Turns, "policies", ((3,), 3, (), (MaskSinks,))),
    (reduce.top, "k", (0, 1.5, "a")),
    (reduce.sink_counts, "eps", (3.0, (NAN,), ("a",))),
    (reduce.histogram, "edges", ((INF,), 2)),
    (reduce.sink_share, "eps", (NAN,)),
    (record.Recorder, "read", (3, None)),
    (record.maps, "layers", ((1.5,), (-1,), 3)),
    (record.maps, "heads", ((1.5,), (-1,), "ab")),
    (Experts, "count", (0, 1.5)),
    (RopeScaling, "kind", ("foo",)),
):
    for value in values:
        more = {"per_token": 1} if kind is Experts else {"factor": 2.0} if kind is RopeScaling else {}
        CALLS[f"{kind.__name__} {name} {value}"] = lambda kind=kind, more={name: value, **more}: made(kind, **more)
CALLS |= {
    "rules & 3": lambda: api.sinks.Threshold(3.0) & 3,
    "rules | None": lambda: api.sinks.TopK(3) | None,
    "recorder join": lambda: api.record.Recorder(lambda tap: 0, "product"),
    "recorder tap": lambda: api.record.Recorder(lambda tap: 0, tap="logits"),
    "recorder reductions": lambda: api.record.received().then(3),
    "recorder at": lambda: api.record.received().at([1.5]),
    "detect without a rule": lambda: api.sinks.detect(received(), None),
    "detect text": lambda: api.sinks.detect("abc", TopK(1)),
    "detect objects": lambda: api.sinks.detect([[1.0], [1.0, 2.0]], TopK(1)),
    "detect mask": lambda: api.sinks.detect(received(), TopK(1), mask=np.ones(3)),
    "sweep eps": lambda: api.sinks.sweep(received(), "abc"),
    "sweep NaN": lambda: api.sinks.sweep(received(), [NAN]),
    "sweep scale": lambda: api.sinks.sweep(received(), [1.0], scale="max"),
    "track rule": lambda: api.sinks.track(received(), rule=3),
    "track steps": lambda: api.sinks.track(received(), steps=[1.5]),
    "track text": lambda: api.sinks.track("abc"),
    "forward no model": lambda: api.forward(None, PROMPT),
    "forward text": lambda: api.forward(golden("llada_tiny").model, "abc"),
    "forward ragged": lambda: api.forward(golden("llada_tiny").model, [[1, 2], [3]]),
    "forward mask": lambda: api.forward(golden("llada_tiny").model, PROMPT, mask="abc"),
    "forward scale": lambda: api.forward(golden("llada_tiny").model, PROMPT, scale=np.full((2, 1, 4, 3), NAN)),
    "forward record": lambda: api.forward(golden("llada_tiny").model, PROMPT, record=3),
    "forward record of a text": lambda: api.forward(golden("llada_tiny").model, PROMPT, record=lambda tap: "x"),
    "forward record of nothing": lambda: api.forward(golden("llada_tiny").model, PROMPT, record=lambda tap: {}),
    "forward record of an ending": lambda: api.forward(
        golden("llada_tiny").model,
        PROMPT,
        record=record.Recorder(lambda tap: tap.vectors, "once", tap="residual", ending=lambda *given: "x"),
    ),
    "forward half a mask": lambda: api.forward(golden("llada_tiny").model, PROMPT, mask=np.full((1, 3), 0.5)),
    "forward 2 for a mask": lambda: api.forward(golden("llada_tiny").model, PROMPT, visible=np.full((1, 3, 3), 2)),
    "config.replace": lambda: golden("llada_tiny").model.config.replace(foo=1),
    "with_origin": lambda: api.load("mini-llada").with_origin(3),
    "with_config": lambda: golden("llada_tiny").model.with_config(None),
    "forward backend": lambda: api.forward(golden("llada_tiny").model, PROMPT, backend="fast"),
    "forward backend 3": lambda: api.forward(golden("llada_tiny").model, PROMPT, backend=3),
    "no model": lambda: api.generate(None, PROMPT, SAMPLER),
    "a name for a model": lambda: api.generate("mini-llada", PROMPT, SAMPLER),
    "sampler for nothing": lambda: api.sampler_for(None),
    "load nothing": lambda: api.load(None),
    "load dtype": lambda: api.load("mini-llada", dtype="float99"),
    "load verify": lambda: api.load("mini-llada", verify="no"),
    "load mesh": lambda: api.load("mini-llada", mesh=3),
    "save nothing": lambda: api.save(None, "x"),
    "save sampler": lambda: api.save(golden("llada_tiny").model, "x", sampler=3),
}
for name, values in {
    "prompts": (None, 3, [], [[]], [[1.5]], [["a"]], [[5, 10**9]], [[-1]], [[5], None], {"a": 1}, [[True]], b"ab"),
    "sampler": (3, "llada", LLaDASampler, ARSampler()),
    "mask": ("abc", np.ones((2, 2)), [[1, 1, 0]], np.full((1, 3), 0.5), np.full((1, 3), 2), [[True, None, True]]),
    "record": (
        3,
        "received",
        record.received,
        {"a": None, "b": 3},
        lambda tap: "x",
        lambda tap: None,
        record.received().then(lambda value, tap: {"a": value, "b": "x"}),
    ),
    "intervene": (3, MaskSinks, "top", MaskSinks(k=100)),
    "seed": (None, 1.5, "a", [1, 2], NAN, [[1]], [], -1, 2**32, 10**30, jax.random.key(0)),
    "chat": (3, "yes", True),
    "every": (0, 1.5, "a", True, -1, NAN),
    "stream": (0, 1.5, -1, "a"),
    "pad_to": (0, 1.5, -1, "a", True, 10**9),
    "backend": (3, "fast"),
    "draws": (
        3,
        {"token": [1]},
        {"other": np.ones(3)},
        {"token": "abc"},
        {"remask": np.full((4, 1, 7), NAN)},
        {"remask": np.full((4, 1, 7), 2.0)},
        {"remask": [[1], [2, 3]]},
    ),
    "force": (3, [[1]], "a"),
    "edit_logits": (3, lambda step, logits, at: logits[:, :1], lambda step, logits, at: None),
    "edit_tokens": (3, lambda step, tokens: tokens[:, :1], lambda step, tokens: tokens + 0.5),
    "listener": (3,),
    "devices": (3, [], ["cpu"], "cpu"),
    "policies": (3, [1.5], "a", [1, 2], [1], [-1]),
    "telepathy": (True,),
}.items():
    for number, value in enumerate(values):
        CALLS[f"generate {name} {number}"] = lambda name=name, value=value: run(**{name: value})


@pytest.mark.parametrize("call", CALLS)
def test_wrong_calls_are_one_sentence(call: str) -> None:
    with no_shape_checks(), pytest.raises(JaxsinkError) as error:
        CALLS[call]()
    assert "\n" not in str(error.value) and 10 < len(str(error.value)) < 500


def test_numbers_of_numpy_and_lists_are_taken() -> None:
    sampler = api.LLaDASampler(np.int64(4), np.int32(4), 4)
    sampler.check(golden("llada_tiny").model.config)
    assert sampler == LLaDASampler(4, 4, 4) and type(sampler.gen_length) is int
    policy = api.sinks.MaskSinks(k=np.int64(2), layers=[0, np.int64(1)], eps=np.float32(2))
    assert policy == MaskSinks(k=2, layers=(0, 1), eps=2.0) and hash(policy) == hash(
        MaskSinks(2, layers=(0, 1), eps=2.0)
    )
    assert Threshold(3) == Threshold(3.0)
    assert api.DropPositions([1, 2]).positions == (1, 2)


@pytest.mark.parametrize(
    ("hint", "allowed", "words"),
    [
        (int, at_least(1), "a positive whole number"),
        (int, at_least(0), "a whole number of 0 or more"),
        (int, at_least(1, 1 << 20), "a whole number from 1 to 1048576"),
        (float, above(0, 1), "a finite number above 0 and of 1 or less"),
        (float | None, Range(0, 1, frozenset({0, 1})), "a finite number above 0 and below 1 or None"),
        (tuple[int, ...], Range(), "a tuple, each of it a whole number"),
        (Callable, Range(), "a function"),
        (str, Range(), "a text"),
    ],
)
def test_what_is_wanted_is_said(hint: Any, allowed: Range, words: str) -> None:
    with pytest.raises(JaxsinkError) as error:
        check_value("x", jnp.int32, hint, allowed) if hint is not Callable else check_value("x", 3, hint)
    assert str(error.value).startswith(f"x must be {words}, not ")
