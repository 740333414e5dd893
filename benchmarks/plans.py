"""What `jaxsink plan` says of Table 1 with LLaDA-8B on two TPU slices: memory, hours and list price, for docs/tpu.md.

    python benchmarks/plans.py --out benchmarks/results/plans.json    a few minutes; needs the extra `tpu`

Mesh and rows are those that the search of `jaxsink plan` found, so that each case compiles one program. Figures are compiler
estimates, not measurements.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import machine

MODEL = "llada-8b-instruct"
CASES = (
    ("gsm8k", "v5e:2x4", 40),
    ("gsm8k", "v6e:2x4", 80),
    ("humaneval", "v5e:2x4", 24),
    ("humaneval", "v6e:2x4", 160),
)


def plan(benchmark: str, tpu: str, rows: int) -> dict[str, Any]:
    words = ["--setting", f"{MODEL}/{benchmark}/study", "--mesh", "8x1", "--rows", str(rows), "--no-search", "--json"]
    command = [sys.executable, "-m", "jaxsink", "plan", MODEL, "--tpu", tpu, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{done.stderr}")
    return {"benchmark": benchmark, "tpu": tpu, "rows": rows, **json.loads(done.stdout)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="FILE", required=True)
    args = parser.parse_args()
    figures = {"machine": machine.describe(), "figures": [plan(*case) for case in CASES]}
    Path(args.out).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
