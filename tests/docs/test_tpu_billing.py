"""docs/tpu/tpu.sh never leaves something that bills, whatever happens, on a stand-in for Google Cloud that keeps state."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_cloud import RIGHTS, Trouble, parse
from support.tpu_stand_in import Machine, stand_in

JOB = ("run", "llada-8b-instruct", "gsm8k")
NOTHING = "Nothing bills by the hour: no request and no VM named jaxsink in us-west4-a"
RUN = "buckets/b/j/runs/llada-8b-instruct-gsm8k"
FOREVER = 'echo {} >"$out/manifest.json"; touch "$FAKE/going"; while true; do /bin/sleep 0.05; done'
UNTIL_TOLD = 'touch "$FAKE/going"; until [[ -e $FAKE/go-on ]]; do /bin/sleep 0.05; done; echo {} >"$out/manifest.json"'


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with stand_in(tmp_path) as one:
        yield one


def working(machine: Machine, **variables: str) -> subprocess.Popen[str]:
    """A run that has come to the questions."""
    process = machine.start(*JOB, **variables)
    machine.wait_for("going")
    return process


def end(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=120)[0]


def test_success_leaves_nothing_but_results(machine: Machine) -> None:
    text = machine.run(*JOB, "1/1", "--rows", "40", HF_TOKEN="secret")
    assert machine.cloud.empty and 0 < machine.cloud.billed < 3600
    assert NOTHING in text.splitlines()[-1] and "gcloud storage rm --recursive gs://b/j" in text
    steps = [
        machine.cloud.asked(step) for step in ("resources create", "install.sh 8", "work.sh start", "resources delete")
    ]
    assert steps == [1, 1, 1, 1]
    convert, evaluate = machine.jaxsink_calls
    assert "jaxsink convert GSAI-ML/LLaDA-8B-Instruct gs://b/j/models/llada-8b-instruct --dtype bfloat16" in convert
    assert evaluate.endswith("--mesh 4x2 --shard 1/1 --rows 40")
    assert (machine.folder / RUN / "finished-0001").exists()
    assert "asking the first question" in (machine.folder / RUN / "log-0001.txt").read_text()
    assert "secret" not in text + machine.log + "".join(machine.cloud.calls)
    assert not list(machine.folder.glob("tmp.*"))  # the scratch folder, which held the token
    assert "finished" in machine.run(*JOB) and machine.cloud.asked("resources create") == 1  # done: no second VM


def test_a_run_that_fails_leaves_nothing(machine: Machine) -> None:
    machine.evaluate("echo 'out of memory: 3 GiB more are needed'; exit 1")
    text = machine.run(*JOB, code=1)
    assert machine.cloud.empty and NOTHING in text and "out of memory: 3 GiB" in text
    machine.evaluate("echo 'unknown setting'; exit 2")
    assert "jaxsink refuses to run" in machine.run(*JOB, code=2) and machine.cloud.empty
    assert sum("convert" in call for call in machine.jaxsink_calls) == 1  # the weights were in the bucket already


def test_a_conversion_that_fails_leaves_nothing(machine: Machine) -> None:
    (machine.folder / "no-convert").touch()
    assert NOTHING in machine.run(*JOB, code=1) and machine.cloud.empty
    assert not any("evaluate" in call for call in machine.jaxsink_calls)


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        ("storage ls", 60),  # before there is anything
        ("resources create", 0.5),  # not interruptible: the request is made, and then deleted
        ("resources describe .*state.state", 60),
        ("mkdir -p jaxsink-tpu", 60),
        ("tpu-vm scp", 60),
        ("install.sh", 60),
        ("work.sh start", 60),
        ("work.sh state", 60),
    ],
)
def test_ctrl_c_at_any_stage_leaves_nothing(machine: Machine, command: str, seconds: float) -> None:
    machine.evaluate(FOREVER)
    if "describe" not in command:
        machine.cloud.block = (command, seconds)
    process = machine.start(*JOB)
    if "describe" in command:  # not the first one, which comes before the request
        machine.wait(lambda: bool(machine.cloud.requests))
        machine.cloud.block = (command, seconds)
    assert machine.cloud.blocked.wait(60)
    machine.signal(process, signal.SIGINT)
    text = end(process)
    assert process.returncode == 130 and machine.cloud.empty, text
    assert "interrupted" in text and NOTHING in text.splitlines()[-1]
    assert (
        machine.cloud.asked("resources create") == machine.cloud.asked("resources delete") == (command != "storage ls")
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_while_the_vm_works(machine: Machine, number: signal.Signals) -> None:
    machine.evaluate(FOREVER)
    process = working(machine)
    machine.cloud.block = ("resources delete", 0.5)
    process.send_signal(number)  # to the program alone, and again to all while it deletes
    assert machine.cloud.blocked.wait(60)
    machine.signal(process, number)
    text = end(process)
    assert process.returncode == 143 and machine.cloud.empty and NOTHING in text, text


def test_a_closed_terminal_does_not_stop_the_deletion(machine: Machine) -> None:
    machine.evaluate(FOREVER)
    process = working(machine)
    assert process.stdout is not None
    process.stdout.close()
    machine.signal(process, signal.SIGHUP)
    process.wait(timeout=60)
    assert machine.cloud.empty and NOTHING in machine.log


def test_a_preempted_run_goes_on_with_a_new_vm(machine: Machine) -> None:
    second = 'cp "$out/results-0001.jsonl" "$FAKE/taken-up"; echo two >>"$out/results-0001.jsonl"'
    first = 'echo one >>"$out/results-0001.jsonl"; ' + FOREVER
    machine.evaluate(f"if [[ -e $FAKE/going ]]; then {second}; else {first}; fi")
    machine.cloud.preempt = [10**6]
    process = working(machine)
    machine.wait_for(f"{RUN}/results-0001.jsonl")
    machine.cloud.nodes["jaxsink"].end = 0
    text = end(process)
    assert process.returncode == 0 and machine.cloud.empty and "the VM is gone" in text and NOTHING in text
    for step in ("resources create", "install.sh 8", "work.sh start", "resources delete"):
        assert machine.cloud.asked(step) == 2
    assert (machine.folder / "taken-up").read_text() == "one\n"
    assert (machine.folder / RUN / "results-0001.jsonl").read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    ("how", "flag"), [("spot", " --spot"), ("flex-start", " --max-run-duration=86400s"), ("on-demand", "")]
)
def test_a_request_that_never_becomes_active_ends(machine: Machine, how: str, flag: str) -> None:
    machine.cloud.waits = [None]
    text = machine.run(*JOB, code=1, HOW=how, WAIT_HOURS="2", PAUSE="900")
    assert "no v5e-8 in us-west4-a within 2 h" in text and machine.cloud.empty and machine.cloud.billed == 0
    (line,) = [line for line in machine.cloud.calls if "resources create" in line]
    assert "--valid-until-duration=2h" in line and flag in line and (how == "spot") == ("--spot" in line)
    assert (how == "flex-start") == ("alpha compute" in line and "--provisioning-model=flex-start" in line)


def test_a_request_ends_by_itself_when_nobody_is_there(machine: Machine) -> None:
    machine.cloud.waits = [None]
    process = machine.start(*JOB, WAIT_HOURS="2")
    machine.wait(lambda: bool(machine.cloud.requests))
    machine.die(process)
    machine.cloud.pass_time(2 * 3600)
    assert "request jaxsink in us-west4-a (FAILED)" in machine.run("status") and not machine.cloud.nodes
    assert NOTHING in machine.run("stop") and machine.cloud.empty


def test_a_deletion_that_fails_is_tried_again(machine: Machine) -> None:
    machine.cloud.troubles = [Trouble("resources delete", "INTERNAL: try later", times=2)]
    text = machine.run(*JOB)
    assert "deleting jaxsink failed (2 of 8)" in text and machine.cloud.empty and NOTHING in text


def test_a_deletion_that_always_fails_is_reported(machine: Machine) -> None:
    machine.cloud.troubles = [Trouble("(resources|tpu-vm) delete", "PERMISSION_DENIED", times=99)]
    text = machine.run(*JOB, code=1)
    assert not machine.cloud.empty and NOTHING not in text
    assert "gcloud compute tpus queued-resources delete jaxsink --zone=us-west4-a --project=p --force" in text
    assert "STILL THERE AND BILLING: VM jaxsink" in text and "gcloud compute tpus tpu-vm delete jaxsink" in text
    for command in (line.split(": gcloud ")[1] for line in text.splitlines() if ": gcloud " in line):
        parse(command.split())  # can be given as printed


def test_a_vm_without_its_request_is_deleted_too(machine: Machine) -> None:
    machine.evaluate(FOREVER)
    process = working(machine)
    del machine.cloud.requests["jaxsink"]
    machine.signal(process, signal.SIGINT)
    assert NOTHING in end(process) and machine.cloud.empty


def test_no_answer_is_not_taken_for_nothing(machine: Machine) -> None:
    machine.evaluate(FOREVER)
    process = working(machine)
    machine.cloud.troubles = [Trouble(".", "could not reach tpu.googleapis.com", times=999)]
    machine.signal(process, signal.SIGINT)
    text = end(process)
    assert "NOT KNOWN whether something bills" in text and "STILL THERE" in text and NOTHING not in text


def test_a_cpu_only_jax_ends_the_run_before_the_conversion(machine: Machine) -> None:
    (machine.folder / "devices").write_text("cpu 1")
    text = machine.run(*JOB, code=1)
    assert "JAX sees 1 cpu device(s) here, and this VM should have 8 TPU devices" in text
    assert not machine.jaxsink_calls and machine.cloud.asked("install.sh 8") == 1 and machine.cloud.empty


def test_the_time_limit_ends_a_run(machine: Machine) -> None:
    machine.evaluate(FOREVER)
    process = working(machine, MAX_HOURS="1", PAUSE="300")
    machine.cloud.rights = RIGHTS[1:]  # the VM does not do it
    text = end(process)
    assert process.returncode == 1 and "time limit of 1 VM hours" in text and machine.cloud.empty and NOTHING in text
    assert machine.cloud.billed < 1.5 * 3600


def test_the_time_limit_holds_over_several_vms(machine: Machine) -> None:
    machine.evaluate(FOREVER)
    machine.cloud.preempt = [1800, 1800, 1800]
    text = machine.run(*JOB, code=1, MAX_HOURS="1", PAUSE="300")
    assert "time limit of 1 VM hours" in text and machine.cloud.empty and machine.cloud.billed < 1.5 * 3600
    assert machine.cloud.asked("resources create") in (2, 3)


def test_a_vm_that_nobody_uses_deletes_itself(machine: Machine) -> None:
    process = machine.start(*JOB)
    machine.wait(lambda: bool(machine.cloud.requests))
    machine.die(process)
    machine.cloud.pass_time(120)
    assert machine.cloud.nodes  # capacity has come, and nobody installs anything
    machine.cloud.pass_time(31 * 60)
    machine.wait(lambda: machine.cloud.empty)


def test_a_vm_that_works_deletes_itself_at_its_limit(machine: Machine) -> None:
    machine.evaluate(FOREVER)
    machine.die(working(machine, MAX_HOURS="3"))
    for _ in range(4):  # longer than the 30 minutes after which an idle VM goes
        machine.cloud.pass_time(600)
        machine.wait(lambda: machine.alive == machine.cloud.now)
    assert machine.cloud.nodes
    machine.cloud.pass_time(3 * 3600)
    machine.wait(lambda: machine.cloud.empty)
    assert NOTHING in machine.run("status")


def test_a_vm_finishes_its_work_when_this_machine_dies(machine: Machine) -> None:
    machine.evaluate(UNTIL_TOLD)
    machine.die(working(machine))
    (machine.folder / "go-on").touch()
    machine.wait_for("vms/jaxsink/jaxsink-tpu/ended")
    assert (machine.folder / RUN / "finished-0001").exists()
    machine.cloud.pass_time(31 * 60)
    machine.wait(lambda: machine.cloud.empty)


def test_a_vm_that_may_not_delete_itself_keeps_trying(machine: Machine) -> None:
    machine.evaluate(FOREVER)
    machine.die(working(machine, MAX_HOURS="1"))
    machine.cloud.rights = RIGHTS[1:]
    machine.cloud.pass_time(3600)
    machine.wait(lambda: machine.cloud.asked("VM: gcloud --quiet --project=p compute tpus queued-resources delete") > 1)
    assert machine.cloud.nodes
    machine.cloud.rights = list(RIGHTS)
    machine.wait(lambda: machine.cloud.empty)


def test_a_vm_that_could_not_delete_itself_is_not_made(machine: Machine) -> None:
    machine.cloud.rights = RIGHTS[1:]
    assert "lacks roles/tpu.admin" in machine.run(*JOB, code=2) and machine.cloud.asked("resources create") == 0


def test_flex_start_is_ended_by_google_too(machine: Machine) -> None:
    machine.evaluate(FOREVER)
    machine.die(working(machine, MAX_HOURS="1", HOW="flex-start"))
    machine.cloud.rights = RIGHTS[1:]
    machine.cloud.pass_time(3600)
    assert "(SUSPENDED)" in machine.run("status") and not machine.cloud.nodes


def test_a_second_run_of_the_same_name_says_so_and_ends(machine: Machine) -> None:
    machine.cloud.waits = [None]
    first = machine.start(*JOB)
    machine.wait(lambda: bool(machine.cloud.requests))
    text = machine.run(*JOB, code=2)
    assert "jaxsink exists already in us-west4-a (WAITING_FOR_RESOURCES)" in text and "Choose another NAME" in text
    assert machine.cloud.requests and first.poll() is None
    machine.signal(first, signal.SIGINT)
    end(first)
    assert machine.cloud.empty


def test_somebody_elses_request_is_left_alone(machine: Machine) -> None:
    machine.cloud.race = True
    assert "taken by somebody else" in machine.run(*JOB, code=1)
    assert machine.cloud.requests["jaxsink"].owner == "somebody" and machine.cloud.asked("delete") == 0


def test_errors_of_a_request(machine: Machine) -> None:
    quota = "RESOURCE_EXHAUSTED: Quota limit 'TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI' has been exceeded."
    machine.cloud.troubles = [Trouble("resources create", quota)]
    text = machine.run(*JOB, code=1)
    assert quota in text and "iam-admin/quotas?service=tpu.googleapis.com" in text and machine.cloud.empty
    assert machine.cloud.asked("resources create") == 1
    machine.cloud.troubles = [Trouble("resources create", "UNAVAILABLE: try later", times=2)]
    assert NOTHING in machine.run(*JOB)


def test_a_vm_that_cannot_be_reached(machine: Machine) -> None:
    machine.cloud.troubles = [Trouble("tpu-vm ssh", "connection refused", times=2, code=255)]
    assert NOTHING in machine.run(*JOB)  # it only took a while
    (machine.folder / RUN / "finished-0001").unlink()
    machine.cloud.troubles = [Trouble("tpu-vm ssh", "connection refused", times=99, code=255)]
    text = machine.run(*JOB, code=1)
    assert "cannot be reached by ssh" in text and "INTERNAL=yes" in text and machine.cloud.empty


def test_a_lost_connection_does_not_end_the_work(machine: Machine) -> None:
    machine.evaluate(UNTIL_TOLD)
    process = working(machine)
    lost = Trouble("work.sh state", "broken pipe", times=4, code=255)
    machine.cloud.troubles = [lost]
    machine.wait(lambda: lost.times == 0)
    (machine.folder / "go-on").touch()
    assert NOTHING in end(process) and process.returncode == 0
    assert sum("evaluate" in call for call in machine.jaxsink_calls) == 1
