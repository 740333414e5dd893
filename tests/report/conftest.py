"""One browser for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.browser import CHROMIUM, Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs a browser: chromium is not installed (Debian: apt-get install chromium)")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
