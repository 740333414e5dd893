"""Whether an answer is right, by the rules of its setting."""

from __future__ import annotations

from dataclasses import dataclass

from jaxsink.evals.settings import EvalSetting
from jaxsink.sandbox import programs
from jaxsink.sandbox.levels import Level
from jaxsink.sandbox.runner import Limits, Verdict, run_checks
from jaxsink.tasks import extract
from jaxsink.tasks.benchmarks import Example


@dataclass(frozen=True)
class Score:
    """correct: the score that counts; None where there is nothing to be right about. strict, flexible: both of GSM8K's, None
    for programs. found: the number, or what the sandbox said. sandbox: the level that held a program."""

    correct: bool | None
    found: str
    strict: bool | None = None
    flexible: bool | None = None
    sandbox: Level | None = None


def score(
    setting: EvalSetting,
    example: Example,
    answer: str,
    *,
    allow_code_execution: bool = False,
    sandbox: Level = "namespaces",
    limits: Limits | None = None,
) -> Score:
    """Score the text a model wrote, without the opening that it was given. Programs are run only with leave."""
    if example.benchmark == "gsm8k":
        text = extract.truncate(answer, setting.stops)
        numbers = (extract.strict_number(text, setting.wording), extract.flexible_number(text))
        strict, flexible = (extract.same_number(number, example.answer) for number in numbers)
        counts = flexible if setting.flexible else strict
        return Score(counts, numbers[1] if setting.flexible else numbers[0], strict, flexible)
    program = programs.program(example, answer, setting.form, setting.stops)
    checks = programs.checks(example)
    return score_program(
        run_checks(program, checks, allow_code_execution=allow_code_execution, sandbox=sandbox, limits=limits)
    )


def score_program(verdict: Verdict) -> Score:
    """As a line of the results has it."""
    said = f"{verdict.reason}: {verdict.detail}".removesuffix(": ")
    return Score(verdict.passed, said, sandbox=verdict.sandbox)
