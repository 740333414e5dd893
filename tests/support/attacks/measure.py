"""Runs every attack at one level, as a user, and prints what came of each as JSON.

    python -m support.attacks.measure LEVEL USER           each attack alone
    python -m support.attacks.measure LEVEL USER --quick   those that need no process of their own together in one

USER is a number: one's own or, for root, any.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from jaxsink.sandbox.runner import Checks, Level, Limits, Verdict, run_checks
from support.attacks.field import (
    Field,
    adopt_orphans,
    become,
    descendants,
    mount_below_libraries,
    survivors,
)
from support.attacks.programs import ATTACKS, Attack

LIMITS = Limits(seconds=3.0, cpu_seconds=1, memory=2**29)
WORDS = {
    "PermissionError": "refused",
    "FileNotFoundError": "not there",
    "ProcessLookupError": "not there",
    "MemoryError": "out of memory",
    "RuntimeError": "refused",  # a thread that cannot be started
    "OSError": "refused",
    "OperationalError": "refused",
    "nothing": "nothing found",
}
TOGETHER = """
import json
found = []
for source in sources:
    space = {"__name__": "attack"}
    exec(source, space)
    found.append(space["attack"]()[:40])
def attack():
    kinds = sorted(set(found))
    return json.dumps([kinds, "".join(chr(48 + kinds.index(claim)) for claim in found)])
"""
HARNESS = """
import sys
from jaxsink.sandbox.runner import Checks, Limits, run_checks
def run(program):
    limits = Limits(seconds=60.0)
    run_checks(program, Checks(("x",), ""), allow_code_execution=True, sandbox=sys.argv[1], limits=limits)
run("x = 1")
print("ready", flush=True)
run("import time; time.sleep(60)")
"""
PROCESSES: dict[Level, int] = {"namespaces": 5, "limits": 3}
"""That a run has."""
Outcome = tuple[bool, str]
"""Whether the sandbox held, and in words what came of the attack."""


def judge(text: str, marker: str) -> Checks:
    """Checks that every program fails: what it says of itself is in their message. The marker is what it looks for."""
    return Checks(
        ("add", "attack"),
        f"expected = {marker!r}\nfound = {text}\nassert all(map(lambda n: add(n, n) == 2 * n, (1, 2))), found\n",
    )


def outcome(verdict: Verdict, claim: str, harm: str, left: int) -> Outcome:
    if verdict.passed:
        return False, "forged a verdict"
    if left:
        return False, f"{left} processes survived"
    if verdict.reason == "crashed" and not claim.startswith("did: "):
        return False, "ended the judge"
    if harm:
        return False, harm
    if claim.startswith("did: "):
        return False, claim.removeprefix("did: ").split("'")[0].split("\n")[0][:60]
    if claim.startswith("no: "):
        kind = claim.removeprefix("no: ").split()[0]
        return True, "module is missing" if kind in ("ModuleNotFoundError", "ImportError") else WORDS.get(kind, kind)
    return True, "ended" if verdict.reason == "timed out" or "program ended" in claim else "no effect"


def run(program: str, checks: Checks, level: Level, limits: Limits = LIMITS) -> Verdict:
    return run_checks(program, checks, allow_code_execution=True, sandbox=level, limits=limits)


def try_alone(attack: Attack, level: Level, mounts: tuple[str, ...]) -> Outcome:
    before = descendants(os.getpid())
    with Field(LIMITS.memory, mounts) as field:
        known = before | {field.victim.pid}
        verdict = run(attack.program(field.facts()), judge("attack()", field.marker), level)
        left = survivors(known)
        time.sleep(0.02)
        claim = verdict.detail.removeprefix("AssertionError: ")
        return outcome(verdict, claim, field.harm(), left)


def try_together(level: Level, mounts: tuple[str, ...]) -> dict[str, Outcome]:
    """All that need no process of their own, one after the other in one program.

    A verdict has room for a few words: the different outcomes, and for each attack the number of its own.
    """
    chosen = {name: attack for name, attack in ATTACKS.items() if not attack.alone}
    before = descendants(os.getpid())
    with Field(LIMITS.memory, mounts) as field:
        sources = [attack.program(field.facts()) for attack in chosen.values()]
        program = f"sources = {sources!r}\n" + TOGETHER
        checks = Checks(("attack",), f"expected = {field.marker!r}\nraise Exception(attack())")
        limits = replace(LIMITS, seconds=60.0, cpu_seconds=30)
        verdict = run(program, checks, level, limits)
        left, harm = survivors(before | {field.victim.pid}), field.harm()
        kinds, numbers = json.loads(verdict.detail.removeprefix("Exception: "))
        claims = [kinds[ord(letter) - ord("0")] for letter in numbers]
        return {name: outcome(verdict, claim, harm, left) for name, claim in zip(chosen, claims, strict=True)}


def end_the_harness(level: Level, how: signal.Signals, whom: str) -> Outcome:
    """Whether anything is left when the harness, or the process that holds a program, is killed in the middle of a run."""
    before = descendants(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, level], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as harness:
        assert harness.stdout is not None
        harness.stdout.readline()
        end = time.monotonic() + 30
        while len(descendants(harness.pid)) < PROCESSES[level] and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(0.5)
        keepers = [pid for pid in descendants(harness.pid) if parent_of(pid) == harness.pid]
        os.kill(harness.pid if whom == "harness" else keepers[0], how)
    left = survivors(before)
    return not left, f"{left} processes survived" if left else "none is left"


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])


ENDS: dict[str, tuple[signal.Signals, str]] = {
    "jaxsink is killed (SIGKILL)": (signal.SIGKILL, "harness"),
    "jaxsink is ended (SIGTERM)": (signal.SIGTERM, "harness"),
    "the keeper is killed (SIGKILL)": (signal.SIGKILL, "keeper"),
}


def measure(level: Level, user: int, quick: bool, contained: bool) -> Iterator[tuple[str, Outcome]]:
    """(name, outcome) of every attack."""
    adopt_orphans()
    os.environ["JAXSINK_TEST_SECRET"] = "do-not-tell"
    mounts = mount_below_libraries()
    become(user, contained)
    if quick:
        yield from try_together(level, mounts).items()
    for name, attack in ATTACKS.items():
        if attack.alone or not quick:
            yield name, try_alone(attack, level, mounts)
    for name, (how, whom) in ENDS.items():
        yield name, end_the_harness(level, how, whom)


if __name__ == "__main__":
    chosen: Level = "limits" if sys.argv[1] == "limits" else "namespaces"
    print(json.dumps(dict(measure(chosen, int(sys.argv[2]), "--quick" in sys.argv, "--contained" in sys.argv))))
