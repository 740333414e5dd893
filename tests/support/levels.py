"""Which levels of the sandbox can be had here. JAXSINK_EVERY_LEVEL=1 says that all can, so that none is passed over."""

from __future__ import annotations

import os

import pytest

from jaxsink.errors import JaxsinkError
from jaxsink.sandbox.levels import Level
from jaxsink.sandbox.runner import check_sandbox

EVERY_LEVEL = os.environ.get("JAXSINK_EVERY_LEVEL", "") not in ("", "0")


def offered(level: Level) -> bool:
    try:
        check_sandbox(level)
    except JaxsinkError:
        return False
    return True


def need(level: Level) -> None:
    """Skip the test where the level is not to be had; fail it where all are to be."""
    try:
        check_sandbox(level)
    except JaxsinkError as error:
        (pytest.fail if EVERY_LEVEL else pytest.skip)(f"the level {level} is not to be had here: {error}")
