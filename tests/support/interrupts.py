"""Ctrl-C at every stage of a short training run: what it says, how it ends, and what is kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from support.listening import Moment, Said, listen

PHASES = ("start", "compile", "step", "save")
PAUSES = {"start": (0.0, 0.5, 1.0, 2.0, 4.0), "compile": (0.0, 0.5, 1.0, 2.0, 4.0), "step": (0.0, 0.05, 0.1, 0.2, 0.4)}
LEFT = re.compile(r"\..*\.(partial|old)(\.lock)?")  # what an unfinished directory is called


class Outcome(TypedDict):
    """What came of one interrupt. step: that of the newest state; kept: all steps that were made can be gone on from."""

    phase: str
    when: str
    code: int | None
    traceback: bool
    step: int | None
    kept: bool


@dataclass(frozen=True)
class Interrupt:
    """pause: after the phase has begun; number: of the save that is meant."""

    phase: str
    pause: float = 0.0
    number: int = 0

    @property
    def when(self) -> str:
        return f"{self.pause:g} s later" if self.phase != "save" else f"save {self.number}"

    def moment(self, run: Path) -> str | Moment:
        """When the phase has begun."""
        if self.phase == "save":
            return lambda text: any((run / "checkpoints").glob(f".*{MILESTONES[self.number]}.partial"))
        if self.phase == "step":
            return lambda text: re.search(r"[1-9][\d,]* of [\d,]+ steps", text) is not None
        return {"start": "starting", "compile": "compiling"}[self.phase]


MILESTONES = {1: 5, 2: 10, 3: 20, 4: 30, 5: 40}
"""Steps after which models are written, with these settings."""
INTERRUPTS = [
    *(Interrupt(phase, pause) for phase, pauses in PAUSES.items() for pause in pauses),
    *(Interrupt("save", number=number) for number in MILESTONES),
]


def tiny(folder: Path, steps: int = 40) -> list[str]:
    """The arguments of a run that takes seconds; its text is written into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"Mia has {number} apples and buys some more of them at the shop near the sea." for number in range(300)]
    (folder / "text.txt").write_text("\n".join(lines))
    data = ["--data", "text.txt", "--tokenizer", "characters", "--length", "32"]
    sizes = ["--batch", "4", "--steps", str(steps), "--checkpoints", "4", "--warmup", "2"]
    return ["train", "2x16x2", *data, *sizes, "--out", "run"]


def interrupted(folder: Path, one: Interrupt) -> tuple[Said, Outcome]:
    """A run of its own, with one interrupt."""
    steps = 20_000 if one.phase == "step" else 40
    said = listen(
        tiny(folder, steps), folder, is_terminal=True, interrupt_at=one.moment(folder / "run"), pause=one.pause
    )
    return said, {
        "phase": one.phase,
        "when": one.when,
        "code": said.code,
        "traceback": "Traceback" in said.text,
        "step": newest_state(folder / "run"),
        "kept": is_kept(folder / "run", one.phase),
    }


def newest_state(run: Path) -> int | None:
    return max((int(path.parent.name) for path in (run / "states").glob("*/state.json")), default=None)


def is_kept(run: Path, phase: str) -> bool:
    """Nothing half-written is left, and where steps were taken there is a state."""
    half = [path for path in run.rglob("*") if LEFT.fullmatch(path.name)]
    return not half and (phase in ("start", "compile") or newest_state(run) is not None)
