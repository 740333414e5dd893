"""The report's player in a real browser: what slider, buttons, keys and choices change, and how it looks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.browser import SLIDE, Browser
from support.made_study import ANSWER, EVIL, MOVING, QUESTION, make_study

from jaxsink.report import read_study, render
from jaxsink.report.played import read_generation


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Browser:
    (tmp_path / "page.html").write_text(render(read_study(make_study(tmp_path / "s", EVIL))), encoding="utf-8")
    browser.events.clear()
    browser.open(tmp_path / "page.html")
    browser.run("localStorage.clear()")
    return browser


PICTURE = "document.querySelector('.pane .map').outerHTML"
COLOURS = (
    "[...document.querySelectorAll('.pane:first-child .token')].map(t => t.style.getPropertyValue('--from')).join()"
)
STEP = "+document.getElementById('player').dataset.step"
CHOOSE = "(() => {{ const s = document.querySelector('{}'); s.value = '{}'; s.dispatchEvent(new Event('change')); }})()"
CHOSEN = """[...document.querySelectorAll('.pane')].map(
  p => ['generation', 'layer', 'head'].map(d => p.querySelector(`[data-part=${d}]`).value).join()).join(' ')"""


def page_of(browser: Browser) -> Path:
    return Path(str(browser.run("decodeURIComponent(location.pathname)")))


def test_slider_changes_what_is_drawn(opened: Browser) -> None:
    opened.run(CHOOSE.format("#beside", "2"))
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
    opened.press("ArrowDown")
    assert opened.run("document.querySelector('[data-part=line-title]').textContent") != title
    assert opened.problems() == []


def test_tokens_layers_heads_and_queries(opened: Browser) -> None:
    opened.run(CHOOSE.format("#beside", "2"))
    opened.run(SLIDE.format(9))
    seen = {opened.run(COLOURS)}
    for select, value in (("layer", "0"), ("head", "0"), ("layer", "-1")):
        opened.run(CHOOSE.format(f".pane [data-part={select}]", value))
        seen.add(opened.run(COLOURS))
    opened.mouse(".more summary", click=True)
    for value in ("masked", "unmasked", "split"):
        opened.mouse(f"#queries input[value={value}]", click=True)
        seen.add(opened.run(COLOURS) + value)
    assert len(seen) == 7
    assert "without the split" in str(opened.run("document.querySelectorAll('.status')[1].textContent"))
    opened.mouse(".pane [data-position='8']", click=True)
    assert "Position 8, “.”, prompt" in str(opened.run("document.querySelector('[data-part=line-title]').textContent"))
    assert opened.run("document.querySelectorAll('.pane:first-child polyline').length") == 3
    run = read_generation(page_of(opened).parent / "s" / "player" / "a-llada.npz")
    value, masked = (run.parts[part][9, :, 0, 8].astype(float).mean() for part in ("scores", "masked"))
    tip = str(opened.run("document.getElementById('tip').textContent"))
    assert f"from all tokens: {value:.2f}" in tip and f"from unmasked tokens: {value - masked:.2f}" in tip
    opened.run(CHOOSE.format(".pane [data-part=generation]", "2"))
    opened.run(CHOOSE.format("#scale", "own"))
    opened.mouse(".pane .grid button[data-layer='2'][data-head='1']", click=True)
    assert str(opened.run(CHOSEN)).startswith("2,2,1 ")
    opened.mouse(".pane .grid button.used", click=True)
    assert str(opened.run(CHOSEN)).startswith("2,-1,-1 ")
    opened.run(CHOOSE.format("#beside", "-1"))
    assert opened.run("document.querySelectorAll('.pane')[1].hidden") is True
    assert opened.problems() == []


def test_light_dark_and_narrow(opened: Browser) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('figure defs path')).stroke"  # of a figure's axis
    page = page_of(opened)
    light = [opened.run(background), opened.run(ink)]
    opened.open(page, dark=True)
    assert opened.run(background) != light[0] and opened.run(ink) != light[1]
    opened.mouse("#theme", click=True)
    assert [opened.run(background), opened.run(ink)] == light
    opened.run("localStorage.clear()")
    opened.open(page, width=360, height=740)
    assert opened.run("document.documentElement.scrollWidth <= 360")
    opened.mouse("figure .zoom", click=True)
    assert opened.run("document.getElementById('zoom').open") is True
    assert opened.run("document.querySelectorAll('#zoom svg').length") == 1
    assert opened.problems() == []


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_opens_on_the_moving_head_with_the_player_in_sight(opened: Browser, width: int, height: int) -> None:
    opened.open(page_of(opened), width, height)
    layer, head = MOVING
    assert opened.run(CHOSEN) == f"0,{layer},{head} 1,{layer},{head}"
    bottoms = (
        "['#play', '.pane .tokens', '.pane .map'].map(s => document.querySelector(s).getBoundingClientRect().bottom)"
    )
    assert 0 < float(str(opened.run(f"Math.max(...{bottoms})"))) <= height
    assert opened.run("scrollY") == 0


def test_runs_of_one_model_share_the_head_and_problems_change_together(opened: Browser) -> None:
    opened.run(CHOOSE.format(".pane:last-child [data-part=layer]", "2"))
    assert opened.run(CHOSEN) == "0,2,1 1,2,1"
    hidden = "document.querySelectorAll('.pane:{}-child .token.hidden').length"
    opened.run(SLIDE.format(3))
    assert opened.run(hidden.format("last")) == 1 and opened.run(hidden.format("first")) == 0
    opened.mouse(".pane [data-part=moving]", click=True)
    assert opened.run(CHOSEN) == "0,1,1 1,1,1"
    assert opened.run("[...document.getElementById('problem').options].map(o => o.textContent.split(':')[0])") == [
        "Problem 1",
        "Problem 2",
    ]
    opened.run(CHOOSE.format("#problem", "Problem 2"))
    assert str(opened.run(CHOSEN)).startswith("3,1,1 ")
    assert opened.problems() == []


def test_masked_slots_tell_nothing_of_what_is_to_come(opened: Browser) -> None:
    masked = "[...document.querySelectorAll('.pane:first-child .masked')]"
    widths = f"[...new Set({masked}.map(t => t.getBoundingClientRect().width))]"
    opened.run(SLIDE.format(2))
    assert len(opened.run(widths)) == 1  # type: ignore[arg-type]
    seen = f"{masked}.map(t => t.textContent).join('')"
    breaks = "[...document.querySelectorAll('.pane:first-child br')].map(b => getComputedStyle(b).display !== 'none')"
    assert opened.run(seen) == ""
    committed = read_generation(page_of(opened).parent / "s" / "player" / "a-llada.npz").committed_at
    tokens = [*QUESTION, EVIL, *ANSWER]
    for step in (2, 28):
        opened.run(SLIDE.format(step))
        known = [bool(committed[place] <= step) for place, text in enumerate(tokens) if "\n" in text]
        assert opened.run(breaks) == known
    opened.run(SLIDE.format(2))
    place = next(place for place in range(len(tokens)) if committed[place] > 20)
    opened.mouse(f".pane:first-child [data-position='{place}']", click=True)
    told = "document.getElementById('tip').textContent + document.querySelector('[data-part=line-title]').textContent"
    assert "still to come" in str(opened.run(told)) and "“" not in str(opened.run(told))


def test_address_keeps_the_view(opened: Browser) -> None:
    assert opened.run("location.hash") == ""
    opened.run(CHOOSE.format("#beside", "2"))
    opened.run(CHOOSE.format(".pane [data-part=layer]", "2"))
    opened.run("document.body.focus()")
    opened.press("ArrowRight")
    address = opened.run("location.hash")
    assert address == "#generation=a-llada&layer=2&head=1&beside=b-llama&layer2=0&head2=0&step=1"
    opened.run("location.hash = '#generation=c-llada&layer=0&head=mean&step=4'")
    opened.wait(f"{STEP} === 4")
    assert str(opened.run(CHOSEN)).startswith("3,0,-1 ")
    assert opened.run("document.querySelectorAll('.pane')[1].hidden") is True
    page = page_of(opened)
    opened("Page.navigate", url="about:blank")
    opened("Page.navigate", url=page.as_uri() + str(address))
    opened.wait(f"document.readyState === 'complete' && {STEP} === 1")
    assert str(opened.run(CHOSEN)).startswith("0,2,1 2,")
    assert opened.problems() == []


def test_full_screen(opened: Browser) -> None:
    opened.mouse("#full", click=True)
    opened.wait("document.fullscreenElement?.id === 'player'")
    opened.mouse(".pane [data-position='3']")
    assert (
        opened.run("document.getElementById('tip').hidden || !document.getElementById('player').contains(tip)") is False
    )
    opened.mouse("#full", click=True)
    opened.wait("document.fullscreenElement === null")


def test_view_as_drawing_and_bitmap(opened: Browser, tmp_path: Path) -> None:
    from xml.etree import ElementTree

    folder = tmp_path / "downloads"
    opened("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    opened.run(SLIDE.format(5))
    name = f"a-llada-layer{MOVING[0]}-head{MOVING[1]}-step5"
    for kind in ("svg", "png"):
        opened.mouse(f"#{kind}", click=True)
        end = time.monotonic() + 20
        while not (folder / f"{name}.{kind}").is_file():
            assert time.monotonic() < end, f"no {kind} came"
            time.sleep(0.05)
    drawing = ElementTree.parse(folder / f"{name}.svg").getroot()
    texts = [node.text or "" for node in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert (
        "mini-llada · layer 1, head 1 · step 5" in texts and "Tom" in texts and "step" in texts and "position" in texts
    )
    assert "starts" not in texts or "starts" in str(opened.run("document.querySelector('.tokens').textContent"))
    assert len(list(drawing.iter("{http://www.w3.org/2000/svg}image"))) == 2
    assert "var(" not in (folder / f"{name}.svg").read_text() and "class=" not in (folder / f"{name}.svg").read_text()
    with pytest.importorskip("PIL.Image").open(folder / f"{name}.png") as bitmap:
        assert bitmap.size == (2 * int(drawing.get("width", "0")), 2 * int(drawing.get("height", "0")))
        assert len(bitmap.convert("RGB").getcolors(1 << 24)) > 50
    assert opened.problems() == []


def test_values_under_the_pointer(opened: Browser) -> None:
    opened.mouse("figure svg")  # its middle: step 5, received 10 on a logarithmic axis
    assert opened.run("document.getElementById('tip').textContent") == "mini-llada\nstep 5\nreceived 10"
    opened.run(SLIDE.format(12))
    opened.mouse(".pane .trajectory")
    assert "it receives" in str(opened.run("document.getElementById('tip').textContent"))
    opened.mouse(".pane .map")
    assert "position 23, unmasked at step 12" in str(opened.run("document.getElementById('tip').textContent"))
    assert opened.problems() == []
