"""The program of docs/howto/hosts.md runs in two processes, as the page says."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.compilation import ENVIRONMENT
from support.examples import PROGRAM
from support.paths import ROOT

PAGE = (ROOT / "docs" / "howto" / "hosts.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_processes_are_one_program(tmp_path: Path) -> None:
    (text,) = re.findall(rf"```{PROGRAM}\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "hosts.py").write_text(text, encoding="utf-8")
    (line,) = re.findall(r"^python (hosts\.py) (\d+ 2) 0 & python hosts\.py \2 1$", PAGE, re.MULTILINE)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, line[0], port, "2"]
    both = [
        subprocess.Popen(
            [*command, str(number)],
            cwd=tmp_path,
            env={**os.environ, **ENVIRONMENT},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for number in range(2)
    ]
    printed = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert "(4, 4, 2, 4, 28)" in printed[0] and "(4, 4, 2, 4" not in printed[1]
