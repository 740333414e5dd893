"""No silent stretch: commands run as a person runs them, on a terminal and into a pipe, with the time of all they say.

The machine may be busy, so that the limits grow with its load.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import time
from importlib.util import find_spec

import pytest
from support.listening import Said, listen

from jaxsink.cli.interrupts import delivered_interrupts
from jaxsink.runs.reporter import EVERY

SILENCE = 2.0  # seconds


def slack() -> float:
    """How much longer than on a quiet machine things may take."""
    return max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))


def check(said: Said, is_terminal: bool) -> None:
    gaps = said.gaps()
    assert said.code == 0, said.text
    assert gaps[0] < SILENCE * slack(), said.text
    assert max(gaps[1:]) < (SILENCE if is_terminal else EVERY + 1) * slack(), said.text
    assert "libtpu" not in said.text and "TPU_" not in said.text  # no words of a library that is not needed


@pytest.mark.slow
def test_training_moves_and_takes_any_path(tmp_path):
    train = ["train", "mini-llama", "--out", "runs/x", "--steps", "11", "--batch", "4", "--problems", "2"]
    said = listen(train, tmp_path, is_terminal=True)
    check(said, is_terminal=True)
    assert "compiling" in said.text and "nan" not in said.text and re.search(r"10 of 11 steps, loss \d", said.text)
    assert (tmp_path / "runs/x/model/jaxsink.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("is_terminal", [True, False])
def test_generating_shows_prompt_canvas_and_sinks(tmp_path, is_terminal):
    prompt = "Mia has 4 apples. Mia buys 6 more. How many apples does Mia have?"
    command = ["generate", "mini-dream", prompt, "--tokens", "16", "--delay", "0.05"]
    said = listen(command, tmp_path, is_terminal)
    check(said, is_terminal)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.text)
    assert ("Mia buys 6 more." in plain and "░░░" in plain) == is_terminal
    assert ("\x1b[30;43m" in said.text and re.search(r"16 of 16 steps.* sinks", plain) is not None) == is_terminal


@pytest.mark.slow
def test_commands_that_write_say_how_far_they_are(tmp_path):
    evaluate = ["evaluate", "mini-llama", "task", "--out", "runs/e", "--limit", "1", "--k", "0,1", "--select", "top"]
    check(listen(evaluate, tmp_path, is_terminal=True), is_terminal=True)
    check(listen(["table1", "runs/e", "--out", "tables/new"], tmp_path, is_terminal=False), is_terminal=False)
    study = ["study", "fig7", "--model", "mini-llama", "--out", "results", "--problems", "1", "--generations", "2"]
    said = listen(study, tmp_path, is_terminal=False)
    check(said, is_terminal=False)
    assert re.search(r"\[ +\d+ s[^\]]*\] \w+", said.text)
    check(listen(["report", "results", "--out", "new.html", "--gif", "a.gif"], tmp_path, True), is_terminal=True)
    written = ("runs/e/manifest.json", "tables/new/table1.csv", "results/report.html", "new.html", "a.gif")
    assert all((tmp_path / name).is_file() for name in written)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs the TPU compiler")
def test_planning_says_what_it_compiles(tmp_path):
    said = listen(["plan", "mini-llama", "--tpu", "v5e:1x1", "--batch", "1", "--no-search"], tmp_path, is_terminal=True)
    assert said.code == 0 and "v5e:1x1: compiling for 1 x 1" in said.text
    assert max(said.gaps()[1:-1]) < SILENCE * slack(), said.text


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0, 1.5])  # while a program is traced, and while XLA compiles it
def test_an_interrupt_leaves_a_clean_screen(tmp_path, pause):
    train = ["train", "mini-llama", "--out", "runs/x", "--steps", "500", "--batch", "4"]
    said = listen(train, tmp_path, is_terminal=True, interrupt_at="compiling", pause=pause)
    assert said.code == 130 and "Traceback" not in said.text
    kept = "all steps so far are in runs/x, and the same command continues."
    assert said.text.endswith(f"jaxsink: interrupted; {kept}\r\n")
    assert said.text.rindex("\x1b[?25h") > said.text.rindex("\x1b[?25l")  # the cursor is back


def test_an_interrupt_that_the_garbage_collector_swallows_comes_again():
    def swallow(phase: str, info: dict[str, int]) -> None:
        gc.callbacks.remove(swallow)
        signal.raise_signal(signal.SIGINT)

    gc.callbacks.append(swallow)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), delivered_interrupts():
        [gc.collect(), time.sleep(5)]
    assert time.monotonic() - begun < 5
