"""Every command that is printed outside a code block parses: in messages, docstrings, prose, workflows and scripts.

Code blocks and the examples of `--help` are executed (test_examples.py), and so are the scripts for Google Cloud
(test_tpu_*.py). What is printed elsewhere is a piece of a command as often as a whole one; so arguments may be missing, but
every command and every option that is named has to exist, and every value has to be one that the real parser takes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from support.examples import MARKDOWN, PROGRAM, PYTHON, SHELL, subcommands
from support.paths import ROOT

from jaxsink.cli.main import build_parser

PROGRAMS = ("jaxsink", "converters", "experiments", "benchmarks", "docs", "examples")
OTHERS = ("docs/tpu/**/*.sh", ".github/**/*.yml", ".ci/*", "mkdocs.yml", "pyproject.toml")
OF_OTHERS = {"lm-eval"}  # its options are lm-evaluation-harness's: docs/lm-eval.md, executed where that is installed
EXECUTED = rf"^```(?:{'|'.join((*SHELL, *PYTHON, PROGRAM))})\n.*?^```$"
STAND_INS = ("x", "1", "1x1", "")  # for what a message fills in, and for words like MODEL
HOLE = "\N{OBJECT REPLACEMENT CHARACTER}"
OF_LM_EVAL = {"--tasks", "--model_args", "--gen_kwargs", "--apply_chat_template", "--batch_size", "--confirm"}
OF_OTHERS_PROGRAMS = {"--cap-add": "docker", "--security-opt": "docker", "--merge": "gguf-split"}
UNFINISHED = r"the following arguments are required|expected (at least )?one argument"


def strings(path: Path) -> Iterator[str]:
    """The string literals of a program, with holes where an f-string is filled in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def texts() -> Iterator[tuple[str, str]]:
    """(file, text) of everything that people read."""
    for folder in PROGRAMS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for text in strings(path):  # the examples of --help are executed
                yield str(path.relative_to(ROOT)), text.partition("examples:\n")[0]
    for path in sorted(path for pattern in MARKDOWN for path in ROOT.glob(pattern)):
        text = re.sub(EXECUTED, "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        if path.name == "CHANGELOG.md":  # older entries say what commands were called then
            text = "\n## ".join(text.split("\n## ")[:3])
        yield str(path.relative_to(ROOT)), text
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            yield str(path.relative_to(ROOT)), "".join(cell["source"])
    for path in sorted(path for pattern in OTHERS for path in ROOT.glob(pattern)):
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


@cache
def parser() -> argparse.ArgumentParser:
    return build_parser()


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    return subcommands()


def options(name: str) -> set[str]:
    return set((parsers()[name] if name in parsers() else parser())._option_string_actions)


def printed(text: str) -> Iterator[str]:
    """Between backticks or quotes; or a line of its own, up to two spaces and what it is for."""
    text = text.replace("\\\n", " ")
    for quoted in re.findall(r"(?<!`)`(jaxsink -?[a-z][^`]*)`(?!`)|'(jaxsink [a-z-]+ [^']*)'", text):
        yield " ".join("".join(quoted).split())
    for line in re.findall(
        rf"^\W*(?:run: +)?(?:\.venv/bin/)?(jaxsink (?:{'|'.join(parsers())})\b.*)$", text, re.MULTILINE
    ):
        if "`" not in line:
            yield re.split(r"  |\s+#|: | \|| <| >|;| &", re.sub(r" +--", " --", line))[0]


TEXTS = list(texts())
ALL = sorted({(file, command) for file, text in TEXTS for command in printed(text)})


def complaint(command: str) -> str | None:
    """What the parser says to it, if anything but that something is missing."""
    words = shlex.split(command.replace("…", " ").replace("...", " "))[1:]
    name = words[0]
    if name in OF_OTHERS:
        return None
    for word in words:
        if word.startswith("--") and word.partition("=")[0] not in options(
            name
        ):  # argparse would take its beginning too
            return f"there is no {word}"
    return min((refused([filled(word, value) for word in words]) or "" for value in STAND_INS), key=len) or None


def filled(word: str, value: str) -> str:
    return value if re.fullmatch(r"[A-Z][A-Z0-9]*", word) else word.replace(HOLE, value)


def refused(words: list[str]) -> str | None:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            parser().parse_args([word for word in words if word])
        except SystemExit as end:
            said = errors.getvalue().strip().splitlines()
            return None if not end.code or re.search(UNFINISHED, said[-1]) else said[-1]
    return None


def test_commands_are_found_where_they_stand() -> None:
    """One of each kind: a message, an f-string, a docstring, prose, a workflow, a script, a notebook's text."""
    files = {file for file, _ in ALL}
    assert {"jaxsink/study/subject.py", "experiments/table1.py", "jaxsink/cli/plan_tables.py"} <= files
    assert {"README.md", "SECURITY.md", "CHANGELOG.md", ".github/workflows/ci.yml", "docs/tpu/tpu.sh"} <= files
    assert {"notebooks/6_llada_8b.ipynb", "docs/first-ten-minutes.md"} <= files and len(ALL) > 100
    whole = "jaxsink train mini-llada --out RUNS/extra-sink-control --init mini-llada --steps 600 --learning-rate 5e-4"
    assert ("experiments/beyond_extra_sink.py", whole) in ALL


@pytest.mark.parametrize("file", sorted({file for file, _ in ALL}))
def test_the_commands_that_stand_in(file: str) -> None:
    wrong = {command: why for place, command in ALL if place == file and (why := complaint(command))}
    assert not wrong


@pytest.mark.parametrize(
    "command", ["jaxsink trian", "jaxsink generate --recrod", "jaxsink train --step 3", "jaxsink evaluate --limit all"]
)
def test_what_does_not_parse_is_found(command: str) -> None:
    assert complaint(command)


def test_options_that_are_named_alone_exist() -> None:
    """In messages: "give it with --data-file"."""
    wrong: set[tuple[str, str]] = set()
    known = set().union(*map(options, ("", *parsers()))) | OF_LM_EVAL | set(OF_OTHERS_PROGRAMS)
    for folder in ("jaxsink", "converters", "experiments"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            own = set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', path.read_text(encoding="utf-8")))
            named = {name for text in strings(path) for name in re.findall(r"(?<![\w-])--[a-z][\w-]+", text)}
            wrong |= {(path.name, name) for name in named - known - own}
    assert not wrong


def test_extras_that_are_named_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    hints = r"install_hint\([\"'](\w+)"
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "jaxsink").rglob("*.py"))
    named = set(re.findall(hints, sources)) | {
        extra for _, text in TEXTS for extras in re.findall(r"'\.\[([\w,]+)\]'", text) for extra in extras.split(",")
    }
    assert named <= set(extras) and {"tpu", "cuda", "eval", "notebooks"} <= named, named - set(extras)


def test_programs_and_their_options_exist() -> None:
    """`python benchmarks/run.py --only sampler`: the file, and each option in what it says that it takes."""
    found = 0
    for file, text in TEXTS:
        for program, rest in re.findall(r"python3? ((?:benchmarks|docs|examples)/\w+\.py)([^`\n]*)", text):
            source = (ROOT / program).read_text(encoding="utf-8")
            for option in re.findall(r" (--[a-z0-9-]+)", re.split(r" {2,}(?!-)|#", rest)[0]):
                made = 'f"--{name}"' in source and f'"{option[2:]}"' in source
                assert f'"{option}"' in source or made, (file, program, option)
                found += 1
    assert found > 10
