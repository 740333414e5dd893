"""Attacks through the network and the kernel; see programs.py."""

from __future__ import annotations


def kernel(number: int, *values: object) -> str:
    """A call by its number on x86_64, which counts as done if it is not refused."""
    return f"return 'call {number} gave %d' % system({', '.join(map(repr, (number, *values)))})"


NETWORK = {
    "TCP to this machine": """
import socket
socket.create_connection(("127.0.0.1", FIELD["port"]), timeout=2).close()
return "connected"
""",
    "a socket file": """
import socket
socket.socket(socket.AF_UNIX).connect(FIELD["socket"])
return "connected"
""",
    "an abstract socket": """
import socket
socket.socket(socket.AF_UNIX).connect("\\0" + FIELD["abstract"])
return "connected"
""",
    "to the host of a virtual machine (AF_VSOCK)": 'import socket\nsocket.socket(40, socket.SOCK_STREAM)\nreturn "made"',
    "the kernel's own (AF_NETLINK)": 'import socket\nsocket.socket(16, socket.SOCK_RAW)\nreturn "made"',
    "its cryptography (AF_ALG)": 'import socket\nsocket.socket(38, socket.SOCK_SEQPACKET)\nreturn "made"',
}
TRACES = {
    "a key in a keyring": """
key = system(248, b"user", FIELD["shared"].encode(), b"x", 1, -4)
system(250, 9, key, -4, 0, 0)
return "left"
""",
    "a message queue of System V": """
queue = system(68, 0, 0o1600)
system(71, queue, 0, None)
return "made"
""",
    "a POSIX message queue": """
handle = system(240, FIELD["shared"].encode(), os.O_CREAT | os.O_RDWR, 0o600, None)
system(241, FIELD["shared"].encode())
return "made"
""",
    "a lock on a library's file": 'import fcntl\nfcntl.flock(open(os.__file__), fcntl.LOCK_SH)\nreturn "locked"',
    "environment variables of the run": 'return "found" if "JAXSINK_TEST_SECRET" in os.environ else ""',
}
PRIVILEGES = {
    "new user namespace (unshare)": kernel(272, 0x10000000),
    "new user namespace (clone)": """
child = system(56, 0x10000000 | 17, 0, 0, 0, 0)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
return "made"
""",
    "new network namespace": kernel(272, 0x40000000),
    "mount": 'checked(libc().mount(None, b"/", None, 32 | 4096, None))\nreturn "mounted"',
    "become root": 'os.setresuid(0, 0, 0)\nreturn "became root"',
    "be root": 'return "is root" if 0 in os.getresuid() else ""',
    "change root": 'os.chroot("/usr")\nreturn "changed"',
    "io_uring": kernel(425, 1, b"\0" * 120),
    "bpf": kernel(321, 0, b"\x02\0\0\0" * 4 + b"\0" * 100, 72),
    "userfaultfd": kernel(323, 1),
    "perf_event_open": kernel(298, b"\x01\0\0\0\x70\0\0\0" + b"\0" * 104, 0, -1, -1, 0),
    "open by handle": 'system(303, -100, b"/", b"\\x80" + b"\\0" * 200, b"\\0" * 8, 0)\nreturn "named"',
    "calls of 32 bits (int 0x80)": """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("53b814000000cd805bc3"))
start = ctypes.addressof(ctypes.c_char.from_buffer(page))
return "called %d" % ctypes.CFUNCTYPE(ctypes.c_int)(start)()
""",
    "calls of x32": kernel(0x40000000 | 39),
}
