"""The report's player in a real browser: what slider, buttons, keys and choices change, and how it looks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from made_study import ANSWER, EVIL, QUESTION, make_study

from jaxsink.reporting import read_study, render
from jaxsink.reporting.runs import read_run


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory):
    if CHROMIUM is None:
        pytest.skip("needs a browser: chromium is not installed (Debian: apt-get install chromium)")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Browser:
    (tmp_path / "page.html").write_text(render(read_study(make_study(tmp_path / "s", EVIL))), encoding="utf-8")
    browser.events.clear()
    browser.open(tmp_path / "page.html")
    browser.run("localStorage.clear()")
    browser.run("document.getElementById('player').scrollIntoView({behavior: 'instant'})")
    return browser


PICTURE = "document.querySelector('.pane canvas').toDataURL()"
COLOURS = (
    "[...document.querySelectorAll('.pane:first-child .token')].map(t => t.style.getPropertyValue('--from')).join()"
)
STEP = "+document.getElementById('player').dataset.step"
SLIDE = "(() => {{ const s = document.getElementById('step'); s.value = {}; s.dispatchEvent(new Event('input')); }})()"
CHOOSE = "(() => {{ const s = document.querySelector('{}'); s.value = '{}'; s.dispatchEvent(new Event('change')); }})()"


def test_slider_changes_what_is_drawn(opened: Browser) -> None:
    seen = set()
    for step in (0, 5, 20, 28):
        opened.run(SLIDE.format(step))
        assert opened.run(STEP) == step
        seen.add((opened.run(PICTURE), opened.run(COLOURS)))
        masked = opened.run("document.querySelectorAll('.pane:first-child .token.masked').length")
        absent = opened.run("document.querySelectorAll('.pane:last-child .token.absent').length")
        assert masked == 28 - step and absent == max(0, 27 - step)
    assert len(seen) == 4 and opened.run("document.getElementById('evil')") is None
    tokens = opened.run("[...document.querySelectorAll('.pane:first-child .token')].map(t => t.textContent)")
    assert tokens == [text.replace("\n", "↵") for text in [*QUESTION, EVIL, *ANSWER]]
    assert opened.problems() == []


def test_play_pause_and_keys(opened: Browser) -> None:
    opened.run("document.getElementById('speed').value = '4'")
    opened.mouse("#play", click=True)
    opened.wait(f"{STEP} >= 3")
    opened.mouse("#play", click=True)
    stopped = opened.run(STEP)
    time.sleep(0.2)
    assert opened.run(STEP) == stopped
    opened.run("document.activeElement.blur()")
    opened.press("Home")
    assert opened.run(STEP) == 0
    opened.press("ArrowRight")
    opened.press("ArrowRight", shift=True)
    assert opened.run(STEP) == 11
    opened.press("ArrowLeft")
    assert opened.run(STEP) == 10
    opened.press("End")
    assert opened.run(STEP) == 28
    opened.press(" ")  # from the start again
    opened.wait(f"{STEP} > 1 && {STEP} < 28")
    opened.press(" ")
    assert opened.run("document.getElementById('play').textContent").endswith("Play")  # type: ignore[union-attr]
    title = opened.run("document.querySelector('[data-part=line-title]').textContent")
    opened.press("ArrowUp")
    assert opened.run("document.querySelector('[data-part=line-title]').textContent") != title
    assert opened.problems() == []


def test_tokens_layers_heads_and_queries(opened: Browser) -> None:
    opened.run(SLIDE.format(9))
    seen = {opened.run(COLOURS)}
    for select, value in (("layer", "1"), ("head", "1"), ("layer", "-1")):
        opened.run(CHOOSE.format(f".pane [data-part={select}]", value))
        seen.add(opened.run(COLOURS))
    for value in ("masked", "unmasked", "split"):
        opened.mouse(f"#queries input[value={value}]", click=True)
        seen.add(opened.run(COLOURS) + value)
    assert len(seen) == 7
    assert "without the split" in str(opened.run("document.querySelectorAll('.status')[1].textContent"))
    opened.mouse(".pane [data-position='8']", click=True)
    assert "Token 8, “.”, prompt" in str(opened.run("document.querySelector('[data-part=line-title]').textContent"))
    assert opened.run("document.querySelectorAll('.pane:first-child polyline').length") == 3
    run = read_run(
        Path(str(opened.run("decodeURIComponent(location.pathname)"))).parent / "s" / "player" / "a-llada.npz"
    )
    value = run.parts["scores"][9, :, 1, 8].astype(float).mean()
    assert f"from all tokens: {value:.2f}" in str(opened.run("document.getElementById('tip').textContent"))
    opened.run(CHOOSE.format(".pane [data-part=run]", "1"))
    opened.run(CHOOSE.format("#scale", "own"))
    opened.mouse(".pane .grid button[data-layer='2'][data-head='1']", click=True)
    assert opened.run("['layer', 'head'].map(p => document.querySelector(`[data-part=${p}]`).value).join()") == "2,1"
    opened.mouse(".pane .grid button.used", click=True)
    assert opened.run("document.querySelector('[data-part=layer]').value") == "-1"
    opened.mouse("#beside", click=True)
    assert opened.run("document.querySelectorAll('.pane')[1].hidden") is True
    assert opened.problems() == []


def test_light_dark_and_narrow(opened: Browser) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    page = Path(str(opened.run("decodeURIComponent(location.pathname)")))
    light = opened.run(background)
    opened.open(page, dark=True)
    assert opened.run(background) != light
    opened.mouse("#theme", click=True)
    assert opened.run(background) == light
    opened.run("localStorage.clear()")
    opened.open(page, width=360, height=740)
    assert opened.run("document.documentElement.scrollWidth <= 360")
    opened.mouse("figure .zoom", click=True)
    assert opened.run("document.getElementById('zoom').open") is True
    assert opened.problems() == []
