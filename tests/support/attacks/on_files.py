"""Attacks on files, devices and memory; see programs.py."""

from __future__ import annotations

FILES = {
    "append to a file": """
with open(FIELD["target"], "ab") as file:
    file.write(b"x")
return "opened"
""",
    "open a file for writing in C": """
import ctypes
os.close(checked(libc().open(FIELD["target"].encode(), os.O_WRONLY | os.O_APPEND)))
return "opened"
""",
    "open a file for writing by openat2": """
import ctypes, struct
how = ctypes.create_string_buffer(struct.pack("QQQ", os.O_WRONLY | os.O_APPEND, 0, 0), 24)
os.close(system(437, -100, FIELD["target"].encode(), how, 24))
return "opened"
""",
    "create a file": """
open(FIELD["new"], "x").close()
return "created"
""",
    "create a file without a name": """
os.close(os.open(FIELD["folder"], os.O_TMPFILE | os.O_RDWR))
return "created"
""",
    "truncate": 'os.truncate(FIELD["target"], 0)\nreturn "cut"',
    "delete": 'os.unlink(FIELD["spare"])\nreturn "deleted"',
    "rename": 'os.rename(FIELD["spare"], FIELD["new"])\nreturn "renamed"',
    "hard link": 'os.link(FIELD["target"], FIELD["new"])\nreturn "linked"',
    "symbolic link": 'os.symlink("x", FIELD["new"])\nreturn "linked"',
    "directory": 'os.mkdir(FIELD["new"])\nreturn "made"',
    "FIFO (mkfifo)": 'os.mkfifo(FIELD["new"])\nreturn "made"',
    "device node (mknod)": 'os.mknod(FIELD["new"], 0o020666, os.makedev(1, 3))\nreturn "made"',
    "file by mknod": 'os.mknod(FIELD["new"])\nreturn "made"',
    "change mode": 'os.chmod(FIELD["target"], 0o777)\nreturn "changed"',
    "change times": 'os.utime(FIELD["target"], (1, 1))\nreturn "changed"',
    "extended attribute": 'os.setxattr(FIELD["target"], "user.x", b"1")\nreturn "set"',
    "by readline": """
import readline
readline.add_history("x")
readline.write_history_file(FIELD["new"])
return "written"
""",
    "by SQLite": """
import sqlite3
sqlite3.connect(FIELD["new"]).execute("create table x (y)")
return "written"
""",
    "by Tcl": """
import _tkinter, ctypes
try:
    library = ctypes.CDLL("libtcl" + _tkinter.TCL_VERSION + ".so")
except OSError as error:
    raise ImportError from error
library.Tcl_FindExecutable(None)
library.Tcl_CreateInterp.restype = ctypes.c_void_p  # needs no init.tcl, which _tkinter does not find in here
library.Tcl_GetStringResult.restype = ctypes.c_char_p
interpreter = ctypes.c_void_p(library.Tcl_CreateInterp())
if library.Tcl_Eval(interpreter, ("open " + FIELD["new"] + " w").encode()):
    reason = library.Tcl_GetStringResult(interpreter)
    denied = any(words in reason for words in (b"not owner", b"permission denied"))  # EPERM and EACCES, as Tcl says them
    raise (PermissionError if denied else LookupError)(reason)
return "written"
""",
    "shared memory by name (/dev/shm)": """
import _posixshmem
_posixshmem.shm_open("/" + FIELD["shared"], os.O_CREAT | os.O_RDWR, mode=0o600)
return "created"
""",
    "open a device for writing": """
os.close(os.open("/dev/full", os.O_WRONLY))
return "opened"
""",
    "read a disk": """
import stat
for name in sorted(os.listdir("/dev")):
    if stat.S_ISBLK(os.stat("/dev/" + name).st_mode):
        with open("/dev/" + name, "rb") as file:
            return "read" if file.read(1) else ""
""",
    "read a file of the user": """
with open(FIELD["secret"]) as file:
    return "read it" if file.read() == "secret" else ""
""",
    "read /etc/passwd": """
with open(b"//etc/passwd") as file:
    return "read it" if file.read() else ""
""",
    "read the harness's environment (/proc)": """
with open("//proc/%d/environ" % FIELD["harness"], "rb") as file:
    return "read it" if file.read() else ""
""",
    "list a directory": 'return "listed" if "target" in os.listdir(FIELD["folder"]) else ""',
    "a writable mount below a library path": """
for path in FIELD["mounts"]:
    with open(path + "/written", "w") as file:
        file.write("")
    return "written"
""",
}
MEMORY = {
    "twice the limit at once": 'return len(bytearray(FIELD["memory"] * 2))',
    "mapped, shared": 'import mmap\nreturn len(mmap.mmap(-1, FIELD["memory"] * 2))',
    "segments of System V": """
segment = system(29, 0, FIELD["memory"] * 2, 0o1600)
libc().shmctl(segment, 0, None)
return "made one"
""",
    "a file in memory (memfd_create)": """
handle = system(319, b"x", 0)
os.posix_fallocate(handle, 0, 2 ** 20)
return "grew to 1 MB, uncounted"
""",
    "endless processor time": "while True: pass",
    "sleeping for ever": "import time\ntime.sleep(1000)",
    "deaf to signals": """
import signal, time
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    time.sleep(1)
""",
}
