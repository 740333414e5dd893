"""Hostile programs in the sandbox: none passes as a solution, none harms the run or the machine."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxsink.errors import JaxsinkError
from jaxsink.sandbox import runner as sandbox
from jaxsink.sandbox.runner import Checks, Limits, Verdict, isolation, run_checks

ADD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return 0\n"
CHECKS = Checks(
    ("add",), "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(5, 5) == 10\ncheck(add)\n"
)
QUICK = Limits(seconds=6.0, cpu_seconds=2, memory=2**29)
EVERY_LAYER = [("namespaces", "audit"), ("namespaces",), ("audit",), ()]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are confined on Linux only")
needs_namespaces = pytest.mark.skipif(
    sys.platform != "linux" or isolation() != "namespaces", reason="the kernel allows no namespaces here"
)


def run(program: str, checks: Checks = CHECKS, **changes) -> Verdict:
    limits = Limits(**{**QUICK.__dict__, **changes})
    return run_checks(program, checks, allow_code_execution=True, limits=limits)


def strangers() -> set[int]:
    """Processes in another PID namespace, or that run a sandbox."""
    own, found = os.readlink("/proc/self/ns/pid"), set()
    for folder in filter(lambda folder: folder.name.isdigit(), Path("/proc").iterdir()):
        try:
            command = (folder / "cmdline").read_bytes()
            confined = b"Starts one program in confinement" in command or b"run inside the sandbox" in command
            if confined or os.readlink(folder / "ns/pid") != own:
                found.add(int(folder.name))
        except OSError:
            continue
    return found


def strangers_that_stay(before: set[int], seconds: float = 20.0) -> set[int]:
    """Those that are new and do not go away; other tests beside this one have theirs, which do."""
    left = strangers() - before
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        time.sleep(0.1)
        left &= strangers()
    return left


@pytest.mark.parametrize("leave", [False, None, 1, "yes"])
def test_nothing_runs_without_leave(leave, tmp_path: Path) -> None:
    program = f"open({str(tmp_path / 'made')!r}, 'w')\n" + ADD
    with pytest.raises(JaxsinkError, match="not run without leave"):
        run_checks(program, CHECKS, allow_code_execution=leave, limits=Limits(layers=()))
    with pytest.raises(JaxsinkError, match="--allow-code-execution"):
        run_checks(program, CHECKS)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("layers", EVERY_LAYER)
def test_right_passes_and_wrong_fails(layers) -> None:
    held = "namespaces" if "namespaces" in layers and isolation() == "namespaces" else "limits"
    assert run(ADD, layers=layers) == Verdict(True, "passed", "", held)
    assert run(WRONG, layers=layers) == Verdict(False, "failed", "AssertionError: ", held)


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
        "import json, sys\nmain = sys.modules['__main__']\nmain.encode = lambda v, k: {'object': 0}\n"
        "main.decode = lambda v, f: ()\n" + WRONG
    ),
    "written verdict": (
        "import os\nfor handle in range(64):\n    try:\n        os.write(handle, b'{\"passed\": true}')\n"
        "    except OSError:\n        pass\n" + WRONG
    ),
    "printed verdict": "print('{\"passed\": true}\\npassed\\nOK', flush=True)\n" + WRONG,
    "signals": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.alarm(1)\n" + WRONG,
    "trace": "import sys\nsys.settrace(lambda *a: None)\nsys.setrecursionlimit(10 ** 9)\n" + WRONG,
}


@pytest.mark.parametrize("layers", [("namespaces", "audit"), ()])
@pytest.mark.parametrize("name", FORGERIES)
def test_no_forgery_passes(name: str, layers) -> None:
    verdict = run(FORGERIES[name], layers=layers)
    assert not verdict.passed and verdict.reason != "passed", verdict
    assert run(ADD, layers=layers).passed  # and the next one is judged as ever


def test_checks_use_their_own_builtins() -> None:
    program = "abs = lambda x: 0\nimport builtins\nbuiltins.abs = abs\n" + WRONG
    assert not run(program, Checks(("add",), "assert abs(add(1, 2) - 3) < 1e-6\n")).passed


@pytest.mark.parametrize("layers", EVERY_LAYER)
def test_endless_loops_end(layers) -> None:
    for program in ("while True: pass\n", "def add(a, b):\n    while True: pass\n", "import time\ntime.sleep(1000)\n"):
        start = time.monotonic()
        assert run(program, seconds=1.5, cpu_seconds=1, layers=layers).reason in ("timed out", "failed")
        assert time.monotonic() - start < 6


def test_the_processor_limit_holds_without_the_clock() -> None:
    verdict = run("while True: pass\n", seconds=60.0, cpu_seconds=1)
    assert verdict.reason == "failed" and not verdict.passed


@pytest.mark.parametrize("layers", [("namespaces", "audit"), ()])
def test_memory_is_limited(layers) -> None:
    for program in ("x = [bytearray(2 ** 26) for _ in range(64)]\n", "def add(a, b):\n    return 'x' * 2 ** 33\n"):
        verdict = run(program, layers=layers)
        assert not verdict.passed and "MemoryError" in verdict.detail


@needs_namespaces
def test_fork_bombs_do_not_multiply() -> None:
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
    assert not run(bomb + ADD, seconds=2.0, layers=("namespaces",)).passed
    assert not strangers_that_stay(set())


@pytest.mark.parametrize("layers", [("namespaces",), ("audit",)])
def test_there_are_no_children(layers) -> None:
    if "namespaces" in layers and isolation() != "namespaces":
        pytest.skip("the kernel allows no namespaces here")
    program = (
        "import os\ndef fork():\n    try:\n        return os.fork() >= 0\n    except OSError:\n        return False\n"
        "def thread():\n    import threading\n    try:\n        threading.Thread(target=print).start()\n"
        "        return True\n    except RuntimeError:\n        return False\n"
    )
    assert run(program, Checks(("fork",), "assert fork() is False"), layers=layers).passed
    if "namespaces" in layers:
        assert run(program, Checks(("thread",), "assert thread() is False"), layers=layers).passed


@needs_namespaces
def test_children_that_hide_die_with_the_run() -> None:
    hiding = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(300)\n" + ADD
    before = strangers()
    assert run(hiding, layers=("namespaces",), processes=1000).passed
    assert not strangers_that_stay(before)


@pytest.mark.parametrize("layers", EVERY_LAYER)
def test_files_outside_cannot_be_written(layers, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("keep")
    tmp_path.chmod(0o777)
    target.chmod(0o666)
    program = (
        f"import os\ndef attempt(f, *a):\n    try:\n        return f(*a)\n    except OSError:\n        pass\n"
        f"def write(path, mode):\n    with open(path, mode) as f:\n        f.write('x' * 100)\n"
        f"attempt(write, {str(target)!r}, 'a')\nattempt(write, {str(tmp_path / 'new')!r}, 'w')\n"
    ) + ADD
    assert run(program, layers=layers).passed
    assert target.read_text() == "keep"
    assert not (tmp_path / "new").exists() or (not layers and (tmp_path / "new").read_text() == "")


@needs_namespaces
def test_no_privilege_is_left() -> None:
    program = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\ndef attempts():\n"
        "    return [libc.mount(None, b'/', None, 32 | 4096, None), libc.unshare(0x40000000), libc.setuid(0), os.getuid()]\n"
    )
    code = f"assert attempts() == [-1, -1, -1, {os.getuid() or 65534}], attempts()"
    verdict = run(program, Checks(("attempts",), code), layers=("namespaces",))
    assert verdict.passed, verdict


@needs_namespaces
def test_the_file_system_shows_python_and_nothing_else(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    program = (
        "import os, sys\ndef read(path):\n    try:\n        return open(path).read()\n    except OSError as error:\n"
        "        return type(error).__name__\n"
        "def make(path):\n    try:\n        open(path, 'w').close()\n        return 'made'\n"
        "    except OSError:\n        return 'refused'\ndef top():\n    return sorted(os.listdir('/'))\n"
        "def prefix():\n    return sys.prefix\n"
    )
    code = (
        f"assert read({str(secret)!r}) == 'FileNotFoundError'\nassert read('/proc/1/environ') == 'FileNotFoundError'\n"
        "assert read('/etc/passwd') == 'FileNotFoundError'\nassert 'proc' not in top() \n"
        "for path in ('/x', '/tmp/x', '/usr/x', '/dev/x', prefix() + '/x'):\n    assert make(path) == 'refused', path\n"
    )
    verdict = run(program, Checks(("read", "make", "top", "prefix"), code), layers=("namespaces",))
    assert verdict.passed, verdict


@pytest.mark.parametrize("layers", [("namespaces",), ("audit",)])
def test_there_is_no_network(layers) -> None:
    if "namespaces" in layers and isolation() != "namespaces":
        pytest.skip("the kernel allows no namespaces here")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        program = (
            "import socket\ndef reach(port):\n    try:\n"
            "        socket.create_connection(('127.0.0.1', port), timeout=2).close()\n"
            "        return True\n    except OSError:\n        return False\n"
        )
        checks = Checks(("reach",), f"assert reach({server.getsockname()[1]}) is False")
        assert run(program, checks, layers=layers).passed
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("layers", [("namespaces", "audit"), ()])
def test_the_environment_is_empty(layers, monkeypatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "do-not-tell")
    program = "import os\ndef keys():\n    return sorted(os.environ)\ndef text():\n    return str(dict(os.environ))\n"
    code = (
        "assert 'do-not-tell' not in text()\n"
        "assert set(keys()) <= {'LANG', 'LC_CTYPE', 'PYTHONHASHSEED', 'OPENBLAS_NUM_THREADS', 'OMP_NUM_THREADS'}\n"
    )
    assert run(program, Checks(("keys", "text"), code), layers=layers).passed


@pytest.mark.parametrize("layers", [("namespaces",), ("audit",), ("namespaces", "audit")])
def test_the_parent_cannot_be_killed(layers) -> None:
    if "namespaces" in layers and isolation() != "namespaces":
        pytest.skip("the kernel allows no namespaces here")
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        program = (
            f"import os, signal\nfor target in ({os.getpid()}, os.getppid(), -1, 0):\n    for kind in (15, 9):\n"
            "        try:\n            os.kill(target, kind)\n        except (OSError, PermissionError):\n            pass\n"
        )
        run(program + WRONG, layers=layers)
        assert not run(program + WRONG, layers=layers).passed
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not heard and run(ADD).passed


@pytest.mark.parametrize("layers", [("namespaces", "audit"), ()])
def test_output_goes_nowhere(layers, capfd) -> None:
    flood = (
        "import sys\nfor _ in range(2000):\n    sys.stdout.write('x' * 10 ** 5)\n    sys.stderr.write('y' * 10 ** 5)\n"
    )
    assert run(flood + ADD, seconds=30.0, cpu_seconds=20, layers=layers).passed
    assert capfd.readouterr() == ("", "")


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    handles = len(os.listdir("/proc/self/fd"))
    for program in (ADD, WRONG, "import os\nos._exit(0)\n", "while True: pass\n"):
        run(program, seconds=1.5)
    assert not any(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) == handles
    assert not strangers_that_stay(set())
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize("role", ["candidate", "judge"])
def test_a_sandbox_that_cannot_start_is_an_error_and_not_a_wrong_answer(role: str, monkeypatch) -> None:
    start = sandbox._start

    def start_badly(stack, name, job, handles, limits, namespaces) -> None:
        limits = dataclasses.replace(limits, files=1) if name == role else limits
        start(stack, name, job, handles, limits, namespaces)

    monkeypatch.setattr(sandbox, "_start", start_badly)
    with pytest.raises(JaxsinkError, match="could not start a program"):
        run(ADD)


def test_the_checks_are_not_on_the_disk(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = (
        "import os, time\ndef find():\n    time.sleep(0.5)\n"
        f"    return [name for _, _, names in os.walk({str(tmp_path)!r}) for name in names]\n"
    )
    assert run(program, Checks(("find",), "assert find() == []"), layers=()).passed


def test_the_end_of_a_program_is_noticed_at_once() -> None:
    verdict = run("import os\ndef add(a, b):\n    os._exit(0)\n", seconds=60.0)
    assert verdict.reason == "failed" and "timed out" not in verdict.detail


def test_namespaces_are_used_wherever_they_can_be() -> None:
    """Were they broken, the tests above that need them would only be left out."""
    trial = (
        "import ctypes, os, sys\nlibc = ctypes.CDLL(None)\nuser = 0 if os.geteuid() == 0 else 0x10000000\n"
        "failed = libc.unshare(0x6c020000 | user) or libc.mount(None, b'/', None, 1 << 18 | 16384, None)\n"
        "sys.exit(bool(failed or libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None)))\n"
    )
    allowed = subprocess.run([sys.executable, "-I", "-c", trial], check=False).returncode == 0
    assert isolation() == ("namespaces" if allowed else "limits")
