"""Every public function, every parameter of it, and six values that are mostly wrong: a JaxsinkError of one sentence,
or a value that the annotation admits. Signatures are walked, so that a new name is covered; if it needs
arguments that no other name has, GIVEN says what they are.

What an annotation admits is asked of beartype, not of jaxsink's own checks. `python tests/test_public_calls.py` counts.
"""

from __future__ import annotations

import builtins
import inspect
import json
import math
import signal
import sys
import warnings
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Union, Unpack, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype import BeartypeConf
from beartype.door import is_bearable
from support.golden import golden
from support.paths import ROOT
from support.public_names import CALLABLE
from support.shape_checks import no_shape_checks

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.evals.prepare import Options as EvaluationOptions
from jaxsink.sampling.base import Sampler
from jaxsink.training.recipe import DataSettings
from jaxsink.training.settings import Settings as TrainingSettings

NAN = float("nan")
WRONG = {"None": None, "3": 3, "'x'": "x", "NaN": NAN, "1.5": 1.5, "[]": []}
LONGEST = 320  # characters of a sentence
SECONDS = 5.0  # that a call may take: what is wrong is said before any work
MISSING = object()

# Classes that functions return, or of which an experiment is declared: nobody makes one to call jaxsink.
RETURNED = {
    "JaxsinkError",
    "Model",
    "Output",
    "Health",
    "Generation",
    "Response",
    "Tokenizer",
    "Sampler",
    "DiffusionSampler",
    "parallel.PmapProgram",
    "record.Tap",
    "record.VectorTap",
    "record.TunedLens",
    "report.Page",
    "report.StudyResults",
    "sinks.Agreement",
    "sinks.AtSinks",
    "sinks.Frequency",
    "sinks.Frontier",
    "sinks.HiddenKeys",
    "sinks.Rates",
    "sinks.Rule",
    "sinks.Split",
    "sinks.Tracks",
    "stats.Interval",
    "stats.Difference",
    "stats.Estimate",
    "stats.McNemar",
    "study.Experiment",
    "study.Finding",
    "study.Gallery",
    "study.Hidden",
    "study.Measured",
    "study.Measurement",
    "study.Outcome",
    "study.Prediction",
    "study.Recorded",
    "study.Scored",
    "study.Study",
    "study.Subject",
    "study.Table",
    "study.Tested",
    "study.Untrained",
    "edit.Edit",
}
METHODS = (
    *(
        f"Tokenizer.{name}"
        for name in ["load", "known", "encode", "encoding", "encode_batch", "decode", "token", "chat", "chat_form"]
    ),
    *("record.Recorder.at", "record.Recorder.then", "sinks.MaskSinks.control", "sinks.MaskSinks.calibrated"),
    *("Generation.canvas", "stats.Estimate.interval", "ModelConfig.replace"),
    *(f"Model.{name}" for name in ["with_attention", "with_config", "with_origin"]),
)
# What is not called with values that fit: it would run for long, write files, open windows or use the network.
LONG = {
    "evaluate",
    "lm_eval",
    "models",
    "plan",
    "study.study",
    "report.report",
    "train",
    "convert",
    "respond",
    "doctor",
    "generate",
    "save",
    "load",
    "describe",
    "parallel.start",
    "parallel.pmap_program",
    "parallel.pmap_batch",
    "parallel.shard",
    "study.subject",
    "study.trained",
    "sampler_for",
    "show",
    "report.show",
    "report.draw_gif",
    "report.write_page",
    "report.read_study",
    "report.render",
    "Tokenizer.load",
    "sinks.attention_gradient",
    "sinks.rollout",
    "forward",
    "init",
    "plots.plot_received",
    "plots.plot_trajectory",
    "plots.plot_layers",
}

# Dataclasses whose fields a function takes by name, without saying so in its signature.
BEHIND = {
    "options": {"evaluate": (EvaluationOptions,)},
    "settings": {"train": (TrainingSettings, DataSettings)},
    "changes": {"replace": (jaxsink.ModelConfig,)},
}


@cache
def model() -> Any:
    return golden("llada_tiny").model


@cache
def generation() -> Any:
    sampler = jaxsink.LLaDASampler(4, 2, 4)
    return jaxsink.generate(model(), [[5, 6, 7]], sampler, record=jaxsink.record.received())


def scores() -> np.ndarray:
    return np.arange(1, 61, dtype=np.float32).reshape(3, 2, 1, 2, 5)  # [T,L,B,H,S]


@cache
def tokenizer() -> Any:
    return jaxsink.Tokenizer.load("mini-llada")


BY_QUERY = {kind: np.ones((3, 2, 1, 2, 5), np.float32) for kind in ("masked", "unmasked", "prompt")}
STEPS, CANVAS = np.arange(3), np.ones((3, 1, 5), int)
# Arguments that have no default: of a function, or of every function with a parameter of that name.
GIVEN: dict[str, Callable[[], Any]] = {
    "model": model,
    "path": lambda: "nowhere",
    "out": lambda: "nowhere",
    "src": lambda: "nowhere",
    "dst": lambda: "nowhere",
    "config": lambda: model().config,
    "tokens": lambda: [[5, 6, 7]],
    "prompts": lambda: [[5, 6, 7]],
    "received": scores,
    "dropped": lambda: scores() > 30,
    "rule": lambda: jaxsink.sinks.TopK(1),
    "eps": lambda: [3.0],
    "k": lambda: 1,
    "mask": lambda: np.ones((1, 5), bool),
    "by_query": lambda: BY_QUERY,
    "values": lambda: [1.0, 2.0],
    "right": lambda: [1, 0],
    "a": lambda: [1, 0, 1],
    "b": lambda: [1, 1, 0],
    "loss": lambda: lambda logits: logits.sum(axis=(1, 2)),
    "targets": lambda: [[5, -1, 6]],
    "committed_at": lambda: np.array([[-1, 0, 0, 1, 2]]),
    "recorded_steps": lambda: STEPS,
    "mask_id": lambda: 7,
    "position": lambda: np.zeros((3, 2, 1, 2), int),
    "at": lambda: np.ones((3, 1)),
    "block": lambda: np.zeros((3, 1), int),
    "prompt_length": lambda: 3,
    "block_length": lambda: 2,
    "canvas": lambda: CANVAS,
    "vocab": lambda: 10,
    "tokenizer": tokenizer,
    "vector": lambda: np.ones(model().config.width),
    "factor": lambda: 2.0,
    "tap": lambda: "mlp",
    "source": lambda: np.ones((2, 1, 5, 8), np.float32),
    "recorder": jaxsink.record.received,
    "record": jaxsink.record.received,
    "layers": lambda: 2,
    "heads": lambda: 2,
    "mesh": lambda: jaxsink.parallel.make_mesh(1, 1, jax.devices()[:1]),
    "devices": lambda: jax.devices()[:1],
    "function": lambda: jnp.square,
    "in_axes": lambda: (0,),
    "out_axes": lambda: 0,
    "arguments": lambda: [np.ones(2)],
    "tree": lambda: np.ones(2),
    "name": lambda: "layers.attention.q.weight",
    "rank": lambda: 3,
    "edges": lambda: (1.0, 2.0),
    "generation": generation,
    "text": lambda: "two apples",
    "texts": lambda: ["two apples"],
    "ids": lambda: [5, 6],
    "index": lambda: 5,
    "messages": lambda: "Hello",
    "step": lambda: 0,
    "reduction": lambda: jaxsink.reduce.top(1),
    "select": lambda: "random",
    "successes": lambda: 1,
    "n": lambda: 2,
    "n_a": lambda: 2,
    "n_b": lambda: 2,
    "right_a": lambda: 1,
    "right_b": lambda: 1,
    "p_values": lambda: [0.5],
    "setting": lambda: "task",
    "sinks": lambda: scores() > 30,
    "study": lambda: None,
    "views": list,
    "page": lambda: "nowhere.html",
    "run": lambda: "nowhere",
    "found": lambda: None,
    "positions": lambda: (1,),
    "policies": lambda: (None, jaxsink.sinks.MaskSinks(1)),
    "read": lambda: lambda tap: tap.probs,
    "count": lambda: 4,
    "per_token": lambda: 1,
    "kind": lambda: "linear",
    "jaxsink.sinks.Threshold eps": lambda: 3.0,
    "jaxsink.sinks.distance at": lambda: np.ones((3, 1)),
    "jaxsink.sinks.at_sinks values": scores,
    "jaxsink.sinks.blocks at": lambda: jaxsink.sinks.Frontier(*(np.zeros((3, 1), int) for _ in range(3))),
    "jaxsink.sinks.canvases tokens": lambda: np.ones((1, 5), int),
    "jaxsink.sinks.top_tokens found": lambda: frequency(),
    "jaxsink.respond model": lambda: "mini-llada",
    "jaxsink.train model": lambda: "mini-llada",
    "jaxsink.evaluate model": lambda: "mini-llada",
    "jaxsink.plan model": lambda: "mini-llada",
    "jaxsink.preset name": lambda: "llada-8b-instruct",
    "jaxsink.study.subject name": lambda: "mini-llada",
    "jaxsink.lm_eval arguments": lambda: ["--help"],
    "jaxsink.record.Recorder.at layers": lambda: [0],
    "jaxsink.Tokenizer.known name": lambda: "eot",
    "jaxsink.parallel.pmap_batch in_axes": lambda: [0],
    "jaxsink.report.report source": generation,
    "jaxsink.Model.with_attention attention": lambda: "causal",
    "jaxsink.edit.add tap": lambda: "residual",
    "jaxsink.plots.busiest found": lambda: None,
    "jaxsink.plots.plot_received source": generation,
    "jaxsink.plots.plot_trajectory source": generation,
    "jaxsink.plots.plot_layers source": generation,
    "jaxsink.RopeScaling factor": lambda: 2.0,
    "jaxsink.DropPositions positions": lambda: (1,),
}


def frequency() -> Any:
    return jaxsink.sinks.frequency(scores() > 30, CANVAS, np.ones((1, 5)), 10)


def subjects() -> Iterator[tuple[str, Callable[..., Any]]]:
    """(name, what is called) of all functions, settings and methods."""
    for name, thing in CALLABLE.items():
        if name.removeprefix("jaxsink.") not in RETURNED and name not in ("jaxsink.plots.busiest",):
            yield name, thing
    for name in METHODS:
        *place, method = name.split(".")
        owner: Any = jaxsink
        for part in place:
            owner = getattr(owner, part)
        static = inspect.getattr_static(owner, method)
        bound = getattr(owner, method) if isinstance(static, classmethod) else None
        yield f"jaxsink.{name}", bound or (lambda method=method, owner=owner: getattr(instance(owner), method))


def instance(owner: type) -> Any:
    made = {
        jaxsink.Tokenizer: tokenizer,
        jaxsink.record.Recorder: jaxsink.record.received,
        jaxsink.sinks.MaskSinks: jaxsink.sinks.MaskSinks,
        jaxsink.Generation: generation,
        jaxsink.Model: model,
        jaxsink.ModelConfig: lambda: model().config,
        jaxsink.stats.Estimate: lambda: jaxsink.stats.clustered_mean([1.0, 2.0, 4.0]),
    }
    return made[owner]()


SUBJECTS = dict(subjects())


def function_of(name: str) -> Callable[..., Any]:
    thing = SUBJECTS[name]
    is_method = getattr(thing, "__name__", "") == "<lambda>"
    return thing() if is_method else thing


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of all parameters, and of the options behind `**`."""
    found: dict[str, Any] = {}
    for parameter, module in parameters(function):
        hint = parameter.annotation
        names = ChainMap(vars(module), vars(builtins), Elsewhere())
        hint = eval(hint, {}, names) if isinstance(hint, str) else hint
        if get_origin(hint) is Unpack:
            found |= get_type_hints(get_args(hint)[0])
        elif parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            found[parameter.name] = hint
        elif parameter.name in BEHIND:
            for settings in BEHIND[parameter.name].get(function.__name__, ()):
                found |= hints_of(settings)
    return found


def parameters(function: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, ModuleType]]:
    """Each with the module in which its annotation was written: of a field, that of the class that has it."""
    for parameter in inspect.signature(function).parameters.values():
        classes = function.__mro__ if inspect.isclass(function) else ()
        owner = next((one for one in classes if parameter.name in vars(one).get("__annotations__", ())), function)
        yield parameter, sys.modules[inspect.unwrap(owner).__module__]


class Elsewhere(dict[str, Any]):
    """Names that modules import for type checkers alone."""

    def __missing__(self, name: str) -> Any:
        if name == "Axes":
            return import_module("matplotlib.axes").Axes
        place = next(place for place in (jaxsink, jaxsink.sinks, jax.typing) if hasattr(place, name))
        return getattr(place, name)


def arguments(name: str, function: Callable[..., Any], wrong: str) -> dict[str, Any]:
    """What the function needs beside the wrong one."""
    needed = (p for p in inspect.signature(function).parameters.values() if p.default is p.empty)
    given: dict[str, Any] = {}
    if function is jaxsink.ModelConfig:
        return {name: value for name, value in vars(model().config).items() if name != wrong}
    for parameter in needed:
        if parameter.name == wrong or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        make = GIVEN.get(f"{name} {parameter.name}") or GIVEN.get(parameter.name)
        assert make is not None, f"GIVEN lacks {parameter.name} of {name}"
        given[parameter.name] = make()
    return given


def admits(hint: Any, value: object) -> bool:
    """NaN is never a number that is wanted, and a text never a list of texts."""
    if hint is Any or hint is inspect.Parameter.empty:
        return True
    if isinstance(value, float) and math.isnan(value):
        return "PyTree" in str(hint) and "ArrayLike" not in str(hint)
    if value == [] and get_origin(hint) is tuple:  # lists are taken for tuples
        return True
    if get_origin(hint) in (Union, UnionType):
        return any(admits(part, value) for part in get_args(hint))
    try:
        return bool(is_bearable(value, hint, conf=BeartypeConf(is_pep484_tower=True)))
    except Exception:  # a protocol that says nothing at run time: NumPy's nested sequences
        return False


class TooLongError(BaseException):
    """The call began to work."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, where it was swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def outcome(name: str, parameter: str, value: object) -> str:
    """ "refused", "fits", or what is wrong."""
    function = function_of(name)
    fitting = admits(hints_of(function).get(parameter, Any), value)
    if fitting and name.removeprefix("jaxsink.") in LONG:
        return "fits"
    try:
        with limited(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = function(**arguments(name, function, parameter), **{parameter: value})
            if isinstance(made, Sampler):
                made.check(model().config)
    except JaxsinkError as error:
        text = str(error)
        return "refused" if "\n" not in text and 10 < len(text) < LONGEST else f"{len(text)} characters: {text}"
    except TooLongError:
        return "fits" if fitting else "accepted, and works on"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return "fits" if fitting else "accepted"


CALLS = [(name, parameter) for name in SUBJECTS for parameter in hints_of(function_of(name))]


@pytest.mark.parametrize("name", SUBJECTS)
def test_wrong_values_are_refused_in_a_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with no_shape_checks():
        found = {
            f"{parameter}={shown}": outcome(name, parameter, value)
            for parameter in hints_of(function_of(name))
            for shown, value in WRONG.items()
        }
    assert not {call: what for call, what in found.items() if what not in ("refused", "fits")}


def test_the_table_of_harm_has_these_calls() -> None:
    """As many as there are, and how many of them have an argument that cannot be."""
    counted = json.loads((ROOT / "docs" / "harm.json").read_text(encoding="utf-8"))["after"]["calls"]
    assert counted == {**admitted(), "wrong": 0}, "python tests/test_public_calls.py counts"


def admitted() -> Counter[str]:
    """How many values the annotations admit, and how many they do not."""
    hints = {name: hints_of(function_of(name)) for name in SUBJECTS}
    pairs = [(hints[name].get(parameter, Any), value) for name, parameter in CALLS for value in WRONG.values()]
    return Counter("admitted" if admits(hint, value) else "not admitted" for hint, value in pairs)


def count() -> None:
    """How many calls are right, and all those that are not."""
    print(dict(admitted()))
    kinds: Counter[str] = Counter()
    for name, parameter in CALLS:
        for shown, value in WRONG.items():
            what = outcome(name, parameter, value)
            kinds[what.split(":")[0] if ":" in what else what] += 1
            if what not in ("refused", "fits"):
                print(f"{name}({parameter}={shown}): {what}", flush=True)
    print(f"{len(CALLS) * len(WRONG)} calls: {dict(kinds.most_common())}")


if __name__ == "__main__":
    count()
