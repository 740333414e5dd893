"""What the subjects of a study are asked: the built-in word problems, a benchmark, plain text, or prompts of one's own.

find_prompts("gsm8k", data_file="test.jsonl")
find_prompts("text", data_file="book.txt", window=96)    # the first half of a window is given, the second scored
find_prompts("questions.txt")        # one prompt per line; nothing can be graded, so masking is looked at by its maps
find_prompts("questions.jsonl")      # {"prompt": "…", "answer": "42"} per line; a number that is right counts
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from random import Random

from jaxsink.errors import JaxsinkError
from jaxsink.evals.batching import round_up
from jaxsink.evals.layout import BUCKET
from jaxsink.runs.files import refuse_special, user_path
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.prompts import encode_text, unknown_words
from jaxsink.sandbox.levels import Level
from jaxsink.sandbox.programs import checks, program
from jaxsink.sandbox.runner import check_sandbox, run_checks
from jaxsink.tasks.benchmarks import Example, load_benchmark
from jaxsink.tasks.exam import Exam, Question, ungraded
from jaxsink.tasks.extract import flexible_number, same_number
from jaxsink.tasks.score import Score, score_program
from jaxsink.tasks.windows import windows
from jaxsink.text.tokenizer import Tokenizer

TASK = "task"
TEXT = "text"
BENCHMARKS = ("gsm8k", "humaneval")
ASK = {
    "gsm8k": "{question}\nThink step by step, and end with #### and the number.",
    "humaneval": "Complete this Python function. Answer with the whole function in a code block.\n```python\n{question}```",
}

WINDOW = 96  # tokens

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
    """Where they come from, and the prompts, in order. longest: those of more tokens are not asked. sandbox: the level at
    which answers run, if they are programs."""

    source: str
    prompts: tuple[Prompt, ...]
    longest: int | None = None
    sandbox: Level | None = None

    @property
    def graded(self) -> bool:
        return self.answered

    @property
    def answered(self) -> bool:
        """All have an answer whose likelihood can be told."""
        return all(prompt.answer for prompt in self.prompts)

    @property
    def digest(self) -> str:
        texts = [[prompt.name, prompt.text, prompt.answer] for prompt in self.prompts]
        limit = [] if self.longest is None else [self.longest]
        return hashlib.sha256(json.dumps([*texts, *limit]).encode()).hexdigest()

    def exam(self, tokenizer: Tokenizer, sampler: Sampler, chats: bool, total: int, seed: int) -> Exam:
        """As many of them as there are, at most `total`, drawn with the seed; more begin with the same."""
        drawn = Random(seed).sample(range(len(self.prompts)), len(self.prompts))
        encoded = {number: encode_text(tokenizer, self.prompts[number].text, chats) for number in drawn}
        drawn = [n for n in drawn if self.longest is None or len(encoded[n]) <= self.longest][:total]
        if not drawn:
            raise JaxsinkError(f"--longest {self.longest}: every prompt of {self.source} has more tokens than that.")
        asked, ids = [self.prompts[number] for number in drawn], [encoded[number] for number in drawn]
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
        bucket = round_up(max(map(len, ids)), BUCKET)
        bucket = bucket if self.longest is None else min(bucket, self.longest)
        return Exam(self.source, tuple(questions), sampler, tokenizer, facts, bucket=bucket)


@dataclass(frozen=True)
class TextWindows:
    """Windows of a text instead of prompts: the first half is given, as it is, and the second scored. Nothing is graded."""

    path: Path
    window: int

    graded = False
    answered = True
    sandbox = None

    @property
    def source(self) -> str:
        return f"{self.path.name} in windows of {self.window}"

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.path.read_bytes() + str(self.window).encode()).hexdigest()

    def exam(self, tokenizer: Tokenizer, sampler: Sampler, chats: bool, total: int, seed: int) -> Exam:
        """As many windows as there are, at most `total`, drawn with the seed; more begin with the same."""
        found = windows(self.path, self.window, tokenizer)
        drawn = Random(seed).sample(range(len(found)), len(found))[:total]
        questions = [Question(n, f"{TEXT}/{n}", found[n].context, as_it_is, found[n].rest) for n in drawn]
        facts = {"setting": {"name": self.source}, "benchmark": TEXT, "splits": []}
        bucket = max(len(question.prompt) for question in questions)
        return Exam(self.source, tuple(questions), sampler, tokenizer, facts, bucket=bucket)


def as_it_is(text: str) -> Score:
    """No grade: what goes on from a text is neither right nor wrong."""
    return Score(None, "")


def find_prompts(
    source: PathLike,
    data_file: PathLike | None = None,
    allow_code_execution: bool = False,
    *,
    sandbox: Level = "namespaces",
    longest: int | None = None,
    window: int = WINDOW,
) -> Prompts | TextWindows | None:
    """Prompts by name or file; None: the built-in problems. data_file: of a benchmark that is already here, or the text.

    sandbox: the level at which programs run. longest: leave out prompts of more tokens. window: tokens of a text that are
    looked at together.
    """
    if longest is not None and (longest < 1 or source in (TASK, TEXT)):
        raise JaxsinkError(f"--longest {longest} is a number of tokens, of the prompts of a benchmark or a file.")
    if source == TASK:
        return None
    if source == TEXT:
        if data_file is None:
            raise JaxsinkError("--prompts text needs a text: --data-file FILE.")
        return TextWindows(user_path(data_file), window)
    if source in BENCHMARKS:
        return replace(benchmark_prompts(str(source), data_file, allow_code_execution, sandbox), longest=longest)
    if data_file is not None:
        raise JaxsinkError(f"--data-file is for {', '.join(BENCHMARKS)} and {TEXT}, and {source} is a file itself.")
    return replace(own_prompts(user_path(source)), longest=longest)


def benchmark_prompts(
    name: str, data_file: PathLike | None, allow_code_execution: bool, sandbox: Level = "namespaces"
) -> Prompts:
    if name == "humaneval":
        if not allow_code_execution:
            raise JaxsinkError(
                "humaneval is graded by running programs that the model writes; read in docs/sandbox.md how they are "
                "confined, then give --allow-code-execution."
            )
        check_sandbox(sandbox)
    prompts = []
    for one in load_benchmark("humaneval" if name == "humaneval" else "gsm8k", "test", data_file):
        grade = partial(grade_program, one, sandbox) if name == "humaneval" else partial(grade_number, one.answer)
        prompts.append(Prompt(one.task_id, ASK[name].replace("{question}", one.question), one.answer, grade))
    return Prompts(name, tuple(prompts), sandbox=sandbox if name == "humaneval" else None)


def own_prompts(path: Path) -> Prompts:
    """A text file with a prompt per line, or JSON lines with "prompt" and, if it is to be graded, "answer"."""
    refuse_special(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        known = ", ".join((TASK, *BENCHMARKS, TEXT))
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


def grade_program(example: Example, sandbox: Level, text: str) -> Score:
    answer = program(example, text, "chat")
    return score_program(run_checks(answer, checks(example), allow_code_execution=True, sandbox=sandbox))
