"""docs/tpu.md and its scripts: our commands parse, and the scripts do what they say, with a stand-in for gcloud."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from jaxsink.cli import build_parser
from jaxsink.evals.settings import SETTINGS

DOCS = Path(__file__).parent.parent / "docs"
SCRIPTS = sorted((DOCS / "tpu").glob("*.sh"))
TEXT = (DOCS / "tpu.md").read_text(encoding="utf-8")
KNOWN = {"inspect", *(command.name for command in entry_points(group="jaxsink.commands"))}

# A bucket is a folder; the states of a queued resource are lines of a file; everything that is asked is written down.
GCLOUD = r"""#!/usr/bin/env bash
set -euo pipefail
echo "gcloud $*" >>"$FAKE/log"
words=()
for word in "$@"; do [[ $word == --* ]] || words+=("${word/gs:\/\//$FAKE/}"); done
case "$*" in
  "storage ls"*) [[ -e ${words[2]} ]] ;;
  "storage cp"*) mkdir -p "${words[-1]}" && cp ${words[@]:2} ;;
  "storage rsync"*) mkdir -p "${words[3]}" && cp -r "${words[2]}/." "${words[3]}" ;;
  *"queued-resources describe"*)
    state=$(head -n 1 "$FAKE/states")
    sed -i 1d "$FAKE/states"
    [[ $state == none ]] && exit 1
    echo "$state" ;;
  *ssh*run.sh*) eval "${FAKE_RUN:-true}" ;;
esac
"""
JAXSINK = """#!/usr/bin/env bash
echo "jaxsink $*" >>"$FAKE/log"
eval "${FAKE_JAXSINK:-true}"
"""


class Machine:
    """A machine on which the scripts find a bucket, a gcloud and a jaxsink that only pretend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = folder / "b"
        (folder / "bin").mkdir()
        for name, text in (("gcloud", GCLOUD), ("jaxsink", JAXSINK)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self.environment = {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "HOME": str(folder), "FAKE": str(folder),
            "BUCKET": "gs://b", "PAUSE": "0",
        }  # fmt: skip

    def start(self, script: str, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [DOCS / "tpu" / script, *words], env=self.environment | variables, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, script: str, *words: str, code: int = 0, **variables: str) -> list[str]:
        """The commands that a script gave."""
        (self.folder / "log").unlink(missing_ok=True)
        process = self.start(script, *words, **variables)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == code, errors
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def put(self, name: str, text: str = "") -> None:
        path = self.bucket / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def check(command: str) -> None:
    """A command of ours parses, and names a setting that exists."""
    words = shlex.split(command, comments=True)[1:]
    if words[0] not in KNOWN:
        assert words[0] == "plan"  # comes with another part of the project
        return
    args = build_parser().parse_args(words)
    if words[0] == "evaluate":
        assert args.setting in SETTINGS
        assert args.summary or args.allow_code_execution == ("humaneval" in args.setting)


def test_commands_in_the_text_parse() -> None:
    blocks = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    ours = [line for block in blocks for line in block.splitlines() if line.startswith("jaxsink ")]
    assert len(ours) >= 7
    for line in ours:
        check(line)
    for script in re.findall(r"(?:docs/tpu|jaxsink-tpu)/(\w+\.sh)", TEXT):
        assert (DOCS / "tpu" / script).exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_strict_and_sound(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    if script.name != "settings.sh":
        assert os.access(script, os.X_OK) and "\nset -euo pipefail\n" in script.read_text()


@pytest.mark.parametrize(
    ("kind", "accelerator", "runtime"),
    [
        ("v5e-8", "v5litepod-8", "v2-alpha-tpuv5-lite"),
        ("v6e-8", "v6e-8", "v2-alpha-tpuv6e"),
        ("v4-8", "v4-8", "tpu-ubuntu2204-base"),
    ],
)
def test_create(machine: Machine, kind: str, accelerator: str, runtime: str) -> None:
    assert re.search(rf"\| `{kind}` \|.*\| `{accelerator}` \| `{runtime}` \|", TEXT)
    where = f"--zone=z --accelerator-type={accelerator}"
    (now,) = machine.run("create.sh", "now", KIND=kind, ZONE="z")
    assert now == f"gcloud compute tpus tpu-vm create jaxsink {where} --version={runtime}"
    (queued,) = machine.run("create.sh", "queued", KIND=kind, ZONE="z")
    assert queued == (
        f"gcloud compute tpus queued-resources create jaxsink --node-id=jaxsink {where} --runtime-version={runtime}"
    )
    assert machine.run("create.sh", "spot", KIND=kind, ZONE="z") == [f"{queued} --spot"]


def test_bad_words_are_refused(machine: Machine) -> None:
    assert machine.run("create.sh", "later", code=2) == []
    assert machine.run("create.sh", "now", KIND="v9-8", code=2) == []
    assert machine.run("convert.sh", "gpt-5", code=2) == []


@pytest.mark.parametrize("model", sorted({name.split("/")[0] for name in SETTINGS if name.endswith("/study")}))
def test_convert(machine: Machine, model: str) -> None:
    (line,) = machine.run("convert.sh", model)
    assert f" gs://b/models/{model} --dtype bfloat16 --verify" in line
    check(line)


def test_run_copies_answers_to_the_bucket_and_takes_them_up_again(machine: Machine) -> None:
    write = 'echo {} >>"$HOME/runs/llada-8b-instruct-humaneval/results-0002.jsonl"'
    machine.put("runs/llada-8b-instruct-humaneval/manifest.json", "{}")
    machine.put("runs/llada-8b-instruct-humaneval/results-0001.jsonl", "theirs\n")
    machine.put("runs/llada-8b-instruct-humaneval/results-0002.jsonl", "earlier\n")
    words = ("llada-8b-instruct", "humaneval", "2/4", "--rows", "40")
    log = machine.run("run.sh", *words, KIND="v4-8", FAKE_JAXSINK=write)
    (line,) = [line for line in log if line.startswith("jaxsink")]
    check(line)
    assert "--mesh 2x2 --shard 2/4 --allow-code-execution --rows 40" in line and "gs://b/models/llada-8b" in line
    there = machine.bucket / "runs" / "llada-8b-instruct-humaneval"
    assert (there / "results-0002.jsonl").read_text() == "earlier\n{}\n"
    assert (there / "finished-0002").exists()
    assert not any("results-0001" in line for line in log if "storage cp --quiet" in line)  # not ours to write
    log = machine.run("run.sh", *words, FAKE_JAXSINK="exit 2", code=2)  # the local files are newer: nothing is fetched
    assert not any("storage cp gs://" in line for line in log)


def test_a_run_that_is_terminated_copies_what_it_has(machine: Machine) -> None:
    out = machine.folder / "runs" / "llada-8b-instruct-gsm8k"
    wait = (
        f"echo {{}} >{out}/results-0001.jsonl; trap 'exit 143' TERM; touch {out}/going; while true; do sleep 0.1; done"
    )
    process = machine.start("run.sh", "llada-8b-instruct", "gsm8k", FAKE_JAXSINK=wait)
    end = time.monotonic() + 30
    while not (out / "going").exists() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    there = machine.bucket / "runs" / "llada-8b-instruct-gsm8k"
    assert (there / "results-0001.jsonl").exists() and not (there / "finished-0001").exists()


def test_keep_makes_new_machines_until_the_run_is_finished(machine: Machine) -> None:
    (machine.folder / "bin" / "python3").write_text('#!/bin/sh\ntouch "$7/jaxsink-0-py3-none-any.whl"\n')
    (machine.folder / "bin" / "python3").chmod(0o755)
    (machine.folder / "states").write_text("none\nWAITING_FOR_RESOURCES\nACTIVE\nSUSPENDED\nnone\nACTIVE\n")
    run = (
        'if [[ -e $FAKE/once ]]; then mkdir -p "$FAKE/b/runs/m-gsm8k"; touch "$FAKE/b/runs/m-gsm8k/finished-0001"; '
        'else touch "$FAKE/once"; exit 255; fi'
    )
    log = machine.run("keep.sh", "m", "gsm8k", ZONE="z", FAKE_RUN=run)
    kinds = ("resources create", "resources delete", "run.sh m gsm8k 1/1", "uv venv")
    done = [kind for line in log for kind in kinds if kind in line]
    once = ["resources create", "uv venv", "run.sh m gsm8k 1/1"]
    assert done == [*once, "resources delete", *once]
    (machine.bucket / "runs" / "m-gsm8k" / "finished-0001").unlink()
    (machine.folder / "states").write_text("ACTIVE\n")
    machine.run("keep.sh", "m", "gsm8k", code=2, FAKE_RUN="exit 2")


def test_collect(machine: Machine) -> None:
    machine.put("runs/llama-3.1-8b-instruct-gsm8k/manifest.json")
    machine.put("runs/dream-7b-instruct-humaneval/manifest.json")
    lines = [line for line in machine.run("collect.sh", "home") if line.startswith("jaxsink")]
    for line in lines:
        check(line)
    assert "dream-7b-instruct/humaneval/study --out home/dream-7b-instruct-humaneval --summary" in lines[0]
    assert "llama-3.1-8b-instruct/gsm8k/study" in lines[1] and lines[2].endswith("--out table1")
    assert (machine.folder / "home" / "llama-3.1-8b-instruct-gsm8k" / "manifest.json").exists()
