"""Hostile programs in the sandbox: none passes as a solution, none harms the run or the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.attacks.field import adopt_orphans, descendants, survivors
from support.attacks.measure import PROCESSES
from support.levels import need, offered

from jaxsink.errors import JaxsinkError
from jaxsink.sandbox import runner as sandbox
from jaxsink.sandbox.levels import LEVELS, Level
from jaxsink.sandbox.runner import Checks, Limits, Verdict, run_checks

ADD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return 0\n"
CHECKS = Checks(
    ("add",), "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(5, 5) == 10\ncheck(add)\n"
)
QUICK = Limits(seconds=6.0, cpu_seconds=2, memory=2**29)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are confined on Linux only")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Level:
    need(request.param)
    return request.param


def run(program: str, checks: Checks = CHECKS, level: Level | None = None, **changes: float) -> Verdict:
    limits = Limits(**{**QUICK.__dict__, **changes})
    level = level or next(one for one in LEVELS if offered(one))
    return run_checks(program, checks, allow_code_execution=True, sandbox=level, limits=limits)


@pytest.mark.parametrize(
    "change",
    [
        {"program": b"x = 1"},
        {"program": None},
        {"checks": "assert True"},
        {"limits": 3},
        {"sandbox": ["limits"]},
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any]) -> None:
    given: dict[str, Any] = {"program": ADD, "checks": CHECKS, **change}
    with pytest.raises(JaxsinkError, match=f"run_checks: {next(iter(change))} must be a"):
        run_checks(given.pop("program"), given.pop("checks"), allow_code_execution=True, **given)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (Limits, {"seconds": float("nan")}),
        (Limits, {"seconds": 0}),
        (Limits, {"cpu_seconds": 1.5}),
        (Limits, {"memory": -1}),
        (Limits, {"memory": 10**30}),
        (Limits, {"files": 3}),
        (Checks, {"names": "add", "code": ""}),
        (Checks, {"names": ("add",), "code": 3}),
        (Checks, {"names": (3,), "code": ""}),
    ],
)
def test_wrong_limits_and_checks_are_named(kind: type, settings: dict[str, Any]) -> None:
    with pytest.raises(JaxsinkError, match=rf"^{kind.__name__}: \w+ must be a"):
        kind(**settings)


@pytest.mark.parametrize("leave", [False, None, 1, "yes"])
def test_nothing_runs_without_leave(leave, tmp_path: Path) -> None:
    program = f"open({str(tmp_path / 'made')!r}, 'w')\n" + ADD
    with pytest.raises(JaxsinkError, match="not run without leave"):
        run_checks(program, CHECKS, allow_code_execution=leave)
    with pytest.raises(JaxsinkError, match="--allow-code-execution"):
        run_checks(program, CHECKS)
    assert not any(tmp_path.iterdir())


def test_right_passes_and_wrong_fails(level: Level) -> None:
    assert run(ADD, level=level) == Verdict(True, "passed", "", level)
    assert run(WRONG, level=level) == Verdict(False, "failed", "AssertionError: ", level)


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("", "NameError: the program defines no 'add'"),
        ("def add(a, b)\n", "SyntaxError"),
        ("import no_such_module\n" + ADD, "ModuleNotFoundError"),
        ("add = 3", "TypeError"),
        ("def add(a, b):\n    raise ValueError('no')\n", "ValueError: no"),
        ("def add(a, b):\n    return add(a, b)\n", "RecursionError"),
        ("x = []\nfor _ in range(10 ** 5):\n    x = [x]\ndef add(a, b):\n    return x\n", "RecursionError"),
        ("def add(a, b):\n    return 'x' * 10 ** 7\n", "too large"),
    ],
)
def test_broken_programs_fail_and_say_why(program: str, detail: str) -> None:
    verdict = run(program)
    assert (verdict.passed, verdict.reason) == (False, "failed") and detail in verdict.detail


def test_plain_data_comes_through_unchanged() -> None:
    values = (
        "None",
        "True",
        "-7",
        "2 ** 70",
        "0.1",
        "float('inf')",
        "1j",
        "'é\\n'",
        "b'\\x00'",
        "[1, (2, [3])]",
        "{1, 'a'}",
        "()",
        "frozenset([1])",
        "{'a': {2: [None]}, (1, 2): 'x'}",
        "'\\ud800'",
    )
    code = "".join(
        f"assert same({v}) == {v} and type(same({v})) is type({v}) and repr(same({v})) == repr({v})\n" for v in values
    )
    assert run("def same(x):\n    return x\n", Checks(("same",), code)).passed
    assert not run("def same(x):\n    return list(x)\n", Checks(("same",), "assert same((1, 2)) == (1, 2)")).passed


def test_objects_of_the_program_can_be_used_but_prove_nothing() -> None:
    program = (
        "class Node:\n    def __init__(self, v):\n        self.v, self.next = v, None\n"
        "def total(n):\n    return n.v + (total(n.next) if n.next else 0)\n"
        "def squares(n):\n    return (i * i for i in range(n))\n"
    )
    code = (
        "a = Node(1)\na.next = Node(2)\nassert total(a) == 3 and a.next.v == 2\nassert list(squares(3)) == [0, 1, 4]\n"
    )
    names = ("Node", "total", "squares")
    assert run(program, Checks(names, code)).passed
    for doubtful in (
        "assert a",
        "assert a == a",
        "assert a != 1",
        "assert not a < 1",
        "assert hash(a)",
        "assert 1 in [a]",
    ):
        verdict = run(program, Checks(names, code + doubtful))
        assert not verdict.passed and "plain data" in verdict.detail, doubtful


def test_checks_may_expect_exceptions_and_use_helpers_of_the_question() -> None:
    code = (
        "try:\n    add(1, None)\nexcept TypeError:\n    pass\nelse:\n    assert False\nassert add(1, 2) == helper(3)\n"
    )
    assert run(
        ADD, Checks(("add",), code, setup="def helper(x):\n    return x\ndef add(a, b):\n    '''Later.'''\n")
    ).passed


def test_numpy_numbers_count_as_numbers() -> None:
    program = "import numpy as np\ndef add(a, b):\n    return np.int64(a) + np.int64(b)\n"
    checks = Checks(("add",), "assert add(1, 2) == 3 and type(add(1, 2)) is int")
    assert run(program, checks, memory=2**31, seconds=30.0, cpu_seconds=20).passed


FORGERIES = {
    "exit": "import sys\nsys.exit(0)\n",
    "hard exit": "import os\nos._exit(0)\n",
    "exit inside": "import os\ndef add(a, b):\n    os._exit(0)\n",
    "system exit inside": "def add(a, b):\n    raise SystemExit(0)\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "equal to everything": (
        "class Any:\n    def __eq__(self, other):\n        return True\n    def __bool__(self):\n        return True\n"
        "def add(a, b):\n    return Any()\n"
    ),
    "number equal to everything": (
        "class Any(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "def add(a, b):\n    return Any(0)\n"
    ),
    "list equal to everything": (
        "class Any(list):\n    def __eq__(self, other):\n        return True\ndef add(a, b):\n    return Any()\n"
    ),
    "patched builtins": (
        "import builtins\nbuiltins.AssertionError = type('Never', (Exception,), {})\n"
        "builtins.all = builtins.any = builtins.isinstance = lambda *a: True\n" + WRONG
    ),
    "patched exits": "import os, sys\nsys.exit = os._exit = lambda *a: None\n" + WRONG,
    "exit handler": "import atexit, os\natexit.register(lambda: os._exit(0))\n" + WRONG,
    "patched check": "import sys\ndef check(candidate):\n    pass\nsys.modules['__main__'].check = check\n" + WRONG,
    "patched exchange": (
        "import json, sys\nmain = sys.modules['jaxsink.sandbox.exchange']\nmain.encode = lambda v, k: {'object': 0}\n"
        "main.decode = lambda v, f: ()\n" + WRONG
    ),
    "written verdict": (
        "import os\nfor handle in range(64):\n    try:\n        os.write(handle, b'{\"passed\": true}')\n"
        "    except OSError:\n        pass\n" + WRONG
    ),
    "printed verdict": "print('{\"passed\": true}\\npassed\\nOK', flush=True)\n" + WRONG,
    "signals": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.alarm(1)\n" + WRONG,
    "signed verdict": (
        "import json, os, sys\nexchange = sys.modules['jaxsink.sandbox.exchange']\n"
        "body = json.dumps({'passed': True, 'detail': ''}).encode()\nkey = bytes(32)\n"
        "for handle in range(3, 64):\n    try:\n"
        "        exchange.Channel(handle).send(exchange.VERDICT + exchange.sign(key, body) + body)\n"
        "    except OSError:\n        pass\n" + WRONG
    ),
    "end of iteration": "def add(a, b):\n    raise StopIteration\n",
    "trace": "import sys\nsys.settrace(lambda *a: None)\nsys.setrecursionlimit(10 ** 9)\n" + WRONG,
}


@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_passes(name: str, level: Level) -> None:
    checks = Checks(("add",), "assert all(map(lambda a: add(a, a) == 2 * a, (1, 5)))")
    verdict = run(FORGERIES[name], checks, level, seconds=2.0)
    assert not verdict.passed and verdict.reason != "passed", verdict


def test_a_verdict_counts_only_with_the_key_of_this_run(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(ADD, level=level).passed
    monkeypatch.setattr(
        sandbox, "judged", lambda judge, candidate, key, deadline: JUDGED(judge, candidate, KEY, deadline)
    )
    assert run(ADD, level=level) == Verdict(False, "crashed", "the judge ended without a verdict", level)


KEY = bytes(32)
JUDGED = sandbox.judged


def test_checks_use_their_own_builtins() -> None:
    program = "abs = lambda x: 0\nimport builtins\nbuiltins.abs = abs\n" + WRONG
    assert not run(program, Checks(("add",), "assert abs(add(1, 2) - 3) < 1e-6\n")).passed


@pytest.mark.slow
def test_endless_loops_end(level: Level) -> None:
    for program in ("while True: pass\n", "def add(a, b):\n    import time\n    time.sleep(1000)\n"):
        start = time.monotonic()
        assert run(program, level=level, seconds=1.5, cpu_seconds=1).reason in ("timed out", "failed")
        assert time.monotonic() - start < 6


def test_the_processor_limit_holds_without_the_clock(level: Level) -> None:
    verdict = run("while True: pass\n", level=level, seconds=60.0, cpu_seconds=1)
    assert verdict.reason == "failed" and not verdict.passed


def test_memory_is_limited(level: Level) -> None:
    for program in ("x = bytearray(2 ** 30)\n", "def add(a, b):\n    return 'x' * 2 ** 33\n"):
        verdict = run(program, level=level)
        assert not verdict.passed and "MemoryError" in verdict.detail


def test_nothing_is_seen_but_libraries(level: Level, tmp_path: Path) -> None:
    """What a program may do: import, and read what it imports."""
    program = (
        "import os, sys\ndef read(path):\n    try:\n        return open(path).read(9)\n    except OSError as error:\n"
        "        return type(error).__name__\n"
        "def own():\n    import colorsys\n    return read(colorsys.__file__)\n"
        "def some():\n    import csv, decimal, fractions, heapq, random, sqlite3, statistics, zoneinfo\n    return True\n"
    )
    secret = tmp_path / "secret"
    secret.write_text("secret")
    code = (
        'assert some() and own() == \'"""Conver\'\n'
        f"for path in ({str(secret)!r}, '/etc/passwd', '/proc/self/status', '/proc/1/environ', '/dev/zero', '/', '.'):\n"
        "    assert read(path) in ('FileNotFoundError', 'PermissionError', 'IsADirectoryError'), path\n"
    )
    verdict = run(program, Checks(("read", "own", "some"), code), level)
    assert verdict.passed, verdict


def test_what_limits_tell_of_files_outside() -> None:
    """What `stat` and `readlink` say; not what files and directories hold. In namespaces there is nothing to ask about."""
    asked = """
import json, os
def told(path):
    found = []
    for ask in (os.stat, os.readlink, os.listdir, open, os.getxattr):
        try:
            value = ask(path, "user.x") if ask is os.getxattr else ask(path)
            value = [value.st_size, value.st_uid, value.st_mtime] if ask is os.stat else value
        except OSError as error:
            value = type(error).__name__
        found.append(value)
    return found
"""
    for level in LEVELS:
        need(level)
        with tempfile.TemporaryDirectory() as name:
            os.chmod(name, 0o755)  # nobody may look into it
            file, link = Path(name, "file"), Path(name, "link")
            file.write_text("12345")
            os.utime(file, (1, 7))
            link.symlink_to("somewhere")
            refused = ["PermissionError"] * 2
            seen = {
                "limits": (
                    [[5, os.geteuid(), 7.0], "OSError", "NotADirectoryError", *refused],
                    ["FileNotFoundError", "somewhere", *["FileNotFoundError"] * 2, "PermissionError"],
                ),
                "namespaces": ([*["FileNotFoundError"] * 4, "PermissionError"],) * 2,
            }
            for path, wanted in zip((file, link), seen[level], strict=True):
                check = f"assert told({str(path)!r}) == {wanted!r}, told({str(path)!r})"
                verdict = run(asked, Checks(("told",), check), level)
                assert verdict.passed, (level, path, verdict)


def test_the_environment_is_empty(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "do-not-tell")
    program = "import os\ndef keys():\n    return sorted(os.environ)\ndef text():\n    return str(dict(os.environ))\n"
    code = (
        "assert 'do-not-tell' not in text()\n"
        "assert set(keys()) <= {'LANG', 'LC_CTYPE', 'PYTHONHASHSEED', 'OPENBLAS_NUM_THREADS', 'OMP_NUM_THREADS'}\n"
    )
    assert run(program, Checks(("keys", "text"), code), level).passed


def test_a_program_gives_the_same_in_every_run(level: Level) -> None:
    program = "def order():\n    return list({str(n) for n in range(50)})\n"
    shown = run(program, Checks(("order",), "raise Exception(order())"), level)
    assert run(program, Checks(("order",), "raise Exception(order())"), level) == shown


def test_output_goes_nowhere(level: Level, capfd: pytest.CaptureFixture[str]) -> None:
    flood = (
        "import sys\nfor _ in range(500):\n    sys.stdout.write('x' * 10 ** 5)\n    sys.stderr.write('y' * 10 ** 5)\n"
        "try:\n    input()\nexcept EOFError:\n    pass\n"
    )
    assert run(flood + ADD, level=level, seconds=30.0, cpu_seconds=20).passed
    assert capfd.readouterr() == ("", "")


def test_nothing_is_left_behind(level: Level, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    adopt_orphans()
    with suppress(ChildProcessError):  # of tests before this one
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    handles, before = len(os.listdir("/proc/self/fd")), descendants(os.getpid())
    for program in (ADD, WRONG, "import os\nos._exit(0)\n", "while True: pass\n"):
        run(program, level=level, seconds=0.5)
    assert not any(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) == handles
    assert descendants(os.getpid()) <= before
    with pytest.raises(ChildProcessError):  # nor did any process of a run become one of ours
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize("start", ["raise SystemExit", "import os; os.close(3); os.abort()"])
def test_a_sandbox_that_cannot_start_is_an_error_and_not_a_wrong_answer(
    start: str, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "START", start)
    with pytest.raises(JaxsinkError, match="could not start a program"):
        run(ADD, level=level)


def test_the_end_of_a_program_is_noticed_at_once(level: Level) -> None:
    verdict = run("import os\ndef add(a, b):\n    os._exit(0)\n", level=level, seconds=60.0)
    assert verdict == Verdict(False, "failed", "EOFError: the program ended", level)


def test_all_programs_can_be_ended(level: Level) -> None:
    """As an evaluation does when it is stopped."""
    before = descendants(os.getpid())
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(run, "while True: pass\n", CHECKS, level, seconds=60.0, cpu_seconds=60) for _ in range(2)]
        end = time.monotonic() + 20
        while len(descendants(os.getpid()) - before) < 2 * PROCESSES[level] and time.monotonic() < end:
            time.sleep(0.01)
        start = time.monotonic()
        sandbox.kill_all()
        assert not any(one.exception() is None and one.result().passed for one in found)
    assert time.monotonic() - start < 5 and not sandbox._running
    assert survivors(before) == 0


COPIED = """
import os, sys, threading, time
from jaxsink.sandbox.runner import Checks, Limits, _running, check_sandbox, run_checks
def copy():
    while not _running:
        time.sleep(0.01)
    time.sleep(1)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
check_sandbox(sys.argv[1])
threading.Thread(target=copy).start()
run_checks("import time; time.sleep(60)", Checks(("x",), ""), allow_code_execution=True, sandbox=sys.argv[1],
           limits=Limits(seconds=60.0))
"""


def test_a_copy_of_the_harness_keeps_no_program_alive(level: Level) -> None:
    """It holds the pipe that the keeper watches, as libraries that fork do; the kernel ends the keeper all the same."""
    adopt_orphans()
    before = descendants(os.getpid())
    command = [sys.executable, "-W", "ignore", "-c", COPIED, level]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as harness:
        assert harness.stdout is not None
        copy = int(harness.stdout.readline())
        assert len(descendants(harness.pid)) == PROCESSES[level] + 1
        harness.kill()
    try:
        assert survivors(before | {copy}) == 0
    finally:
        os.kill(copy, signal.SIGKILL)
        os.waitpid(copy, 0)
