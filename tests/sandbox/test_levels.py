"""A level is what it is called: none stands in for another, what is missing is said, and each layer holds alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import levels
from support.levels import need

from jaxsink.errors import JaxsinkError
from jaxsink.sandbox import runner
from jaxsink.sandbox.runner import Checks, check_sandbox, run_checks

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are confined on Linux only")
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up some of its rights")
TRY = """
import sys
from jaxsink.errors import JaxsinkError
from jaxsink.sandbox.runner import Checks, run_checks
try:
    print(run_checks("import os\\nuser = os.getuid()\\nhome = os.getpid()\\n", Checks(("user", "home"), CODE),
                     allow_code_execution=True, sandbox=sys.argv[1]))
except JaxsinkError as error:
    print(error)
"""
REFUSING = """
import ctypes, errno, platform, struct
from jaxsink.sandbox import seccomp
from jaxsink.sandbox.kernel import PR_SET_NO_NEW_PRIVS, call, control
def refuse(number, code):
    lines = [(seccomp.LOAD, 0, 0, seccomp.NUMBER), (seccomp.EQUAL, 0, 1, number), seccomp.refuse(code), seccomp.PERMIT]
    text = b"".join(struct.pack("HBBI", *line) for line in lines)
    control(PR_SET_NO_NEW_PRIVS, 1)
    call("prctl", 22, ctypes.c_ulong(2), ctypes.byref(seccomp.Program(len(lines), text)), 0, 0)
"""
GIVING_UP = """
from jaxsink.sandbox.kernel import control
for capability in (CAPABILITIES):
    control(24, capability)   # PR_CAPBSET_DROP: not for programs that are started from now on
"""


def said(script: str, *arguments: str) -> str:
    """What a script prints that may harm its own process."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def tried(level: str, before: str, code: str = "assert user > 0") -> str:
    return said(before + TRY.replace("CODE", repr(code)), level)


def test_without_namespaces_nothing_runs_unless_limits_are_asked_for() -> None:
    """As Docker does it: unshare is refused."""
    denied = REFUSING + "refuse({'x86_64': 272, 'aarch64': 97}[platform.machine()], errno.EPERM)\n"
    text = tried("namespaces", denied)
    assert "the sandbox (namespaces) cannot be set up here: unshare: Operation not permitted;" in text
    assert "--sandbox limits" in text and "user.max_user_namespaces" in text and text.count("\n") == 0
    assert "passed=True" in tried("limits", denied, "") or os.geteuid() != 0


def test_without_landlock_there_are_no_limits() -> None:
    denied = REFUSING + "refuse(444, errno.ENOSYS)\n"
    text = tried("limits", denied)
    assert (
        "the sandbox (limits) cannot be set up here: landlock: the kernel does not have it; run on Linux 5.13" in text
    )
    assert "sandbox='namespaces'" in tried("namespaces", denied, "") or "user.max_user" in tried("namespaces", denied)


def test_an_unknown_level_is_named() -> None:
    with pytest.raises(JaxsinkError, match=r"--sandbox takes namespaces or limits, not 'none'"):
        run_checks("", Checks((), ""), allow_code_execution=True, sandbox="none")  # pyright: ignore


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sandbox.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(JaxsinkError, match="on Linux only, and this is darwin"):
        check_sandbox("limits")


def test_a_refusal_is_not_kept_from_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sandbox.cache_clear()
    monkeypatch.setattr(runner, "START", "raise SystemExit")
    with pytest.raises(JaxsinkError, match="could not start a program"):
        check_sandbox("limits")
    monkeypatch.undo()
    check_sandbox("limits")


@pytest.mark.parametrize("every", [False, True])
def test_where_every_level_is_to_be_had_none_is_passed_over(every: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAXSINK_EVERY_LEVEL=1, as CI has it."""
    check_sandbox.cache_clear()
    monkeypatch.setattr(runner, "START", "raise SystemExit")
    monkeypatch.setattr(levels, "EVERY_LEVEL", every)
    with pytest.raises(pytest.fail.Exception if every else pytest.skip.Exception, match="limits is not to be had here"):
        need("limits")
    check_sandbox.cache_clear()


@pytest.mark.parametrize("level", ["namespaces", "limits"])
def test_a_detour_in_the_path_of_python_changes_nothing(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, name = os.path.split(sys.executable)
    monkeypatch.setattr(sys, "executable", f"{folder}/../{os.path.basename(folder)}/{name}")
    program = f"import numpy, sys\npaths = [path for path in sys.path if '..' in path or path == {str(ROOT)!r}]\n"
    assert runner._python() == f"{os.path.realpath(folder)}/{name}"
    checks, limits = Checks(("paths",), "assert paths == []"), runner.Limits(memory=2**31, seconds=60.0, cpu_seconds=30)
    verdict = run_checks(program, checks, allow_code_execution=True, sandbox=level, limits=limits)  # pyright: ignore
    assert verdict.passed and verdict.sandbox == level, verdict


def test_modules_are_looked_for_below_what_is_shown_under_its_name_inside(tmp_path: Path) -> None:
    (tmp_path / "lib" / "package").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "lib")
    script = (
        "import json, sys\nfrom jaxsink.sandbox import view\nlib, link = sys.argv[1:]\n"
        "sys.path[:] = [f'{lib}/../lib', f'{link}/package', lib + 'rary', '/']\njson.__path__ = [f'{link}/package']\n"
        "view.settle_imports({lib: '/inside'})\nprint(sys.path, json.__path__)\n"
    )
    found = said(script, str(tmp_path / "lib"), str(tmp_path / "link"))
    assert found == "['/inside', '/inside/package'] ['/inside/package']"


@is_root
def test_root_in_a_container_makes_a_user_namespace_and_becomes_nobody() -> None:
    """Without CAP_SYS_ADMIN."""
    text = tried("namespaces", GIVING_UP.replace("CAPABILITIES", "21,"), "assert (user, home) == (65534, 1), user")
    assert "passed=True" in text and "sandbox='namespaces'" in text, text


@is_root
@pytest.mark.parametrize("level", ["namespaces", "limits"])
def test_root_becomes_nobody(level: str) -> None:
    assert "passed=True" in tried(level, "", "assert user == 65534, user")


@is_root
def test_root_that_cannot_become_nobody_is_refused() -> None:
    without = GIVING_UP.replace("CAPABILITIES", "6, 7, 21")
    assert "root cannot become nobody (it needs CAP_SETUID, CAP_SETGID)" in tried("limits", without)
    assert "its users cannot be mapped (root needs CAP_SETUID" in tried("namespaces", without)


VIEW = """
import ctypes, os, sys
from jaxsink.sandbox import view
from jaxsink.sandbox.kernel import call
place = next(entry.path for entry in sorted(os.scandir("/usr/lib"), key=lambda entry: entry.name)
             if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(("python", "x86_64", "aarch64")))
if os.geteuid() == 0:
    call("unshare", view.CLONE_NEWNS)
    view.mount(None, "/", None, view.MS_REC | view.MS_PRIVATE)
    view.mount("tmpfs", place, "tmpfs", 0, "size=1m,mode=777")
    open(place + "/before", "w").close()
view.enter_namespaces()
if os.fork() == 0:
    view.build_view(view.shown_paths())
    found = []
    for path in ("/new", place + "/new", sys.prefix + "/lib/new", "/usr/lib/new"):
        try:
            open(path, "w").close()
            found.append("written")
        except OSError as error:
            found.append(error.strerror)
    print(found, sorted(os.listdir("/")), os.getpid(), flush=True)
    os._exit(0)
os.wait()
"""


def test_the_view_alone_can_only_be_read_with_all_mounts_below() -> None:
    need("namespaces")
    text = said(VIEW)
    assert text.startswith(str(["Read-only file system"] * 4)) and text.endswith(" 1"), text
    assert "'proc'" not in text and "'home'" not in text


LANDLOCK = """
import os, sys
from jaxsink.sandbox import landlock
from jaxsink.sandbox.kernel import PR_SET_NO_NEW_PRIVS, control
folder, other = sys.argv[1:]
control(PR_SET_NO_NEW_PRIVS, 1)
landlock.restrict([os.open(folder, os.O_PATH), os.open("/dev/null", os.O_PATH)])
def outcome(work, *values):
    try:
        work(*values)
        return "did"
    except OSError as error:
        return type(error).__name__
print([outcome(*work) for work in ((os.listdir, folder), (open, folder + "/kept"), (open, "/dev/null"))])
print([outcome(*work) for work in (
    (open, folder + "/new", "w"), (open, folder + "/kept", "a"), (os.truncate, folder + "/kept", 0),
    (os.mkdir, folder + "/new"), (os.mkfifo, folder + "/new"), (os.unlink, folder + "/kept"),
    (open, other + "/kept"), (os.listdir, other), (open, "/dev/zero"), (open, "/proc/self/status"),
)])
print(outcome(os.kill, os.getppid(), 0) if landlock.version() >= 6 else "PermissionError")
"""


def test_landlock_alone_lets_only_libraries_be_read(tmp_path: Path) -> None:
    need("limits")
    for name in ("folder", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kept").write_text("keep")
    allowed, refused, signals = said(LANDLOCK, str(tmp_path / "folder"), str(tmp_path / "other")).splitlines()
    assert allowed == str(["did"] * 3) and refused == str(["PermissionError"] * 10) and signals == "PermissionError"
