"""docs/tpu.md and its scripts: our commands parse, and each script does what it says, on a stand-in for Google Cloud."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from support.fake_cloud import RIGHTS, Trouble
from support.tpu_stand_in import TPU, Machine, stand_in

from jaxsink.cli.main import build_parser
from jaxsink.evals.settings import SETTINGS

SCRIPTS = sorted(TPU.rglob("*.sh"))
TEXT = TPU.with_suffix(".md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
KNOWN = {"inspect", *(command.name for command in entry_points(group="jaxsink.commands"))}
MODELS = sorted({name.split("/")[0] for name in SETTINGS if name.endswith("/study")})


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with stand_in(tmp_path) as one:
        yield one


def check(command: str) -> None:
    """A command of ours parses, and names a setting that exists."""
    words = shlex.split(command, comments=True)[1:]
    assert words[0] in KNOWN
    args = build_parser().parse_args(words)
    if words[0] == "evaluate":
        assert args.setting in SETTINGS
        assert args.summary or args.allow_code_execution == ("humaneval" in args.setting)


def test_commands_in_the_text_parse() -> None:
    ours = [line for block in BLOCKS for line in block.splitlines() if line.startswith("jaxsink ")]
    assert len(ours) >= 7
    for line in ours:
        check(line)
    for script in re.findall(r"docs/(tpu/[\w/]+\.sh)", TEXT):
        assert (TPU.parent / script).exists()


@pytest.mark.slow
def test_blocks_with_tpu_sh_in_the_text_run(machine: Machine) -> None:
    """Every one, in its order, from the first setup to the last collect, as printed."""
    blocks = [block for block in BLOCKS if "docs/tpu/tpu.sh" in block]
    assert {"setup", "run", "create", "ssh", "status", "stop", "collect"} <= set(
        re.findall(r"tpu\.sh (\w+)", "".join(blocks))
    )
    machine.cloud.apis, machine.cloud.accounts, machine.cloud.rights = [], [], []
    (machine.folder / "docs").symlink_to(TPU.parent)
    for block in blocks:
        done = subprocess.run(
            ["bash", "-euc", block],
            env=machine.environment,
            cwd=machine.folder,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, block + done.stdout + done.stderr
    assert machine.cloud.empty
    finished = sorted(path.parent.name for path in machine.bucket.rglob("finished-0001"))
    assert finished == sorted(f"{model}-{benchmark}" for model in MODELS for benchmark in ("gsm8k", "humaneval"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_strict_and_sound(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text()
    assert max(map(len, text.splitlines())) <= 120
    if text.startswith("#!"):
        assert os.access(script, os.X_OK)
    if script.name not in ("settings.sh", "cloud.sh"):  # these are read by tpu.sh
        assert "\nset -euo pipefail\n" in text


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    subprocess.run(["shellcheck", "--external-sources", *SCRIPTS], check=True)


def test_help_names_every_command(machine: Machine) -> None:
    text = machine.run("--help", BUCKET="")
    assert machine.run() == text == machine.run("help")
    commands = re.search(r"\n  (setup \|.*)\) shift", (TPU / "tpu.sh").read_text())
    assert commands is not None
    for command in commands[1].split(" | "):
        assert f"\n  {command} " in text
    assert {
        line.split(" run ")[1].split()[0] for line in text.split("examples:")[1].splitlines() if " run " in line
    } <= set(MODELS)


@pytest.mark.parametrize(
    ("kind", "accelerator", "runtime", "devices", "mesh"),
    [
        ("v5e-8", "v5litepod-8", "v2-alpha-tpuv5-lite", "8", "4x2"),
        ("v6e-8", "v6e-8", "v2-alpha-tpuv6e", "8", "8x1"),
        ("v4-8", "v4-8", "tpu-ubuntu2204-base", "4", "2x2"),
    ],
)
def test_create(machine: Machine, kind: str, accelerator: str, runtime: str, devices: str, mesh: str) -> None:
    assert re.search(rf"\| `{kind}` \|.*\| `{accelerator}` \| `{runtime}` \| `{mesh}` \|", TEXT)
    (machine.folder / "devices").write_text(f"tpu {devices}")
    text = machine.run("create", KIND=kind, ZONE="z", MAX_HOURS="2", INTERNAL="yes", SUBNETWORK="s", NETWORK="n")
    (line,) = [line for line in machine.cloud.calls if "resources create" in line]
    for flag in (
        f"accelerator-type={accelerator}",
        f"runtime-version={runtime}",
        "zone=z",
        "subnetwork=s",
        "internal-ips",
    ):
        assert f" --{flag}" in line
    assert machine.cloud.asked("--tunnel-through-iap") > 0 and "is ready and bills" in text
    assert set(machine.cloud.nodes) == {"jaxsink"}
    machine.cloud.pass_time(2 * 3600)
    machine.wait(lambda: machine.cloud.empty)


@pytest.mark.parametrize(
    ("words", "variables", "sentence"),
    [
        (("fly",), {}, "no such command: fly"),
        (("status",), {"BUCKET": ""}, "set BUCKET"),
        (("status",), {"KIND": "v9-8"}, "KIND must be"),
        (("status",), {"HOW": "now"}, "HOW must be"),
        (("status",), {"HOW": "flex-start", "MAX_HOURS": "200"}, "at most 168 hours"),
        (("status",), {"HOW": "flex-start", "KIND": "v4-8"}, "no flex-start for v4"),
        (("status",), {"MAX_HOURS": "1.5"}, "MAX_HOURS must be a whole number"),
        (("status",), {"NAME": "My VM"}, "NAME must be"),
        (("run",), {}, "run needs MODEL"),
        (("run", "gpt-5", "gsm8k"), {}, "no such model: gpt-5"),
        (("run", "llada-8b-instruct", "mmlu"), {}, "the benchmark must be"),
        (("run", "llada-8b-instruct", "gsm8k", "5/4"), {}, "SHARD must be"),
    ],
)
def test_bad_words_are_refused(
    machine: Machine, words: tuple[str, ...], variables: dict[str, str], sentence: str
) -> None:
    assert sentence in machine.run(*words, code=2, **variables)
    assert machine.cloud.asked("resources") == 0


def test_setup_makes_what_a_run_needs_and_can_be_repeated(machine: Machine) -> None:
    machine.cloud.apis, machine.cloud.accounts, machine.cloud.rights = [], [], []
    shutil.rmtree(machine.bucket)
    for _ in range(2):
        assert "quota" in machine.run("setup")
    assert "tpu.googleapis.com" in machine.cloud.apis and set(machine.cloud.rights) == set(RIGHTS)
    assert machine.cloud.asked("buckets create gs://b --location=us-west4") == 1 and machine.bucket.is_dir()
    assert machine.cloud.asked("service-accounts create jaxsink-tpu") == 1
    machine.run("run", "llada-8b-instruct", "gsm8k")


class Vm:
    """A VM with a job, and its scripts, without a program elsewhere that watches it."""

    def __init__(self, machine: Machine, **job: str) -> None:
        self.machine, self.home = machine, machine.folder / "vms" / "vm"
        (self.home / "jaxsink-tpu").mkdir(parents=True)
        (self.home / "state").mkdir()
        shutil.copy(TPU / "vm" / "work.sh", self.home / "jaxsink-tpu")
        job = {"MODEL": "llada-8b-instruct", "SOURCE": "a/b", "BENCHMARK": "gsm8k", "SHARD": "1/1", "MESH": "4x2"} | job
        lines = [f"{key}={value}" for key, value in ({"BUCKET": "gs://b", "OPTIONS": "()"} | job).items()]
        (self.home / "jaxsink-tpu" / "job.sh").write_text("\n".join(lines))
        machine.cloud.rights.append("nobody roles/storage.objectAdmin")
        self.out = self.home / "runs" / f"{job['MODEL']}-{job['BENCHMARK']}"

    def work(self, word: str = "run") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.home / "jaxsink-tpu" / "work.sh", word],
            env=self.machine.cloud.environment("vm"),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, code: int = 0) -> str:
        process = self.work()
        text, _ = process.communicate(timeout=60)
        assert process.returncode == code, text
        return text


@pytest.mark.parametrize("model", MODELS)
def test_conversion(machine: Machine, model: str) -> None:
    hub_id = subprocess.run(
        ["bash", "-c", f"source {TPU}/settings.sh; hub_id {model}"], check=True, text=True, capture_output=True
    ).stdout.strip()
    vm = Vm(machine, MODEL=model, SOURCE=hub_id)
    vm.run()
    convert, evaluate = machine.jaxsink_calls
    assert convert == f"jaxsink convert {hub_id} gs://b/models/{model} --dtype bfloat16 --verify"
    check(convert)
    check(evaluate)
    assert not (vm.home / "jaxsink-tpu" / "scratch").exists()  # the published weights do not stay on the disk
    vm.run()
    assert len(machine.jaxsink_calls) == 3  # converted once


def test_a_full_disk_is_said_before_the_download(machine: Machine) -> None:
    (machine.folder / "bin" / "df").write_text("#!/bin/sh\necho Avail\necho 20000000\n")
    (machine.folder / "bin" / "df").chmod(0o755)
    assert "20 GB are free here, and converting llada-8b-instruct needs 50" in Vm(machine).run(code=2)
    assert not machine.jaxsink_calls


def test_work_copies_answers_to_the_bucket_and_takes_them_up_again(machine: Machine) -> None:
    vm = Vm(machine, BENCHMARK="humaneval", SHARD="2/4", OPTIONS="(--rows 40)")
    there = machine.bucket / "runs" / "llada-8b-instruct-humaneval"
    there.mkdir(parents=True)
    for name, text in (
        ("manifest.json", "{}"),
        ("results-0001.jsonl", "theirs\n"),
        ("results-0002.jsonl", "earlier\n"),
    ):
        (there / name).write_text(text)
    machine.evaluate('echo {} >>"$out/results-0002.jsonl"')
    vm.run()
    check(machine.jaxsink_calls[-1])
    assert machine.jaxsink_calls[-1].endswith("--mesh 4x2 --shard 2/4 --allow-code-execution --rows 40")
    assert (there / "results-0002.jsonl").read_text() == "earlier\n{}\n" and (there / "finished-0002").exists()
    assert not any("results-0001" in call for call in machine.cloud.calls)  # not ours to write
    machine.evaluate("exit 2")
    vm.run(code=2)  # the local files are newer: nothing is fetched
    assert machine.cloud.asked(f"storage cp 'gs://b/runs/{there.name}/*'") == 1


def test_answers_that_cannot_be_fetched_are_not_overwritten(machine: Machine) -> None:
    there = machine.bucket / "runs" / "llada-8b-instruct-gsm8k"
    there.mkdir(parents=True)
    (there / "manifest.json").write_text("{}")
    (there / "results-0001.jsonl").write_text("earlier\n")
    machine.cloud.troubles = [Trouble("storage cp 'gs://", "503")]
    Vm(machine).run(code=1)
    assert (there / "results-0001.jsonl").read_text() == "earlier\n"


def test_work_that_is_terminated_copies_what_it_has(machine: Machine) -> None:
    vm = Vm(machine)
    machine.evaluate(
        'echo {} >"$out/results-0001.jsonl"; trap "exit 143" TERM; touch "$FAKE/going"; while true; do /bin/sleep 0.1; done'
    )
    process = vm.work()
    machine.wait_for("going")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143 and (vm.home / "jaxsink-tpu" / "ended").read_text() == "143\n"
    there = machine.bucket / "runs" / "llada-8b-instruct-gsm8k"
    assert (there / "results-0001.jsonl").exists() and not (there / "finished-0001").exists()


def test_collect(machine: Machine) -> None:
    for name in ("llama-3.1-8b-instruct-gsm8k", "dream-7b-instruct-humaneval"):
        (machine.bucket / "j" / "runs" / name).mkdir(parents=True)
        (machine.bucket / "j" / "runs" / name / "manifest.json").touch()
    machine.run("collect", "home")
    first, second, last = machine.jaxsink_calls
    for line in machine.jaxsink_calls:
        check(line)
    assert "dream-7b-instruct/humaneval/study --out home/dream-7b-instruct-humaneval --summary" in first
    assert "llama-3.1-8b-instruct/gsm8k/study" in second and last.endswith("--out table1")
    assert (machine.folder / "home" / "llama-3.1-8b-instruct-gsm8k" / "manifest.json").exists()
