"""How many examples each test tried; with JAXSINK_FUZZ=SECONDS it is an error that one tried none."""

from __future__ import annotations

import pytest
from support.fuzzing import EXAMPLES, SECONDS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "fuzz" in item.path.parts:
            EXAMPLES.setdefault(item.name, 0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if SECONDS and not all(EXAMPLES.values()) and not session.config.option.collectonly:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name, count in EXAMPLES.items() if SECONDS else ():
        terminalreporter.write_line(f"{name}: {count} examples" if count else f"{name} was not reached")
