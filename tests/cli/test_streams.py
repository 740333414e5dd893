"""Streams that are closed or full, and names that are no text: the same exit codes, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxsink.cli.main import main

COMMAND = f"{sys.executable} -c 'import sys; from jaxsink.cli.main import main; sys.exit(main())'"


def ended(words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONWARNINGS": "default", "JAX_PLATFORMS": "cpu"}
    return subprocess.run(["bash", "-c", f"{COMMAND} {words}"], capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("models >&-", 0),
        ("models <&- >&- 2>&-", 0),
        ("--version >&-", 0),
        ("inspect nothing 2>&-", 2),
        ("inspect nothing >&- 2>&-", 2),
        ("inspect nothing 2>/dev/full", 2),
        ("models --strange 2>/dev/full", 2),
    ],
)
def test_the_exit_code_is_the_same(words: str, code: int) -> None:
    done = ended(words)
    assert done.returncode == code and "unexpected" not in done.stderr and "Traceback" not in done.stderr, done


def test_bytes_that_are_no_text_are_shown(tmp_path: Path, capsys: Any) -> None:
    assert main(["inspect", f"{tmp_path}/a\udcff\x1bb"]) == 2
    said = capsys.readouterr().err
    assert r"a\xff\x1bb" in said and said.count("\n") == 1
