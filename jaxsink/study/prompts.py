"""What the subjects of a study are asked: the built-in word problems, a public benchmark, or prompts of one's own.

find_prompts("gsm8k", data_file="test.jsonl")
find_prompts("questions.txt")        # one prompt per line; nothing can be graded, so masking is looked at by its maps
find_prompts("questions.jsonl")      # {"prompt": "…", "answer": "42"} per line; a number that is right counts
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from jaxsink.errors import JaxsinkError
from jaxsink.evals.batching import round_up
from jaxsink.evals.layout import BUCKET
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.prompts import encode_text, unknown_words
from jaxsink.sandbox.programs import checks, program
from jaxsink.sandbox.runner import run_checks
from jaxsink.tasks.benchmarks import Example, load_benchmark
from jaxsink.tasks.exam import Exam, Question, ungraded
from jaxsink.tasks.extract import flexible_number, same_number
from jaxsink.tasks.score import Score
from jaxsink.text.tokenizer import Tokenizer

TASK = "task"
BENCHMARKS = ("gsm8k", "humaneval")
ASK = {
    "gsm8k": "{question}\nThink step by step, and end with #### and the number.",
    "humaneval": "Complete this Python function. Answer with the whole function in a code block.\n```python\n{question}```",
}

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Prompt:
    """A text, and how an answer to it is graded. answer: as published; empty where there is none."""

    name: str
    text: str
    answer: str = ""
    grade: Callable[[str], Score] = ungraded


@dataclass(frozen=True)
class Prompts:
    """Where they come from, and the prompts, in order."""

    source: str
    prompts: tuple[Prompt, ...]

    @property
    def graded(self) -> bool:
        return all(prompt.answer for prompt in self.prompts)

    @property
    def digest(self) -> str:
        texts = [[prompt.name, prompt.text, prompt.answer] for prompt in self.prompts]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()

    def exam(self, tokenizer: Tokenizer, sampler: Sampler, chats: bool, total: int, seed: int) -> Exam:
        """As many of them as there are, at most `total`, drawn with the seed; more begin with the same."""
        drawn = Random(seed).sample(range(len(self.prompts)), len(self.prompts))[:total]
        asked = [self.prompts[number] for number in drawn]
        ids = [encode_text(tokenizer, prompt.text, chats) for prompt in asked]
        for prompt in asked:
            unknown = unknown_words(tokenizer, prompt.text)
            if unknown:
                raise JaxsinkError(
                    f"{self.source}: the model does not know {unknown[0]!r} of {prompt.name}; give prompts in its own words."
                )
        questions = [
            Question(number, prompt.name, tuple(prompt_ids), prompt.grade, tuple(tokenizer.encode(prompt.answer)))
            for number, prompt, prompt_ids in zip(drawn, asked, ids, strict=True)
        ]
        facts = {"setting": {"name": self.source}, "benchmark": self.source, "splits": []}
        longest = max(map(len, ids))
        return Exam(self.source, tuple(questions), sampler, tokenizer, facts, bucket=round_up(longest, BUCKET))


def find_prompts(
    source: PathLike, data_file: PathLike | None = None, allow_code_execution: bool = False
) -> Prompts | None:
    """Prompts by name or file; None: the built-in problems. data_file: of a benchmark that is already here."""
    if source == TASK:
        return None
    if source in BENCHMARKS:
        return benchmark_prompts(str(source), data_file, allow_code_execution)
    if data_file is not None:
        raise JaxsinkError(f"--data-file is for {' and '.join(BENCHMARKS)}, and {source} is a file itself.")
    return own_prompts(Path(source).expanduser())


def benchmark_prompts(name: str, data_file: PathLike | None, allow_code_execution: bool) -> Prompts:
    if name == "humaneval" and not allow_code_execution:
        raise JaxsinkError(
            "humaneval is graded by running programs that the model writes; read in jaxsink/sandbox/runner.py how they are "
            "confined, then give --allow-code-execution."
        )
    prompts = []
    for one in load_benchmark("humaneval" if name == "humaneval" else "gsm8k", "test", data_file):
        grade = partial(grade_program, one) if name == "humaneval" else partial(grade_number, one.answer)
        prompts.append(Prompt(one.task_id, ASK[name].replace("{question}", one.question), one.answer, grade))
    return Prompts(name, tuple(prompts))


def own_prompts(path: Path) -> Prompts:
    """A text file with a prompt per line, or JSON lines with "prompt" and, if it is to be graded, "answer"."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        known = ", ".join((TASK, *BENCHMARKS))
        raise JaxsinkError(
            f"--prompts: cannot read {path} ({error.strerror}); give a file, or one of {known}."
        ) from error
    except UnicodeDecodeError as error:
        raise JaxsinkError(f"--prompts: {path} is not text in UTF-8; convert it first.") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise JaxsinkError(f"--prompts: {path} is empty; write a prompt per line.")
    if path.suffix != ".jsonl":
        return Prompts(path.name, tuple(Prompt(f"{path.name}:{number}", line) for number, line in numbered))
    return Prompts(path.name, tuple(read_line(path, number, line) for number, line in numbered))


def read_line(path: Path, number: int, line: str) -> Prompt:
    try:
        found = json.loads(line)
        text, answer = found["prompt"], found.get("answer", "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise JaxsinkError(f'--prompts: line {number} of {path} is not a JSON object with a "prompt".') from error
    if not isinstance(text, str) or not text.strip() or not isinstance(answer, str | int | float):
        raise JaxsinkError(
            f'--prompts: line {number} of {path}: "prompt" must be text, and "answer" a text or a number.'
        )
    answer = str(answer)
    return Prompt(f"{path.name}:{number}", text, answer, partial(grade_number, answer) if answer else ungraded)


def grade_number(answer: str, text: str) -> Score:
    """The last number of a text must be that of the answer."""
    found = flexible_number(text)
    return Score(same_number(found, answer), found)


def grade_program(example: Example, text: str) -> Score:
    verdict = run_checks(program(example, text, "chat"), checks(example), allow_code_execution=True)
    return Score(verdict.passed, f"{verdict.reason}: {verdict.detail}".removesuffix(": "))
