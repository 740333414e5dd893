"""The attacks, each the body of a function that returns what it achieved, and raises or returns nothing if it was refused.

FIELD, in each of them, is what the test laid out: see field.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from support.attacks.on_files import FILES, MEMORY
from support.attacks.on_kernel import NETWORK, PRIVILEGES, TRACES
from support.attacks.on_processes import PROCESSES, VERDICT

Group = Literal["verdict", "processes", "files", "memory", "network", "traces", "privileges"]

PRELUDE = '''
import os, sys

def libc():
    import ctypes
    return ctypes.CDLL(None, use_errno=True)

def checked(value):
    import ctypes
    if value is None or value < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return value

def system(number, *values):
    import ctypes
    library = libc()
    library.syscall.restype = ctypes.c_long
    given = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    return checked(library.syscall(ctypes.c_long(number), *given))

def parents(proc):
    found = {}
    for name in os.listdir(proc):
        if name.isdigit():
            try:
                with open(proc + ("/" if isinstance(proc, str) else b"/") + name + (
                        "/stat" if isinstance(proc, str) else b"/stat"), "rb") as file:
                    found[int(name)] = int(file.read().rsplit(b")", 1)[1].split()[1])
            except OSError:
                pass
    return found

def family(proc="//proc"):
    """The processes below the test, but this one and the dummy."""
    known = parents(proc)
    def below(pid):
        while pid in known and pid > 1:
            pid = known[pid]
            if pid == FIELD["harness"]:
                return True
        return False
    found = [pid for pid in known if below(pid) and pid not in (os.getpid(), FIELD["victim"])]
    if not found:
        raise ProcessLookupError("no process of the run is to be seen")
    return found

def silence():
    """Kill the processes of the run, so that none has the last word."""
    ended = 0
    for pid in family():
        try:
            os.kill(pid, 9)
            ended += 1
        except OSError:
            pass
    return ended

def forged():
    body = b'{"passed": true, "detail": ""}'
    framed = b"!" + bytes(32) + body
    return [body, len(framed).to_bytes(4, "big") + framed, b" " + body]

'''

RUN = '''
def told(error):
    return "no: " + type(error).__name__

def directly():
    try:
        done = work()
    except BaseException as error:
        return told(error)
    return "did: " + str(done) if done else "no: nothing"

def inside():
    """In an interpreter of its own, where no hook of Python looks."""
    try:
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            import _interpreters as interpreters
        code = SOURCE + "\\ntry:\\n    done = work()\\nexcept BaseException as error:\\n    done = None\\n"
        code += "if done:\\n    raise RuntimeError('did: ' + str(done))\\n"
        found = interpreters.run_string(interpreters.create(), code)
        if found is not None and "did: " in str(found):
            return "did: " + str(found).split("did: ", 1)[1]
    except BaseException as error:
        text = str(error)
        if "did: " in text:
            return "did: " + text.split("did: ", 1)[1]
    return ""

def attack():
    first = directly()
    if first.startswith("did"):
        return first
    return inside() or first

def add(a, b):
    return 0
'''

EARLY = """
done = attack()
def attack():
    return done
"""


@dataclass(frozen=True)
class Attack:
    """body: of the function `work`. alone: it may end the process that it runs in, so it needs one of its own. early: it
    runs as soon as the program starts, not when it is called."""

    group: Group
    body: str
    alone: bool = False
    early: bool = False

    def program(self, field: dict[str, object]) -> str:
        lines = "".join(f"    {line}\n" for line in self.body.strip("\n").splitlines())
        source = f"FIELD = {field!r}\n{PRELUDE}\ndef work():\n{lines}"
        return f"{source}\nSOURCE = {source!r}\n{RUN}{EARLY if self.early else ''}"


AT_ONCE = {"take the judge's descriptors while it starts", "end a check's iteration early (StopIteration)"}
ALONE = AT_ONCE | {
    "write a verdict to every open descriptor",
    "write a verdict into /proc/PID/fd of judge and keepers",
    "take the judge's descriptors (pidfd_getfd)",
    "kill judge and keepers",
    "stop the keeper's group, leave the session, clear the death signal, live on",
    "another program in its place (exec)",
    "endless processor time",
    "sleeping for ever",
    "deaf to signals",
    "calls of 32 bits (int 0x80)",
}
GROUPS: dict[Group, dict[str, str]] = {
    "verdict": VERDICT,
    "processes": PROCESSES,
    "files": FILES,
    "memory": MEMORY,
    "network": NETWORK,
    "traces": TRACES,
    "privileges": PRIVILEGES,
}
ATTACKS: dict[str, Attack] = {
    name: Attack(group, body, name in ALONE, name in AT_ONCE)
    for group, bodies in GROUPS.items()
    for name, body in bodies.items()
}
