"""From a model's answer to a programming question to a program and the checks that it must pass."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Sequence
from typing import Literal

from jaxsink.errors import JaxsinkError
from jaxsink.sandbox.runner import Checks
from jaxsink.tasks.benchmarks import Example
from jaxsink.tasks.extract import code_block, truncate

Form = Literal["completion", "opened block", "chat"]


def program(example: Example, answer: str, form: Form, stops: Sequence[str] = ()) -> str:
    """The whole program that an answer makes.

    form: "completion": the answer goes on where the question's code ends, up to a stop sequence. "opened block": the
    same, and it may close the code block that the prompt opened for it. "chat": free text with a code block in it, which
    either holds the whole function or goes on with it.
    """
    if form == "completion":
        return example.setup + truncate(answer, stops)
    if form == "opened block":
        return example.setup + truncate(answer, ("```", *stops))
    code = code_block(answer)
    code = answer if code is None else code
    joint = "\n" if _defines(code, example.entry_point) else ""
    return example.setup + joint + code


def checks(example: Example) -> Checks:
    """The benchmark's own tests, ready for the sandbox."""
    if example.benchmark == "humaneval":
        code = f"{example.tests}\ncheck({example.entry_point})\n"
        return Checks((example.entry_point,), code, example.setup)
    if example.benchmark == "mbpp":
        names, imported = _free_names(example), _imports(example)
        own = [name for name in names if name in imported]
        setup = "\n".join(dict.fromkeys(imported[name] for name in own))
        return Checks(tuple(name for name in names if name not in own), example.tests, setup)
    raise JaxsinkError(f"{example.task_id} is not a programming question, so it has no checks to run.")


def gold_program(example: Example) -> str:
    """The program of the published solution."""
    return example.setup + example.answer


def _defines(code: str, name: str) -> bool:
    return bool(name) and re.search(rf"^\s*(async\s+)?def\s+{re.escape(name)}\s*\(", code, re.MULTILINE) is not None


def _imports(example: Example) -> dict[str, str]:
    """What the published solution imports, by name: a test that uses it imports it for itself.

    Taken from the program, as the functions are that it defines, a `math` could say that anything is close to anything.
    """
    found: dict[str, str] = {}
    for node in ast.parse(example.answer).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                found[name] = "\n".join(filter(None, (found.get(name), ast.unparse(node))))
    return found


def _free_names(example: Example) -> tuple[str, ...]:
    """Names that the tests use and do not make themselves: what they expect of the program.

    A name of Python's own, such as `sum`, is expected only if the published solution defines it: a program that brings
    an `abs` of its own must not change what the tests compute with it.
    """
    try:
        nodes = list(ast.walk(ast.parse(example.tests)))
        solution = ast.parse(example.answer).body
    except SyntaxError as error:
        raise JaxsinkError(
            f"{example.task_id} has code that is not Python ({error}); give the published file."
        ) from error
    names = [node for node in nodes if isinstance(node, ast.Name)]
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    made |= set(dir(builtins)) - {node.name for node in solution if isinstance(node, ast.FunctionDef)}
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            made |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
    return tuple(dict.fromkeys(node.id for node in names if node.id not in made))
