"""SIGTERM and Ctrl-C: a flag for work that looks at it, the end after a grace for work that does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from jaxsink.runs.stopping import EXIT_CODE, stop_on_sigterm

START = """
import hashlib, sys, time
from jaxsink.runs import stopping as stop
stop.GRACE = 0.5
with stop.stop_on_sigterm("last words") as is_stopped:
    print("ready", flush=True)
"""
DEAF = (
    START
    + "    hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)  # minutes without a look at any signal, as a compiler"
)
LOOKING = (
    START + "    while not is_stopped(): time.sleep(0.05)\n    time.sleep(2)\n    print('clean')"  # after the grace
)


def terminated(code: str) -> tuple[int, str, str, float]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    begun = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    return process.returncode, out, errors, time.monotonic() - begun


def test_work_that_does_not_look_ends_after_the_grace() -> None:
    code, _, errors, seconds = terminated(DEAF)
    assert code == EXIT_CODE == 143 and errors == "jaxsink: last words\n"
    assert 0.4 < seconds < 15


def test_work_that_looks_ends_by_itself() -> None:
    code, out, errors, _ = terminated(LOOKING)
    assert (code, out, errors) == (0, "clean\n", "")


def test_nothing_is_left_behind() -> None:
    before, threads = signal.getsignal(signal.SIGTERM), threading.active_count()
    files = len(os.listdir("/proc/self/fd"))
    with stop_on_sigterm() as is_stopped:
        assert not is_stopped()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)
    assert is_stopped()
    assert signal.getsignal(signal.SIGTERM) is before and threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files
    assert signal.set_wakeup_fd(-1) == -1


INTERRUPTIBLE = START.replace('"last words"', '"last words", "interrupted"').replace("GRACE = 0.5", "PATIENCE = 30")
ENDS = """
try:
    with stop.stop_on_sigterm("last words", "interrupted") as is_stopped:
        is_stopped()
        print("ready", flush=True)
        while not is_stopped(): time.sleep(0.05)
        raise stop.StoppedError
except stop.StoppedError as error:
    print(error, error.code)
"""


def interrupted(code: str, times: int = 1) -> tuple[int, str, str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for _ in range(times):
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    return process.returncode, out, errors


def test_ctrl_c_ends_where_nothing_is_lost() -> None:
    """No KeyboardInterrupt is raised, wherever the work is."""
    begin = "import time\nfrom jaxsink.runs import stopping as stop\n"
    code, out, errors = interrupted(begin + ENDS)
    assert (code, out) == (0, "interrupted 130\n") and errors.startswith("jaxsink: stopping as soon as nothing is lost")


def test_a_second_ctrl_c_ends_at_once() -> None:
    busy = "    is_stopped()\n    hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)  # as a compiler"
    code, _, errors = interrupted(INTERRUPTIBLE + busy, times=2)
    assert code == 130 and errors.endswith("jaxsink: interrupted\n") and "Traceback" not in errors
