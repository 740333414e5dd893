"""Answers out of texts: GSM8K's numbers by lm-eval's rules, code blocks, and programs with their checks."""

from __future__ import annotations

import dataclasses

import pytest

from jaxsink.errors import JaxsinkError
from jaxsink.sandbox import programs
from jaxsink.tasks import extract
from jaxsink.tasks.benchmarks import Example
from jaxsink.tasks.extract import HUMANEVAL_STOPS, INVALID

GOLD = "She has 3 + 4 = <<3+4=7>>7 eggs.\nThat is $1,007.\n#### 1,007"
ADD = Example(
    "humaneval",
    "test",
    0,
    "HumanEval/0",
    "def add(a, b):\n    '''Sum.'''\n",
    "    return a + b\n",
    "def add(a, b):\n    '''Sum.'''\n",
    "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "add",
)


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        (GOLD, "1,007", "1,007"),
        ("so #### 12 and #### 13", "12", "13"),
        ("#### -3.50", "-3.50", "-3.50"),
        ("#### $5", INVALID, "$5"),
        ("####5", INVALID, "5"),
        ("The answer is 42.", INVALID, "42."),
        ("no number", INVALID, INVALID),
        ("", INVALID, INVALID),
        ("1 apple, then 7", INVALID, "7"),
        ("it ends with ...", INVALID, "..."),  # as lm-eval's pattern has it
        ("from 3-4", INVALID, "-4"),
    ],
)
def test_numbers_of_the_plain_task(text: str, strict: str, flexible: str) -> None:
    assert extract.strict_number(text) == strict
    assert extract.flexible_number(text) == flexible


def test_strict_wordings() -> None:
    text = "The answer is 8. The final answer is $9\nThe answer is 10.\nThe final answer is 11"
    assert extract.strict_number(text, "the answer is") == "8."  # the pattern's own full stop is the character after
    assert extract.strict_number(text, "the final answer is") == "11"
    assert extract.strict_number("The answer is 8", "the answer is") == INVALID
    assert extract.strict_number("The answer is 18", "the answer is") == "1"  # lm-eval's pattern eats one character
    assert extract.strict_number("The final answer is -7", "the final answer is") == "-7"
    with pytest.raises(JaxsinkError, match="unknown wording"):
        extract.strict_number(text, "finally")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("found", ["1007", "1,007", "$1,007", "1007.", "$1,007."])
def test_marks_in_numbers_do_not_matter(found: str) -> None:
    assert extract.same_number(found, GOLD)


@pytest.mark.parametrize("found", ["1007.0", "107", "-1007", INVALID, "", "1007 eggs"])
def test_other_numbers_are_wrong(found: str) -> None:
    assert not extract.same_number(found, GOLD)


def test_truncation_is_at_the_earliest_stop() -> None:
    text = "    return 1\n\ndef other():\n    pass\nprint(1)"
    assert extract.truncate(text, HUMANEVAL_STOPS) == "    return 1\n"
    assert extract.truncate("a Q: b A: c", ("A:", "Q:")) == "a "
    assert extract.truncate("abc", ()) == extract.truncate("abc", ("",)) == "abc"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Sure:\n```python\nx = 1\ny = 2\n```\nDone.", "x = 1\ny = 2"),
        ("```\nx = 1\n```", "x = 1"),
        ("```bash\nls\n```\nthen\n```Python\nx = 1\n```", "x = 1"),
        ("```py\nx = 1", "x = 1"),  # cut off by the token limit
        ("```bash\nls\n```\n```python\nx = 1", "x = 1"),
        ("```python\nx = 1\n```\n```python\nx = 2\n```", "x = 1"),
        ("```python3 title\n\n    x = 1\n```", "\n    x = 1"),
        ("use `x = 1` here", None),
    ],
)
def test_code_blocks(text: str, code: str | None) -> None:
    assert extract.code_block(text) == code


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        ("completion", "    return a + b\n\nprint(add(1, 1))\n"),
        ("opened block", "    return a + b\n```\nThis adds.\n"),
        ("opened block", "    return a + b\n\ndef main():\n    broken("),
        ("chat", "Here:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds."),
        ("chat", "```python\n    return a + b\n```"),
        ("chat", "def add(a, b):\n    return a + b"),
        ("chat", "    return a + b"),
    ],
)
def test_answers_become_programs(form: programs.Form, answer: str) -> None:
    space: dict = {}
    exec(programs.program(ADD, answer, form, HUMANEVAL_STOPS), space)
    assert space["add"](2, 3) == 5


def test_a_program_keeps_the_imports_of_the_question() -> None:
    question = "import math\n\n" + ADD.question
    example = dataclasses.replace(ADD, question=question, setup=question)
    space: dict = {}
    exec(programs.program(example, "```python\ndef add(a, b):\n    return math.floor(a + b)\n```", "chat"), space)
    assert space["add"](1.5, 1) == 2


def test_checks_call_the_entry_point_and_know_the_helpers() -> None:
    checks = programs.checks(ADD)
    assert checks.names == ("add",) and checks.setup == ADD.setup and checks.code.endswith("check(add)\n")
    with pytest.raises(JaxsinkError, match="not a programming question"):
        programs.checks(dataclasses.replace(ADD, benchmark="gsm8k"))


def mbpp(tests: str, answer: str = "def f(x):\n    return x\n") -> Example:
    return Example("mbpp", "test", 0, "MBPP/11", "Write f.", answer, tests=tests)


def test_assertions_take_from_the_program_what_they_do_not_make_themselves() -> None:
    tests = "import math\nroot = Node(1)\nassert f(root, key=lambda item: item) == [math.pi for k in range(2)]\n"
    tests += "assert abs(g(3)) < 1\n"
    assert programs.checks(mbpp(tests)).names == ("Node", "f", "g")
    assert programs.checks(mbpp("assert sum(10, 15) == 6", "def sum(a, b):\n    return 6\n")).names == ("sum",)
    assert programs.checks(mbpp("assert f(3) == 3")).setup == ""
    assert programs.gold_program(mbpp(tests)) == "def f(x):\n    return x\n"
    with pytest.raises(JaxsinkError, match="MBPP/11 has code that is not Python"):
        programs.checks(mbpp("assert ("))


def test_modules_that_the_tests_use_are_not_taken_from_the_program() -> None:
    """A `math` of the program's own would find any two numbers close."""
    answer = "import math, cmath as c\nfrom fractions import Fraction\ndef f(x):\n    return x\n"
    checks = programs.checks(mbpp("assert math.isclose(f(3), 3) and c.pi > Fraction(3)", answer))
    assert checks.names == ("f",)
    assert checks.setup == "import math, cmath as c\nfrom fractions import Fraction"
