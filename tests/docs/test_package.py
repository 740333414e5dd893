"""What users import: the public names, and nothing heavy behind them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

import jaxsink

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
