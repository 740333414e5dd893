"""The command `jaxsink doctor`: checks this machine, and prints a line for an issue."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from jaxsink.cli.main import Commands, add_command

if TYPE_CHECKING:
    from jaxsink.health.doctor import Health

EXAMPLES = """examples:
  jaxsink doctor
  jaxsink doctor --json

Every attention backend is run in float32 and bfloat16 against float64 NumPy: grouped heads, a causal mask, padding, hidden
keys; errors are relative to the largest number, of outputs and of the attention that keys receive. Without a TPU or GPU,
both kernels are interpreted: "pallas" is the TPU's, "pallas-gpu" the GPU's. The exit code is 0 if all are right, else 1.
The last line has no names and no paths: paste it into an issue, also when all is right on a new device.
"""


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "doctor",
        run,
        "check this machine: devices, versions, every attention backend against float64",
        "List devices, versions and extras, run every attention backend against float64, start no check after 30 s, and "
        "print one line to paste into an issue.",
        EXAMPLES,
    )
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=float,
        default=30.0,
        help="start no further check after so many (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(args: argparse.Namespace) -> int:
    import jaxsink
    from jaxsink.runs.progress import stage

    with stage("checking backends") as task:
        found = jaxsink.doctor(args.seconds, say=lambda text: task.update(what=text))
    if args.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        show(found)
    return 0 if found.passed else 1


def show(found: Health) -> None:
    for note in found.notes:
        print(f"jaxsink: {note}", file=sys.stderr)
    for name, number in found.versions.items():
        print(f"{name:18} {number}")
    print(f"{'devices':18} {', '.join(map(str, found.devices))}")
    print(f"{'extras':18} {', '.join(found.extras) or 'none'}")
    print(f"{'pallas':18} {found.kernel}")
    print(f"{'long sequences':18} {found.chosen}\n")
    for check in found.checks:
        errors = "" if check.outputs is None else f"outputs {check.outputs:.1e}, sums {check.sums:.1e}"
        print(f"{check.backend:10} {check.dtype:9} {check.length:5} tokens  {check.verdict:6}  {errors}".rstrip())
    print(f"\n{found.line}")
