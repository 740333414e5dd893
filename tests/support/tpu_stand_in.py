"""A machine, and VMs, on which docs/tpu/ finds programs that only pretend: gcloud, jaxsink, pip, uv, the clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from support.fake_cloud import Cloud, Server, kill_vm
from support.paths import ROOT

TPU = ROOT / "docs" / "tpu"

# Asks fake_cloud.py; the answer's lines begin with 1 (output), 2 (errors) or 0 (exit code).
ASK = """exec 3<>"/dev/tcp/127.0.0.1/$(<"$FAKE/port")"
printf '%s\\0' "${FAKE_VM:-}" "$PWD" $(($# + 1)) "${0##*/}" "$@" >&3
while IFS= read -r line <&3; do
  case $line in
    1*) printf '%s\\n' "${line:2}" ;;
    2*) printf '%s\\n' "${line:2}" >&2 ;;
    0*) exit "${line:2}" ;;
  esac
done
exit 255"""
SLEEP = f"""if [[ -n ${{FAKE_VM:-}} ]]; then exec /bin/sleep 0.03; fi # a VM's programs only follow the clock
/bin/sleep 0.03
{ASK}"""
DATE = """if [[ $* == +%s ]]; then echo "$(<"$FAKE/now")"; else exec /bin/date "$@"; fi"""
SYSTEMD_RUN = """while [[ $1 == --* ]]; do shift; done
setsid "$@" >"$FAKE_VM/watchdog.log" 2>&1 </dev/null &"""
# pip makes a wheel here; on the VM, uv makes an environment whose Python finds the JAX below.
PYTHON = f"""case "$*" in
  "-m pip wheel"*) mkdir -p "$7" && touch "$7/jaxsink-0-py3-none-any.whl" ;;
  "-m uv venv"*)
    mkdir -p venv/bin
    printf '#!/bin/sh\\nPYTHONPATH="$FAKE/jax" exec "{sys.executable}" -S "$@"\\n' >venv/bin/python
    chmod +x venv/bin/python ;;
esac"""
JAXSINK = """echo "jaxsink $*" >>"$FAKE/jaxsink-calls"
if [[ $1 == convert ]]; then
  mkdir -p "$HF_HOME" "$TMPDIR"
  if [[ -e $FAKE/no-convert ]]; then exit 1; fi
  to=$FAKE/buckets/${3#gs://}
  mkdir -p "$to" && echo {} >"$to/jaxsink.json"
elif [[ $1 == evaluate && $* != *--summary* ]]; then
  out=$5
  echo "asking the first question"
  source "$FAKE/evaluate.sh"
fi"""
DF = "echo Avail; echo 97000000"  # never the disk of the machine that runs the tests
JAX = """import os, pathlib
class Device:
    platform, count = pathlib.Path(os.environ["FAKE"], "devices").read_text().split()
def devices(): return [Device()] * int(Device.count)
"""


class Machine:
    """Where docs/tpu/tpu.sh runs; `cloud` is what it finds at Google."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = folder / "buckets" / "b"
        for name in ("bin", "jax", "buckets/b", "vms"):
            (folder / name).mkdir(parents=True)
        programs = {"gcloud": ASK, "sleep": SLEEP, "date": DATE, "systemd-run": SYSTEMD_RUN, "python3": PYTHON}
        for name, text in (programs | {"jaxsink": JAXSINK, "df": DF}).items():
            (folder / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (folder / "bin" / name).chmod(0o755)
        (folder / "jax" / "jax.py").write_text(JAX)
        (folder / "devices").write_text("tpu 8")
        self.evaluate('echo {} >>"$out/results-0001.jsonl"; echo {} >"$out/manifest.json"')
        self.cloud = Cloud(folder)
        self.server = Server(self.cloud)
        (folder / "port").write_text(str(self.server.server_address[1]))
        self.environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "FAKE": str(folder),
            "BUCKET": "gs://b/j",
            "TMPDIR": str(folder),
        }

    def evaluate(self, script: str) -> None:
        """What `jaxsink evaluate` does on a VM; $out is its directory."""
        (self.folder / "evaluate.sh").write_text(script)

    @property
    def jaxsink_calls(self) -> list[str]:
        file = self.folder / "jaxsink-calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def log(self) -> str:
        return "".join(file.read_text() for file in self.folder.glob("tpu-*.log"))

    @property
    def alive(self) -> int:
        """When the VM last said that it works."""
        return int((self.folder / "vms" / "jaxsink" / "state" / "alive").read_text() or 0)

    def start(self, *words: str, script: str = "tpu.sh", **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [TPU / script, *words],
            env=self.environment | variables,
            cwd=self.folder,
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, *words: str, code: int = 0, **variables: str) -> str:
        """What a command of tpu.sh prints."""
        process = self.start(*words, **variables)
        text, _ = process.communicate(timeout=120)
        assert process.returncode == code, text + self.log
        return text

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, self.log
            time.sleep(0.01)

    def wait_for(self, file: str) -> None:
        self.wait(lambda: (self.folder / file).exists())

    def signal(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        """As a terminal does it: to the program and all it has started here."""
        os.killpg(process.pid, number)

    def die(self, process: subprocess.Popen[str]) -> None:
        """This machine loses its power; the VMs do not."""
        self.signal(process, signal.SIGKILL)
        process.communicate(timeout=60)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        for home in (self.folder / "vms").iterdir():
            kill_vm(home)


@contextmanager
def stand_in(folder: Path) -> Iterator[Machine]:
    machine = Machine(folder)
    try:
        yield machine
    finally:
        machine.close()
