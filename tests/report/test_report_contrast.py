"""Text on coloured tokens can be read: WCAG contrast of at least 4.5 : 1, over the whole scale, in both themes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support.browser import SLIDE, Browser
from support.made_study import make_run, make_study

from jaxsink.report import read_study, render

LEVELS = 256  # tokens, one for each share of the colour scale
TOP, POWER = 40.0, 1.7
MEASURE = """[...document.querySelectorAll('.pane:first-child .token')].map(token => {
  const look = getComputedStyle(token);
  return [look.color, look.backgroundColor, look.opacity, token.textContent];
})"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose only run has a token at every place of the colour scale, at its last step."""
    folder = make_study(tmp_path_factory.mktemp("contrast") / "s")
    for file in (folder / "player").iterdir():
        file.unlink()
    arrays = make_run(folder / "player" / "all.npz", "dlm", [f"t{number}" for number in range(LEVELS)])
    shares = np.linspace(0, 1, LEVELS)
    arrays["scores"][:] = np.expm1(shares ** (1 / POWER) * np.log1p(TOP)).astype(np.float16)
    arrays["masked"] = (arrays["scores"] / 2).astype(np.float16)
    np.savez(folder / "player" / "all.npz", **arrays)
    (folder / "page.html").write_text(render(read_study(folder)), encoding="utf-8")
    return folder / "page.html"


def contrast(one: str, other: str) -> float:
    lights = sorted(luminance(colour) for colour in (one, other))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4
        for share in (int(number) / 255 for number in re.findall(r"\d+", colour)[:3])
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("queries", ["scores", "masked", "unmasked", "split"])
@pytest.mark.parametrize("dark", [False, True])
def test_every_token_can_be_read(browser: Browser, page: Path, dark: bool, queries: str) -> None:
    browser.open(page, dark=dark)
    browser.run("document.querySelector('.more').open = true")
    browser.mouse(f"#queries input[value={queries}]", click=True)
    browser.run(SLIDE.format(10_000))
    tokens: list[list[str]] = browser.run(MEASURE)  # type: ignore[assignment]
    assert len(tokens) == LEVELS and all(text for *_, text in tokens)
    assert all(opacity == "1" for _, _, opacity, _ in tokens)
    found = [contrast(ink, paper) for ink, paper, *_ in tokens]
    papers = {paper for _, paper, *_ in tokens}
    print(json.dumps({"dark": dark, "queries": queries, "least": round(min(found), 2), "colours": len(papers)}))
    assert min(found) >= 4.5
    assert len(papers) == 1 if queries == "split" else len(papers) > 150  # split: colours above and below the text
