"""The report of a study: what is in the page, what bad input gives, and the player in a real browser."""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from jaxsink.commands.report import add_parser
from jaxsink.errors import JaxsinkError
from jaxsink.report import page as page_module
from jaxsink.report import read_study, render
from jaxsink.report.runs import Packing, choose_packing, default_runs, encode, pack, read_run

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
EVIL = '</script><b id="evil">&amp;"\''
QUESTION = ["Tom", " has", " 3", " apples", " and", " buys", " 4", " more", ".", " How", " many", "?", "\n"]
ANSWER = ["Tom", " starts", " with", " 3", " apples", ".", "\n", "He", " buys", " 4", " more", ",", " so", " 3", " +", " 4",
          " =", " 7", ".", "\n", "####", " 7", "\n", "<|end|>", "<|end|>", "<|end|>", "<|end|>", "<|end|>"]  # fmt: skip
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 300 120"><rect width="300" height="120" fill="#fff"/>'
    '<path d="M10 110 L80 40 L150 70 L290 15" fill="none" stroke="#0072b2" stroke-width="3"/></svg>'
)
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def make_run(path: Path, kind: str, tokens: list[str] | None = None, layers: int = 3, heads: int = 2) -> dict:
    """A run whose sink moves from right to left (dlm), or sits on the first token (arm)."""
    tokens = QUESTION + ANSWER if tokens is None else tokens
    size, prompt = len(tokens), min(len(QUESTION), len(tokens) // 2)
    new = size - prompt
    noise = np.random.default_rng(7)
    committed = np.full(size, -1, np.int32)
    committed[prompt:] = np.arange(new) if kind == "arm" else noise.permutation(new)
    scores = noise.gamma(2.0, 0.25, (new, layers, heads, size))
    for step in range(new):
        sink = 0 if kind == "arm" else size - 1 - step * (size - 1) // new
        scores[step, :, :, sink] += 6 + 4 * noise.random((layers, heads))
        if kind == "arm":
            scores[step, :, :, committed >= step] = 0
    share = np.clip(noise.random(scores.shape), 0.2, 0.8)
    arrays = {
        "scores": scores.astype(np.float16),
        "committed_at": committed,
        "steps": np.arange(new, dtype=np.int32),
        "tokens": np.array(tokens),
        "prompt_length": np.array(prompt, np.int32),
        "title": np.array("Apples, one problem"),
        "model": np.array("mini-llama" if kind == "arm" else "mini-llada"),
        "kind": np.array(kind),
        "mask_text": np.array("[MASK]"),
    }
    if kind == "dlm":
        arrays |= {"masked": (scores * share).astype(np.float16), "unmasked": (scores * (1 - share)).astype(np.float16)}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return arrays


def make_study(path: Path, evil: str = "") -> Path:
    verdicts = ("holds", "holds partly", "does not hold", "not tested")
    for folder in ("experiments", "figures"):
        (path / folder).mkdir(parents=True)
    manifest = {"jaxsink": "0.1.0", "created": "2026-11-16T07:00:00Z", "models": {"mini-llada": {}, "mini-llama": {}}}
    (path / "manifest.json").write_text(
        json.dumps(manifest | {"settings": {"note": evil, "eps": 2.5}, "machine": {"cores": 2}})
    )
    table = {"title": f"Accuracy{evil}", "columns": ["model", "K", "accuracy"], "note": f"95 % intervals.{evil}"}
    rows = [["mini-llada", 0, 0.9123456], ["mini-llama", 1, "0.02 [0.01, 0.04]"], [f"x{evil}", 5, None]]
    for name, verdict in zip(("fig1", "fig2", "table1", "fig10"), verdicts, strict=True):
        experiment = {
            "name": name,
            "title": f"{name}: where the largest sink is{evil}",
            "question": f"Do sinks move while text is unmasked?{evil}",
            "paper": f"In LLaDA they drift to the right; in an autoregressive model they stay on the first token.{evil}",
            "found": f"The largest sink changes its position in 61 % [55, 67] of the steps of mini-llada.{evil}",
            "verdict": verdict,
            "figures": [f"{name}.svg"],
            "tables": [table | {"rows": rows}],
            "seconds": 12.3,
        }
        (path / "experiments" / f"{name}.json").write_text(json.dumps(experiment))
        (path / "figures" / f"{name}.svg").write_text(SVG)
        (path / "figures" / f"{name}.png").write_bytes(PIXEL)
    make_run(path / "player" / "a-llada.npz", "dlm", [*QUESTION, evil, *ANSWER] if evil else None)
    make_run(path / "player" / "b-llama.npz", "arm")
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("report") / "study")


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["report", *words])
    return args.run(args)


def test_page_is_complete_and_self_contained(study: Path) -> None:
    page = render(read_study(study))
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.search(r"https?://|@import|url\(|<link|<iframe|srcset", outside)
    assert all(source.startswith("data:image/") for source in re.findall(r"""\ssrc=["']([^"']*)""", page))
    assert "fetch(" not in page and "XMLHttpRequest" not in page and "default-src 'none'" in page
    for text in (
        "Do sinks move",
        "In LLaDA they drift",
        "61 % [55, 67]",
        "0.9123<",
        "0.02 [0.01, 0.04]",
        "95 % intervals.",
        "more than 2.5 above",
    ):
        assert text in page
    assert [page.index(f'id="e-{name}"') for name in ("fig1", "fig2", "fig10", "table1")] == sorted(
        page.index(f'id="e-{name}"') for name in ("fig1", "fig2", "table1", "fig10")
    )
    for sign, word in zip("✓◐✗–", ("1 holds", "1 holds partly", "1 does not hold", "1 was not tested"), strict=True):
        assert f"{sign}</span> {word}<" in page
    assert base64.b64encode(SVG.encode()).decode() in page
    assert "Tom starts with 3 apples." in page and len(page) < 1_000_000


def test_everything_is_escaped(tmp_path: Path) -> None:
    page = render(read_study(make_study(tmp_path / "s", EVIL)))
    assert 'id="evil"' not in page and "</script><b" not in page
    assert page.count("</script>") == page.count("<script")
    data = json.loads(re.search(r'id="study">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert EVIL in data["runs"][0]["tokens"]


def test_packed_numbers_come_back(tmp_path: Path) -> None:
    arrays = make_run(tmp_path / "r.npz", "dlm")
    run = read_run(tmp_path / "r.npz")
    about, blobs = pack(run, Packing(16, 1))
    raw = np.frombuffer(base64.b64decode(blobs["masked"]), "<f2").reshape(about["shape"])
    np.testing.assert_array_equal(raw, arrays["masked"])
    top = float(arrays["scores"].max())
    codes = np.frombuffer(encode(arrays["scores"], top, 8), np.uint8).reshape(arrays["scores"].shape)
    back, true = np.expm1(codes / 255 * np.log1p(top)), arrays["scores"].astype(float)
    assert (abs(back - true) <= 0.01 * (1 + true)).all()
    for packing in (Packing(16, 1), Packing(8, 1), Packing(8, 2), Packing(8, 4)):
        assert packing.size([run]) == sum(map(len, pack(run, packing)[1].values()))
        assert choose_packing([run], packing.size([run])) == packing
    with pytest.raises(JaxsinkError, match="too large for one page"):
        choose_packing([run], 10)


def test_a_long_run_still_fits(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = len(render(read_study(study)).encode())
    monkeypatch.setattr(page_module, "LIMIT", whole - 100)
    page = render(read_study(study))
    assert whole / 2 < len(page.encode()) < whole - 100 and "rounded to about 1 %" in page
    monkeypatch.setattr(page_module, "LIMIT", 20_000)
    with pytest.raises(JaxsinkError, match=r"MB, more than 0.0; the largest figure is .*\.svg"):
        render(read_study(study))


def test_frames_show_each_token_once(tmp_path: Path) -> None:
    for kind in ("dlm", "arm"):
        make_run(tmp_path / "r.npz", kind)
        run = read_run(tmp_path / "r.npz")
        fresh = np.array([run.fresh_at(frame) for frame in range(len(run.steps))])
        assert (fresh.sum(0) == (run.committed_at >= 0)).all() and run.shown_at(len(run.steps) - 1).all()


def test_huge_drawings_become_bitmaps(tmp_path: Path) -> None:
    path = make_study(tmp_path / "s")
    (path / "figures" / "fig2.svg").write_text(SVG + " " * page_module.LARGE_SVG)
    page = render(read_study(path))
    assert page.count("data:image/png") == 1 and page.count("data:image/svg+xml") == 3


def test_command_writes_page_and_animation(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    page, gif = tmp_path / "new" / "p.html", tmp_path / "g.gif"
    assert command(str(study), "--out", str(page), "--gif", str(gif), "--show", "b-llama,a-llada", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["page"] == str(page) and result["bytes"] == page.stat().st_size and result["gif"] == str(gif)
    assert '"show":[1,0]' in page.read_text() and not list(tmp_path.rglob("*.partial"))
    with image.open(io.BytesIO(gif.read_bytes())) as animation:
        assert animation.n_frames == result["gif_frames"] == len(ANSWER) and animation.size == (1280, 720)
        first = np.asarray(animation.convert("RGB")).astype(int)
        animation.seek(animation.n_frames - 1)
        assert (abs(np.asarray(animation.convert("RGB")).astype(int) - first).max(-1) > 30).mean() > 0.02
    assert gif.stat().st_size < 5_000_000


def test_page_without_generations(tmp_path: Path) -> None:
    path = make_study(tmp_path / "s")
    shutil.rmtree(path / "player")
    assert "recorded no generations" in render(read_study(path))
    with pytest.raises(JaxsinkError, match="nothing to animate"):
        command(str(path), "--gif", str(tmp_path / "g.gif"))
    assert not (path / "report.html").exists()


def test_default_runs_are_one_of_each_kind(study: Path) -> None:
    runs = read_study(study).runs
    assert [run.kind for run in default_runs(runs[::-1])] == ["dlm", "arm"] and default_runs(runs[:1]) == runs[:1]


BROKEN = {
    "manifest.json": (None, "holds no manifest.json"),
    "figures/fig2.svg": (None, r"fig2\.json names a figure that is missing: .*fig2\.svg"),
    "figures/fig10.png": (None, r"names a figure that is missing: .*fig10\.png"),
    "experiments/fig1.json": ("{", r"fig1\.json is not valid JSON"),
    "experiments/fig2.json": ('{"title": "t"}', r'fig2\.json needs a text "question"'),
    "player/a-llada.npz": ("no zip", r"a-llada\.npz is not a readable .npz file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named(name: str, tmp_path: Path) -> None:
    path, (text, message) = make_study(tmp_path / "s"), BROKEN[name]
    if text is None:
        (path / name).unlink()
    else:
        (path / name).write_text(text)
    with pytest.raises(JaxsinkError, match=message):
        command(str(path))
    assert not (path / "report.html").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None, "kind": None}, "lacks scores, kind"),
        ({"kind": np.array("rnn")}, 'kind is "rnn"'),
        ({"steps": np.arange(3)}, r"steps must have length 28, not shape \[3\]"),
        ({"masked": np.zeros((2, 2))}, r"masked must be floats \[28, 3, 2, 41\], not float64 \[2, 2\]"),
        ({"masked": None}, "both be there, or neither"),
        ({"scores": np.zeros(3)}, r"scores must be \[steps, layers, heads, tokens\], not \[3\]"),
    ],
)
def test_broken_runs_say_what_is_wrong(changes: dict, message: str, tmp_path: Path) -> None:
    arrays = make_run(tmp_path / "r.npz", "dlm") | changes
    np.savez(tmp_path / "r.npz", **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(JaxsinkError, match=r"r\.npz.*" + message):
        read_run(tmp_path / "r.npz")


def test_wrong_arguments(study: Path, tmp_path: Path) -> None:
    for words, message in (
        ([str(tmp_path / "none")], "is not a directory"),
        ([str(tmp_path)], "holds no manifest.json"),
        ([str(study), "--out", "page.pdf"], "must be a file that ends in .html"),
        ([str(study), "--show", "x"], 'no generation "x".*a-llada, b-llama'),
        ([str(study), "--show", "a,b,c"], "one or two generations, not 3"),
    ):
        with pytest.raises(JaxsinkError, match=message):
            command(*words)


START = """import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for number, end in zip((3, 4), ends):  # where chromium expects the pipe
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


MIDDLE = """(() => {
  const node = document.querySelector(%s);
  node.scrollIntoView({block: "center", behavior: "instant"});
  const box = node.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})()"""


class Browser:
    """Chromium, spoken to through a pipe: numbered JSON messages that end in a zero byte."""

    def __init__(self, profile: Path) -> None:
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ]
        words = [sys.executable, "-c", START, str(to_read), str(to_write), CHROMIUM or "", *options]
        self.process = subprocess.Popen(
            [*words, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self.session = b"", 0, None
        self.events: list[dict] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **params: object) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                more = os.read(self._in, 1 << 20)
                assert more, "the browser has ended"
                self._rest += more
            text, self._rest = self._rest.split(b"\0", 1)
            answer = json.loads(text)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def run(self, script: str) -> object:
        result = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def open(self, page: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url=page.as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def wait(self, script: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def press(self, key: str, shift: bool = False) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": " "} if key == " " and kind == "keyDown" else {}
            code = "Space" if key == " " else key
            self("Input.dispatchKeyEvent", type=kind, key=key, code=code, modifiers=8 if shift else 0, **text)

    def mouse(self, selector: str, click: bool = False) -> None:
        x, y = self.run(MIDDLE % json.dumps(selector))  # type: ignore[misc]
        for kind in ("mouseMoved", *(("mousePressed", "mouseReleased") if click else ())):
            self(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="left" if click else "none",
                clickCount=int(click),
            )

    def problems(self) -> list[str]:
        """Console messages, exceptions, and requests for anything but the page and what it holds itself."""
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                found.append(json.dumps(params))
            if method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
                ("data:", "file:", "about:")
            ):
                found.append(params["request"]["url"])
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._in)
        os.close(self._out)


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
