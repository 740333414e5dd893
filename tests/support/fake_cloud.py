"""A stand-in for Google Cloud that keeps state: requests, TPU VMs, buckets, rights and a bill, under a clock of its own.

The programs `gcloud` and `sleep` of tpu_stand_in.py ask it over a socket. The clock moves only when something here sleeps or
asks. A VM is a folder: its startup script and the commands given by ssh are really executed there. Only the flags that the
Google Cloud SDK documents for a command are accepted.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
import shutil
import signal
import socket
import socketserver
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

TPU_API = "tpu.googleapis.com"
CREATE = {
    "node-id",
    "zone",
    "accelerator-type",
    "runtime-version",
    "network",
    "subnetwork",
    "service-account",
    "scopes",
    "labels",
    "metadata-from-file",
    "async",
    "valid-until-duration",
    "spot",
    "internal-ips",
}
SSH = {"zone", "command", "ssh-flag"}
FLAGS: dict[str, set[str]] = {
    "compute tpus queued-resources create": CREATE,
    "alpha compute tpus queued-resources create": CREATE | {"provisioning-model", "max-run-duration"},
    "compute tpus queued-resources describe": {"zone", "format"},
    "compute tpus queued-resources delete": {"zone", "force", "async"},
    "compute tpus tpu-vm describe": {"zone", "format"},
    "compute tpus tpu-vm delete": {"zone"},
    "compute tpus tpu-vm ssh": SSH,
    "compute tpus tpu-vm scp": {"zone"},
    "alpha compute tpus tpu-vm ssh": SSH | {"tunnel-through-iap"},
    "alpha compute tpus tpu-vm scp": {"zone", "tunnel-through-iap"},
    "storage ls": set(),
    "storage cp": set(),
    "storage rsync": {"recursive"},
    "storage rm": {"recursive"},
    "storage du": {"summarize", "readable-sizes"},
    "storage buckets describe": set(),
    "storage buckets create": {"location", "uniform-bucket-level-access"},
    "storage buckets add-iam-policy-binding": {"member", "role"},
    "services enable": set(),
    "iam service-accounts describe": set(),
    "iam service-accounts create": {"display-name"},
    "projects add-iam-policy-binding": {"member", "role", "condition"},
    "projects get-iam-policy": {"flatten", "filter", "format"},
    "auth application-default print-access-token": set(),
    "config get-value": set(),
}
WIDE = {"quiet", "project"}
ACCOUNT = "jaxsink-tpu@p.iam.gserviceaccount.com"
RIGHTS = [f"{ACCOUNT} roles/tpu.admin", f"{ACCOUNT} roles/storage.objectAdmin"]


class RefusedError(Exception):
    """What gcloud answers with an error; `code` is its exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Request:
    """A queued resource."""

    owner: str
    made: int
    wait: int | None  # seconds until there is capacity; None: there never is
    valid: int  # seconds until it expires
    longest: int | None = None  # seconds after which a flex-start VM is deleted
    spot: bool = False
    account: str = ""
    startup: str = ""
    state: str = "WAITING_FOR_RESOURCES"


@dataclass
class Node:
    """A TPU VM."""

    since: int
    account: str
    end: int | None  # seconds until it is preempted or ended
    state: str = "READY"


@dataclass
class Trouble:
    """Commands of this form fail so many times."""

    command: str
    error: str
    times: int = 1
    code: int = 1


@dataclass
class Call:
    """A command as it was given; `vm` is the folder of the VM that gave it, or empty."""

    vm: str
    folder: str
    words: list[str]
    flags: dict[str, str] = field(default_factory=dict)


def seconds_of(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def kill_vm(home: Path) -> None:
    """End all processes of a VM."""
    mark = f"FAKE_VM={home}".encode()
    for entry in glob.glob("/proc/[0-9]*/environ"):
        try:
            if mark in Path(entry).read_bytes().split(b"\0"):
                os.kill(int(entry.split("/")[2]), signal.SIGKILL)
        except OSError:
            continue  # ended by itself, or not ours


def parse(arguments: list[str]) -> tuple[str, list[str], dict[str, str]]:
    """(command, its words, its flags); a flag that the command does not have is an error, as in gcloud."""
    flags = {name: value for name, _, value in (word[2:].partition("=") for word in arguments if word.startswith("--"))}
    words = [word for word in arguments if not word.startswith("--")]
    for length in range(len(words), 0, -1):
        command = " ".join(words[:length])
        if command in FLAGS:
            unknown = set(flags) - FLAGS[command] - WIDE
            if unknown:
                raise RefusedError(f"unrecognized arguments: {sorted(unknown)} of {command}", 2)
            return command, words[length:], flags
    raise RefusedError(f"Invalid choice: {words}", 2)


class Cloud:
    """All of it; a test reads and changes the attributes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.apis, self.accounts, self.rights = [TPU_API], [ACCOUNT], list(RIGHTS)
        self.requests: dict[str, Request] = {}
        self.nodes: dict[str, Node] = {}
        self.billed = 0  # seconds
        self.waits: list[int | None] = []  # of the next requests
        self.preempt: list[int] = []  # seconds that the next spot VMs last
        self.troubles: list[Trouble] = []
        self.race = False  # somebody else is a moment faster
        self.block: tuple[str, float] = ("", 0.0)  # the next command of this form hangs so long
        self.blocked = threading.Event()
        self.calls: list[str] = []
        self.lock = threading.RLock()
        self.set_clock(1_000_000)

    def set_clock(self, now: int) -> None:
        self.now = now
        (self.folder / "now.new").write_text(str(now))
        os.replace(self.folder / "now.new", self.folder / "now")

    def pass_time(self, seconds: int) -> None:
        with self.lock:
            self.set_clock(self.now + seconds)
            self.bring_up_to_date()

    @property
    def empty(self) -> bool:
        return not self.requests and not self.nodes

    def asked(self, part: str) -> int:
        return sum(part in call for call in self.calls)

    def home(self, name: str) -> Path:
        return self.folder / "vms" / name

    def environment(self, name: str) -> dict[str, str]:
        home = str(self.home(name))
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {"PATH": path, "FAKE": str(self.folder), "HOME": home, "FAKE_VM": home, "JAXSINK_STATE": f"{home}/state"}

    # What Google does by itself: capacity comes, requests expire, VMs are preempted or reach their end.

    def bring_up_to_date(self) -> None:
        for name, request in self.requests.items():
            age = self.now - request.made
            if request.state == "WAITING_FOR_RESOURCES":
                if request.wait is not None and age >= request.wait:
                    self.begin_node(name, request)
                elif age >= request.valid:
                    request.state = "FAILED"
            elif request.state == "ACTIVE":
                node = self.nodes.get(name)
                if node is None or (node.end is not None and self.now - node.since >= node.end):
                    request.state = "SUSPENDED"
                    self.end_node(name)

    def begin_node(self, name: str, request: Request) -> None:
        request.state = "ACTIVE"
        home = self.home(name)
        shutil.rmtree(home, ignore_errors=True)
        (home / "state").mkdir(parents=True)
        end = self.preempt.pop(0) if self.preempt and request.spot else request.longest
        self.nodes[name] = Node(self.now, request.account, end)
        (home / "startup").write_text(request.startup)
        subprocess.run(["bash", home / "startup"], env=self.environment(name), check=True, stdin=subprocess.DEVNULL)

    def end_node(self, name: str) -> None:
        node = self.nodes.pop(name, None)
        if node:
            self.billed += self.now - node.since
            kill_vm(self.home(name))

    # What is asked of it.

    def create(self, name: str, flags: dict[str, str]) -> str:
        if TPU_API not in self.apis:
            raise RefusedError(
                "PERMISSION_DENIED: Cloud TPU API has not been used in project p before or it is disabled."
            )
        if flags["service-account"] not in self.accounts:
            raise RefusedError(f"INVALID_ARGUMENT: service account {flags['service-account']} does not exist")
        if self.race:
            self.requests[name] = Request("somebody", self.now, None, 10**9)
        if name in self.requests or flags["node-id"] in self.nodes:
            raise RefusedError(f"ALREADY_EXISTS: Resource '{name}' already exists")
        self.requests[name] = Request(
            owner=flags["labels"].split("=")[1],
            made=self.now,
            wait=self.waits.pop(0) if self.waits else 60,
            valid=seconds_of(flags["valid-until-duration"]),
            longest=seconds_of(flags["max-run-duration"]) if "max-run-duration" in flags else None,
            spot="spot" in flags,
            account=flags["service-account"],
            startup=Path(flags["metadata-from-file"].split("=", 1)[1]).read_text(),
        )
        return f"Create request issued for: [{name}]"

    def describe(self, kind: str, name: str, fields: str) -> str:
        found = self.requests.get(name) if kind == "queued-resources" else self.nodes.get(name)
        if found is None:
            raise RefusedError(f"NOT_FOUND: Resource 'projects/p/locations/z/{name}' was not found")
        return str(getattr(found, "owner" if fields.endswith("owner)") else "state"))

    def delete(self, kind: str, name: str, call: Call) -> str:
        if call.vm and f"{self.account_of(call)} roles/tpu.admin" not in self.rights:
            raise RefusedError("PERMISSION_DENIED: tpu.queuedresources.delete")
        self.describe(kind, name, "value(state)")
        if kind == "queued-resources":
            if self.requests[name].state == "ACTIVE" and "force" not in call.flags:
                raise RefusedError("FAILED_PRECONDITION: the queued resource has nodes")
            del self.requests[name]
        self.end_node(name)
        return f"Deleted [{name}]."

    def account_of(self, call: Call) -> str:
        node = self.nodes.get(Path(call.vm).name)
        return node.account if node else "nobody"

    def reach(self, verb: str, call: Call) -> None:
        """Checks of ssh and scp; a command is executed when the state is free again."""
        name, _, target = (call.words[-1] if verb == "scp" else call.words[0]).partition(":")
        if name not in self.nodes:
            raise RefusedError(f"[/usr/bin/ssh] exited with return code [255]: {name} cannot be reached", 255)
        if verb == "scp":
            for file in call.words[:-1]:
                shutil.copy(file, self.home(name) / target)

    def storage(self, verb: str, call: Call) -> str:
        if call.vm and f"{self.account_of(call)} roles/storage.objectAdmin" not in self.rights:
            raise RefusedError("403: the service account may not use the bucket")
        paths = [word.replace("gs://", f"{self.folder}/buckets/") for word in call.words]
        paths = [os.path.join(call.folder, path) for path in paths]
        if verb == "ls" and not glob.glob(paths[0]):
            raise RefusedError("One or more URLs matched no objects.")
        if verb == "cp":
            os.makedirs(paths[-1], exist_ok=True)
            for path in (file for pattern in paths[:-1] for file in glob.glob(pattern)):
                shutil.copy(path, paths[-1])
        if verb == "rsync":
            shutil.copytree(paths[0], paths[1], dirs_exist_ok=True)
        if verb == "du" and os.path.exists(paths[0]):
            return (
                f"{sum(file.stat().st_size for file in Path(paths[0]).rglob('*') if file.is_file())}B {call.words[0]}"
            )
        return ""

    def buckets(self, verb: str, call: Call) -> str:
        folder = self.folder / "buckets" / call.words[0].removeprefix("gs://")
        if verb == "create":
            folder.mkdir(parents=True)
        elif not folder.is_dir():
            raise RefusedError(f"{call.words[0]} not found: 404.")
        return self.grant(call.flags) if verb == "add-iam-policy-binding" else ""

    def grant(self, flags: dict[str, str]) -> str:
        account = flags["member"].removeprefix("serviceAccount:")
        if account not in self.accounts:
            raise RefusedError(f"INVALID_ARGUMENT: {account} does not exist")
        self.rights.append(f"{account} {flags['role']}")
        return ""

    def administer(self, command: str, call: Call) -> str:
        if command == "services enable":
            self.apis += call.words
        elif command == "iam service-accounts describe" and call.words[0] not in self.accounts:
            raise RefusedError("NOT_FOUND: Unknown service account")
        elif command == "iam service-accounts create":
            self.accounts.append(f"{call.words[0]}@p.iam.gserviceaccount.com")
        elif command == "projects add-iam-policy-binding":
            return self.grant(call.flags)
        elif command == "projects get-iam-policy":
            account = call.flags["filter"].split("serviceAccount:")[1]
            return "\n".join(right.split()[1] for right in self.rights if right.startswith(account))
        return "p" if command == "config get-value" else ""

    def answer(self, command: str, call: Call) -> str:
        kind, verb = command.split()[-2:]
        if kind in ("queued-resources", "tpu-vm"):
            if verb == "create":
                return self.create(call.words[0], call.flags)
            if verb == "describe":
                return self.describe(kind, call.words[0], call.flags["format"])
            if verb == "delete":
                return self.delete(kind, call.words[0], call)
            self.reach(verb, call)
            return ""
        if kind == "storage":
            return self.storage(verb, call)
        return self.buckets(verb, call) if kind == "buckets" else self.administer(command, call)

    def gcloud(self, call: Call, alive: socket.socket) -> tuple[int, str, str]:
        """(exit code, output, errors) of a command."""
        line = shlex.join(call.words)
        self.calls.append(f"{'VM' if call.vm else 'here'}: gcloud {line}")
        try:
            command, call.words, call.flags = parse(call.words)
            form, seconds = self.block
            if form and re.search(form, line):
                self.block = ("", 0.0)
                self.blocked.set()
                alive.settimeout(seconds)
                try:
                    if not alive.recv(1):  # a signal ended the program before its command got here
                        return 130, "", ""
                except TimeoutError:
                    alive.settimeout(None)
            with self.lock:
                if not call.vm:
                    self.set_clock(self.now + 2)
                self.bring_up_to_date()
                for trouble in self.troubles:
                    if trouble.times > 0 and re.search(trouble.command, line):
                        trouble.times -= 1
                        raise RefusedError(trouble.error, trouble.code)
                text = self.answer(command, call)
        except RefusedError as error:
            return error.code, "", f"ERROR: (gcloud) {error}"
        return self.execute(call) if command.endswith("tpu-vm ssh") else (0, text, "")

    def execute(self, call: Call) -> tuple[int, str, str]:
        name = call.words[0]
        done = subprocess.run(
            ["bash", "-c", call.flags.get("command", "true")],
            cwd=self.home(name),
            env=self.environment(name),
            text=True,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            capture_output=True,
        )
        return done.returncode if done.returncode >= 0 else 255, done.stdout, done.stderr


class Handler(socketserver.StreamRequestHandler):
    """Fields, each ended by a zero byte: folder of the VM, working directory, number of words, the words."""

    def read(self) -> str:
        text = bytearray()
        while (byte := self.rfile.read(1)) not in (b"\0", b""):
            text += byte
        return text.decode()

    def handle(self) -> None:
        cloud: Cloud = self.server.cloud  # type: ignore[attr-defined]
        vm, folder = self.read(), self.read()
        words = [self.read() for _ in range(int(self.read() or 0))]
        if not words:
            return
        if words[0] == "sleep":
            cloud.pass_time(int(words[1]))
            code, output, errors = 0, "", ""
        else:
            code, output, errors = cloud.gcloud(Call(vm, folder, words[1:]), self.connection)
        lines = [f"1 {line}" for line in output.splitlines()] + [f"2 {line}" for line in errors.splitlines()]
        with contextlib.suppress(OSError):  # a signal ended the program
            self.wfile.write(("\n".join([*lines, f"0 {code}"]) + "\n").encode())


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cloud = cloud
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
