"""Measures the attacks as this user and, if that is root, as one without rights too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from jaxsink.sandbox.levels import Level
from support.attacks.measure import Outcome

ROOT = Path(__file__).resolve().parents[3]
SOMEBODY = 61234  # a user that nothing belongs to
PYTHONS = (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3")
IS_NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 11))"


class User(NamedTuple):
    """contained: root as it is in most containers, which makes the sandbox in a user namespace."""

    name: str
    number: int
    contained: bool = False

    @property
    def words(self) -> list[str]:
        """On the command line of what becomes this user."""
        return [str(self.number), *(["--contained"] if self.contained else [])]


def users() -> list[User]:
    own = os.geteuid()
    return (
        [User("root", 0), User("root in a container", 0, True), User("user", SOMEBODY)]
        if own == 0
        else [User("user", own)]
    )


def python_for(user: User) -> str | None:
    """An interpreter that the user may start."""
    other = {} if user.number == os.geteuid() else {"user": user.number, "group": user.number, "extra_groups": []}
    for path in PYTHONS:
        try:
            done = subprocess.run([path, "-I", "-c", IS_NEW_ENOUGH], cwd="/", check=False, **other)
        except OSError:
            continue
        if done.returncode == 0:
            return path
    return None


@contextmanager
def readable_copy() -> Iterator[Path]:
    """What the measurement needs, where every user may read it."""
    with tempfile.TemporaryDirectory(prefix="jaxsink-attacks-") as name:
        copy = Path(name)
        modules = ("__init__", "checks", "errors", "version")
        for path in (*(f"jaxsink/{name}.py" for name in modules), "tests/support/__init__.py"):
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, copy / path)
        for path in ("jaxsink/sandbox", "tests/support/attacks"):
            shutil.copytree(ROOT / path, copy / path, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        yield copy


def measured(level: Level, user: User, quick: bool) -> dict[str, Outcome]:
    """What came of each attack."""
    found = said_by("measure", level, *user.words, *(["--quick"] if quick else []))
    return {name: (held, words) for name, (held, words) in found.items()}


def seen(level: Level, user: User) -> dict[str, Any]:
    """What holds judge and candidate."""
    return said_by("confinement", level, *user.words)


def said_by(module: str, *words: str) -> dict[str, Any]:
    """What a module of this folder prints; it becomes the user itself, with an interpreter that both may start."""
    python = python_for(users()[-1])
    assert python is not None, "no Python that an unprivileged user may start"
    with readable_copy() as copy:
        command = [python, "-B", "-m", f"support.attacks.{module}", *words]
        environment = {"PYTHONPATH": f"{copy}:{copy / 'tests'}", "LANG": "C.UTF-8"}
        done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
