"""Attacks on the verdict, on other processes, and for processes of its own; see programs.py."""

from __future__ import annotations

VERDICT = {
    "write a verdict to every open descriptor": """
for handle in range(3, 64):
    for text in forged():
        try:
            os.write(handle, text)
        except OSError:
            pass
""",
    "write a verdict into /proc/PID/fd of judge and keepers": """
written = []
for pid in family():
    for name in range(64):
        try:
            handle = os.open(f"//proc/{pid}/fd/{name}", os.O_WRONLY | os.O_NONBLOCK)
            if os.readlink(f"//proc/{pid}/fd/{name}").startswith("pipe:"):
                written.append(os.write(handle, forged()[0]))
        except OSError:
            pass
return f"wrote into {len(written)} pipes, and ended {silence()} processes" if written else ""
""",
    "take the judge's descriptors (pidfd_getfd)": """
taken = []
for pid in family():
    try:
        process = system(434, pid, 0)
        for name in range(64):
            try:
                handle = system(438, process, name, 0)
            except OSError:
                continue
            taken.append(handle)
            try:
                os.write(handle, forged()[0])
            except OSError:
                pass
    except OSError:
        pass
return f"took {len(taken)} descriptors, and ended {silence()} processes" if taken else ""
""",
    "take the judge's descriptors while it starts": """
import time
end = time.monotonic() + 1
while time.monotonic() < end:
    for pid in family():
        for name in range(3, 16):
            try:
                process = system(434, pid, 0)
                handle = system(438, process, name, 0)
                if os.readlink(f"//proc/self/fd/{handle}").startswith("pipe:") and os.write(handle, forged()[2]):
                    return f"took one, and ended {silence()} processes"
            except OSError:
                pass
""",
    "read the checks in the judge's memory (/proc as text, //proc, bytes)": """
for proc in ("/proc", "//proc", b"/proc"):
    slash = "/" if isinstance(proc, str) else b"/"
    ask = (lambda text: text) if isinstance(proc, str) else str.encode
    try:
        for pid in family(proc):
            try:
                with open(proc + slash + ask(f"{pid}/maps"), "rb") as file:
                    spans = [line.split()[0].split(b"-") for line in file if b"rw-p" in line]
                memory = os.open(proc + slash + ask(f"{pid}/mem"), os.O_RDONLY)
                for begin, end in spans:
                    place, size = int(begin, 16), int(end, 16) - int(begin, 16)
                    if size < 2 ** 25 and FIELD["marker"].encode()[::-1] in os.pread(memory, size, place):
                        return "read the checks"
            except OSError:
                pass
    except PermissionError:
        pass
""",
    "read the judge's memory (process_vm_readv)": """
import ctypes
class Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))
room = ctypes.create_string_buffer(16)
for pid in family():
    with open(f"//proc/{pid}/maps", "rb") as file:
        begin = int(file.readline().split(b"-")[0], 16)
    here, there = Part(ctypes.addressof(room), 16), Part(begin, 16)
    if system(310, pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0:
        return "read another process"
""",
    "attach to the judge (ptrace)": """
for pid in family():
    try:
        system(101, 16, pid, 0, 0)
        os.waitpid(pid, 0)
        system(101, 17, pid, 0, 0)
        return "attached"
    except OSError:
        pass
""",
    "find the checks on the disk": """
for folder, _, names in os.walk(FIELD["temporary"]):
    for name in names:
        if "jaxsink" in folder:
            with open(os.path.join(folder, name), "rb") as file:
                if FIELD["marker"].encode()[::-1] in file.read(2 ** 20):
                    return "found the checks"
""",
    "end a check's iteration early (StopIteration)": """
global add
def add(a, b):
    raise StopIteration
""",
    "kill judge and keepers": """
ended = silence()
return f"killed {ended} processes" if ended else ""
""",
}
PROCESSES = {
    "signal a process of the same user (kill)": """
os.kill(FIELD["victim"], 15)
return "signalled"
""",
    "signal it by a pidfd": """
system(424, system(434, FIELD["victim"], 0), 15, None, 0)
return "signalled"
""",
    "may signal everybody (kill -1, with signal 0)": """
os.kill(-1, 0)
return "may"
""",
    "stop the keeper's group, leave the session, clear the death signal, live on": """
import time
libc().prctl(1, 0, 0, 0, 0)
os.kill(0, 19)
os.setsid()
while True:
    time.sleep(1)
""",
    "twice forked, in a session of its own": """
import time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(20)
    os._exit(0)
return "forked"
""",
    "a child (fork)": """
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
return "forked"
""",
    "many children (a fork bomb of 20)": """
made = 0
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(0)
    made += 1
return f"{made} children"
""",
    "a thread": """
import threading
threading.Thread(target=print).start()
return "started"
""",
    "a shell (subprocess)": """
import subprocess
subprocess.run(["/bin/sh", "-c", "exit 7"])
return "ran a shell"
""",
    "a shell (posix_spawn)": """
child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], {})
os.waitpid(child, 0)
return "ran a shell"
""",
    "another program in its place (exec)": """
import ctypes
words = (ctypes.c_char_p * 2)(b"true", None)
try:
    os.execv("/bin/true", ["true"])
except PermissionError:
    system(59, b"/bin/true", words, None)
""",
    "clear its death signal (prctl)": """
checked(libc().prctl(1, 0, 0, 0, 0))
return "cleared"
""",
    "take processors away from another process (sched_setaffinity)": """
os.sched_setaffinity(FIELD["victim"], os.sched_getaffinity(FIELD["victim"]))
return "set"
""",
    "change another's limits (prlimit)": """
import resource
soft, hard = resource.prlimit(FIELD["victim"], resource.RLIMIT_CORE)
resource.prlimit(FIELD["victim"], resource.RLIMIT_CORE, (0, hard))
return "set"
""",
    "change another's priority": """
os.setpriority(os.PRIO_PROCESS, FIELD["victim"], 5)
return "set"
""",
}
