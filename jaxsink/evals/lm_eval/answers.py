"""What a model has answered to lm-eval so far, in the directory of a run: whatever ends it, the same command goes on.

DIR/manifest.json         the model, how its sinks are masked, and what the likelihoods depend on
DIR/answers-0001.jsonl    a line per answer, under the hash of what was asked
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.parallel.hosts import from_main, is_main
from jaxsink.runs.files import interpreting
from jaxsink.runs.lines import read_lines
from jaxsink.runs.run import Run

KIND, ANSWERS = "lm-eval", "answers"
Ask = Callable[[Sequence[int]], Iterable[Mapping[int, Any]]]
"""Given the numbers of questions, it yields answers to some of them, as JSON has them, until all are there."""


@dataclass(frozen=True)
class Answers:
    """folder: None keeps nothing. identity: what all answers in the folder depend on."""

    folder: Path | None
    identity: JsonObject

    def complete(self, questions: Sequence[Any], ask: Ask) -> list[Any]:
        """The answers, in order; only those that are not kept are asked for. A question is plain data that decides it."""
        names = [digest(question) for question in questions]
        with ExitStack() as stack:
            known, file = {}, None
            if self.folder is not None:
                run = stack.enter_context(Run.open(self.folder, KIND, self.identity))
                file = stack.enter_context(run.lines(ANSWERS))
                known = from_main(read_answers(self.folder) if is_main() else None)
            missing = {name: number for number, name in enumerate(names) if name not in known}
            for part in ask(sorted(missing.values())):
                found = {names[number]: answer for number, answer in part.items()}
                if file is not None:
                    file.append([{"asked": name, "answer": answer} for name, answer in found.items()])
                known |= found
        return [known[name] for name in names]


def read_answers(folder: Path) -> dict[str, Any]:
    with interpreting(folder):
        return {line.value["asked"]: line.value["answer"] for line in read_lines(folder, ANSWERS)}


def digest(question: Any) -> str:
    return hashlib.sha256(json.dumps(question).encode()).hexdigest()
