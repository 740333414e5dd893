"""What the attacks are let loose on: files, sockets and a process that may be harmed, and a look at them afterwards."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from jaxsink.sandbox.kernel import CAPABILITY_VERSION, CapabilityHeader, call, control

CAP_SYS_ADMIN, PR_CAPBSET_DROP = 21, 24
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNS, MS_PRIVATE = 0x00020000, 1 << 18 | 16384
LIBRARIES = "/usr/lib"


class Field:
    """A directory that all may write to, a dummy process, and servers; `harm()` says what became of them."""

    def __init__(self, memory: int, mounts: tuple[str, ...] = ()) -> None:
        self.stack = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="attacked-"))
        self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.folder.chmod(0o777)
        for name, text in (("target", "keep"), ("secret", "secret"), ("spare", "spare")):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o666)
        self.name = f"attacked-{secrets.token_hex(4)}"
        self.marker = secrets.token_hex(8)
        server = self.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for address in (str(self.folder / "socket"), f"\0{self.name}"):
            listening = self.stack.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(address)
            listening.listen()
        (self.folder / "socket").chmod(0o777)
        self.victim = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        self.stack.callback(self._end_victim)
        self.memory, self.mounts, self.port = memory, mounts, server.getsockname()[1]
        self.before = self._look()

    def __enter__(self) -> Field:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def facts(self) -> dict[str, object]:
        """For the program. The marker is reversed, so that a copy of the program is not taken for the checks."""
        names = ("target", "secret", "spare", "socket")
        return {
            **{name: str(self.folder / name) for name in names},
            "new": str(self.folder / "new"),
            "folder": str(self.folder),
            "temporary": tempfile.gettempdir(),
            "shared": self.name,
            "abstract": self.name,
            "marker": self.marker[::-1],
            "victim": self.victim.pid,
            "harness": os.getpid(),
            "port": self.port,
            "memory": self.memory,
            "mounts": list(self.mounts),
        }

    def harm(self) -> str:
        """What is not as it was; nothing, if all is."""
        found = [] if self.victim.poll() is None else ["killed a process"]
        if self._look() != self.before:
            found.append("touched files")
        if (Path("/dev/shm") / self.name).exists():
            (Path("/dev/shm") / self.name).unlink()
            found.append("left shared memory")
        for path in self.mounts:
            if os.path.lexists(f"{path}/written"):
                os.unlink(f"{path}/written")
                found.append("wrote below a library path")
        return ", ".join(found)

    def _look(self) -> list[object]:
        found: list[object] = []
        for path in sorted([self.folder, *self.folder.iterdir()]):
            status = path.lstat()
            kept = path.read_text() if path.name in ("target", "secret", "spare") else ""
            found.append(
                (
                    path.name,
                    status.st_mode,
                    status.st_nlink,
                    status.st_mtime_ns,
                    os.listxattr(path, follow_symlinks=False),
                    kept,
                )
            )
        return found

    def _end_victim(self) -> None:
        self.victim.kill()
        self.victim.wait()


def adopt_orphans() -> None:
    """Processes below this one that lose their parent become its children, so that none can hide."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(of: int) -> set[int]:
    """All living processes below one."""
    known: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                known.setdefault(int(parent), []).append(int(folder.name))
    found, left = set(), [of]
    while left:
        children = known.get(left.pop(), [])
        found.update(children)
        left += children
    return found


def survivors(before: set[int], seconds: float = 2.0) -> int:
    """How many processes below this one are new and stay; they are ended then."""
    end = time.monotonic() + seconds
    left = descendants(os.getpid()) - before
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left &= descendants(os.getpid())
    for process in left:
        os.kill(process, 9)
    return len(left)


def mount_below_libraries() -> tuple[str, ...]:
    """As root: a file system that all may write to, in a folder of the libraries that Python does not need, for this process
    and those below it alone."""
    names = sorted(entry.name for entry in os.scandir(LIBRARIES) if entry.is_dir(follow_symlinks=False))
    place = next(name for name in names if not name.startswith(("python", "x86_64", "aarch64")))
    libc = ctypes.CDLL(None)
    if os.geteuid() or libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, ctypes.c_ulong(MS_PRIVATE), None):
        return ()
    path = f"{LIBRARIES}/{place}"
    return () if libc.mount(b"tmpfs", path.encode(), b"tmpfs", 0, b"size=1m,mode=777") else (path,)


def become(user: int, contained: bool = False) -> None:
    """contained: without the right to administer the system, as root is in most containers."""
    if contained:
        header, rights = CapabilityHeader(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
        call("capget", ctypes.byref(header), rights)
        for kind in range(3):  # effective, permitted, inheritable; then those of programs that are started
            rights[kind] &= ~(1 << CAP_SYS_ADMIN)
        call("capset", ctypes.byref(header), rights)
        control(PR_CAPBSET_DROP, CAP_SYS_ADMIN)
    if os.geteuid() != user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
