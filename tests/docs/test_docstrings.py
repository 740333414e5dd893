"""Every public name stands in the reference, has a docstring in Google's style, and an example that runs; so does every
method and property of public classes that users call."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import io
import re
from collections.abc import Iterator
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest
from support.paths import ROOT
from support.public_names import CALLABLE, PUBLIC
from support.stand_ins import StandIns

import jaxsink

REFERENCE = ROOT / "docs" / "reference"
PAGES = "\n".join(path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("*.md")))
NEEDS = {"jaxsink.plan": "libtpu"}  # an extra: .ci/run installs it, and runs its example
ELSEWHERE = {"jaxsink.lm_eval"}  # tasks that a network has: docs/lm-eval.md, run by tests/docs/test_examples.py
FURTHER = {"jaxsink.nn.transformer.Transformer": jaxsink.Model}  # the reference shows it under its own name too
# Public classes whose members a program of ours calls, in the course of what the example of a function shows.
OURS = {
    "jaxsink.sinks.Turns": "generate, in each step of a batch of conditions",
    "jaxsink.study.Experiment": "study, in the order of its work; docs/study.md has one of one's own",
    "jaxsink.study.Hidden": "Study",
    "jaxsink.study.Measured": "Experiment",
    "jaxsink.study.Measurement": "Study",
    "jaxsink.study.Recorded": "Study",
    "jaxsink.study.Scored": "Study",
    "jaxsink.study.Untrained": "Study",
}
# Of other classes: members that a pass, the loop of `generate` or a study calls, which those write who extend the class.
CALLED = {
    "jaxsink.Model": "final_norm embed stack some_logits head_weights with_config",
    "jaxsink.Sampler": "init prefill step log_prob divergence commits",
    "jaxsink.DiffusionSampler": "block sight part readers time decide cached_pass",
    "jaxsink.ARSampler": "next_token added_up",
    "jaxsink.GIDDSampler": "log_weights",
    "jaxsink.DropPositions": "check",
    "jaxsink.DreamSampler": "confidence",
    "jaxsink.LLaDASampler": "unsure_ids",
    "jaxsink.LLaDA2Sampler": "quota",
    "jaxsink.NemotronSampler": "seeds",
    "jaxsink.SpeculativeSampler": "phase see exists",
    "jaxsink.record.Recorder": "finish of_first_keys",
    "jaxsink.record.Tap": "with_probs map_queries first_keys",
    "jaxsink.record.VectorTap": "first_keys",
    "jaxsink.sinks.MaskSinks": "needs has_targets targets count ranking target_ranking scores candidates matched acting "
    "acts random_scores",
    "jaxsink.study.Prediction": "values beyond_chance",
    "jaxsink.study.Study": "predicted of_untrained hash arrays measure",
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
pytestmark = pytest.mark.usefixtures("quick_compilation")


def members() -> Iterator[tuple[str, Any, type]]:
    """(name, method or property, its public class): each where the first public class of its ancestry has it."""
    classes = {thing: name for name, thing in CALLABLE.items() if inspect.isclass(thing)}
    seen: set[int] = set()
    for thing, name in classes.items():
        inherited = {member for base in thing.__mro__[1:] if base in classes for member in dir(base)}
        inherited |= set(getattr(thing, "__dataclass_fields__", ()))  # the default of a field that holds a function
        for member in dir(thing):
            value = inspect.getattr_static(thing, member)
            function = getattr(value, "__func__", None) or getattr(value, "fget", None) or getattr(value, "func", value)
            ours = inspect.isfunction(function) and function.__module__.startswith("jaxsink")
            if ours and not member.startswith("_") and member not in inherited and id(function) not in seen:
                seen.add(id(function))
                yield f"{name}.{member}", value, thing


MEMBERS = {name: (value, thing) for name, value, thing in members()}
WITH_EXAMPLES = [name for name, (value, _) in MEMBERS.items() if ">>>" in (value.__doc__ or "")]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the examples begin with, as the first page of the reference has it, in a fresh directory."""
    folder = tmp_path_factory.mktemp("examples")
    StandIns(tmp_path_factory.mktemp("stand-ins")).provide(folder, "LLaDA-8B-Instruct")
    (text,) = re.findall(r"```python\n(.*?)```", (REFERENCE / "index.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("BROWSER", "true")  # a command that opens nothing
        patch.setattr("jaxsink.report.own.has_screen", lambda: False)
        exec(text, names)
        with matplotlib.rc_context({"figure.max_open_warning": 0}):
            yield names
    plt.close("all")


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLABLE)
def test_the_example_of(name: str, start: dict[str, Any]) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    run(name, documentation(CALLABLE[name]), start)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_example_of_the_member(name: str, start: dict[str, Any]) -> None:
    run(name, inspect.cleandoc(MEMBERS[name][0].__doc__), start)


def run(name: str, text: str, start: dict[str, Any]) -> None:
    examples = doctest.DocTestParser().get_doctest(text, dict(start), name, None, None)
    assert examples.examples, f"{name} has no example"
    assert name in ELSEWHERE or not any(doctest.SKIP in one.options for one in examples.examples)
    printed = io.StringIO()
    result = doctest.DocTestRunner(optionflags=FLAGS).run(examples, out=printed.write)
    assert not result.failed, printed.getvalue()


@pytest.mark.parametrize("name", sorted({name.rpartition(".")[0] for name in MEMBERS}))
def test_users_find_an_example_of_every_member_of(name: str) -> None:
    """Of its own, or in that of its class."""
    shown = "".join(one.source for one in doctest.DocTestParser().get_examples(documentation(PUBLIC[name])))
    own = {member.rpartition(".")[2] for member in MEMBERS if member.rpartition(".")[0] == name}
    known = {member.rpartition(".")[2] for member in WITH_EXAMPLES if member.rpartition(".")[0] == name}
    known |= {member for member in own if re.search(rf"\.{member}\b", shown)}
    called = set(CALLED.get(name, "").split())
    assert called <= own and not called & known, "declared, and not needed"
    assert own <= known | called or name in OURS, own - known - called


def documentation(thing: Any) -> str:
    """Its own, not a base class's."""
    return inspect.cleandoc(inspect.unwrap(thing).__doc__ or "")


@pytest.mark.parametrize("name", CALLABLE)
def test_the_docstring_of(name: str) -> None:
    """One line that says what it is, sections as Google has them, and only parameters that exist."""
    text = documentation(CALLABLE[name])
    first, *rest = text.splitlines()
    assert len(first) > 10 and first[-1] in ".:;?" and not first.startswith(f"{name.split('.')[-1]}(")
    assert not rest or rest[0] == "" or first[-1] not in ".?"
    assert not re.search(r"^\w+ {2,}\S", text, re.MULTILINE), "columns; write a section `Args:` or `Attributes:`"
    given = re.search(r"^Args:\n((?: +.*\n?)+)", text, re.MULTILINE)
    if given:
        known = set(inspect.signature(CALLABLE[name]).parameters)
        named = set(re.findall(r"^    \*{0,2}(\w+):", given[1], re.MULTILINE))
        assert named <= known and len(named) > 0, named - known


@pytest.mark.parametrize("name", re.findall(r"::: (\S+)\n    options:\n      members: null", PAGES))
def test_the_members_that_the_reference_shows_are_explained(name: str) -> None:
    thing = (PUBLIC | FURTHER)[name]
    for member, value in vars(thing).items():
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property | classmethod)):
            assert inspect.getdoc(getattr(thing, member)), f"{name}.{member}"


def test_the_reference_has_every_public_name_once() -> None:
    written = re.findall(r"^::: (\S+)", PAGES, re.MULTILINE)
    assert set(written) == {*PUBLIC, *FURTHER}, set(written) ^ {*PUBLIC, *FURTHER}
    assert len(written) == len(set(written))
