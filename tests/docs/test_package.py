"""What users import: the public names, and nothing heavy behind them."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from support.paths import ROOT

import jaxsink
from jaxsink import JaxsinkError, plugins

PACKAGE = Path(jaxsink.__file__).parent
FORBIDDEN = {
    "torch",
    "tensorflow",
    "transformers",
    "converters",
    "jaxsink_converters",
    "experiments",
    "jaxsink_experiments",
}


def test_every_public_name_exists() -> None:
    assert set(jaxsink._MODULES) | set(jaxsink._HOME) | {"__version__"} == set(jaxsink.__all__)
    for name in jaxsink.__all__:
        assert getattr(jaxsink, name) is not None
    assert not hasattr(jaxsink, "no_such_name")


def test_the_package_imports_nothing_it_must_not() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & FORBIDDEN, path


def test_the_library_does_not_import_its_command_line() -> None:
    outside = [path for path in PACKAGE.rglob("*.py") if "cli" not in path.relative_to(PACKAGE).parts]
    assert len(outside) > 150
    naming = [path for path in outside if "jaxsink.cli" in path.read_text() and path.name != "__main__.py"]
    assert naming == []


@pytest.mark.parametrize("name", ["convert", "study"])
def test_what_lies_outside_has_the_signature_that_is_promised(name: str) -> None:
    promised = inspect.signature(getattr(plugins, name)).parameters
    there = inspect.signature(plugins.plugin(name)).parameters
    assert {key: one.default for key, one in promised.items()} == {key: one.default for key, one in there.items()}


def test_what_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda **_: [])
    with pytest.raises(JaxsinkError, match="the part of jaxsink that can convert is not installed"):
        jaxsink.convert("source", "target")


@pytest.mark.parametrize(("name", "inside"), [("report", "page"), ("study", "measure")])
def test_rooms_that_are_functions_too(name: str, inside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing anything from a room binds the room's name, and must not take the function away."""
    import_module(f"jaxsink.{name}.{inside}")
    room = getattr(jaxsink, name)
    assert room is import_module(f"jaxsink.{name}") and getattr(room, inside)
    function = getattr(room, name)
    assert inspect.signature(room) == inspect.signature(function)
    monkeypatch.setattr(room, "__wrapped__", lambda *args, **options: (args, options))
    assert room(1, out="x") == ((1,), {"out": "x"})


def test_importing_loads_no_heavy_framework() -> None:
    code = (
        "import sys, jaxsink; assert 'jax' not in sys.modules; jaxsink.forward, jaxsink.generate, jaxsink.load;"
        "assert not {'torch', 'tensorflow', 'transformers', 'orbax', 'tokenizers', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_line_starts_without_jax() -> None:
    code = "import sys; from jaxsink.cli.main import build_parser; build_parser(); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_hint_names_a_package_that_is_not_published() -> None:
    """There is no jaxsink on PyPI yet: `pip install jaxsink[...]` would bring somebody else's package."""
    texts = [
        path
        for suffix in ("*.py", "*.md", "*.sh")
        for folder in ("jaxsink", "converters", "experiments", "docs")
        for path in (ROOT / folder).rglob(suffix)
    ]
    named = [
        path
        for path in [*texts, ROOT / "README.md"]
        if re.search(r"pip install ['\"]?jaxsink", path.read_text(encoding="utf-8"))
    ]
    assert named == [] and len(texts) > 100
