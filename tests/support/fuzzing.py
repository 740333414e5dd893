"""Tests of Hypothesis that share a time: JAXSINK_FUZZ=SECONDS for all of them; without it a few examples each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from hypothesis import HealthCheck, settings

SECONDS = float(os.environ.get("JAXSINK_FUZZ", "0"))
EXAMPLES: dict[str, int] = {}
"""How many each collected test has tried."""
ROUND = 10  # examples between two looks at the clock
QUICK = 40  # examples of a quick run
limits = settings(
    max_examples=ROUND if SECONDS else QUICK,
    deadline=20_000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
Test = Callable[..., None]


def fuzzed(test: Test) -> Test:
    """A test of Hypothesis, in rounds with other examples until its part of the time is over."""
    inner = test.hypothesis.inner_test  # pyright: ignore[reportFunctionMemberAccess]
    name = test.__name__

    @wraps(inner)
    def counted(*args: Any, **given: Any) -> None:
        EXAMPLES[name] = EXAMPLES.get(name, 0) + 1
        inner(*args, **given)

    test.hypothesis.inner_test = counted  # pyright: ignore[reportFunctionMemberAccess]
    one_round = limits(test)

    @wraps(test)
    def rounds(*args: Any, **given: Any) -> None:
        end = time.monotonic() + SECONDS / len(EXAMPLES)
        one_round(*args, **given)
        while time.monotonic() < end:
            one_round(*args, **given)

    return rounds
