"""The report of a study: what is in the page, and what bad input gives."""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.made_study import ANSWER, EVIL, MOVING, SVG, make_run, make_study

from jaxsink.cli.report import add_parser
from jaxsink.errors import JaxsinkError
from jaxsink.report import figures, read_study, render
from jaxsink.report import page as page_module
from jaxsink.report.gif import colours, ink_on, lay_out, luminance, make_panel
from jaxsink.report.played import Packing, choose_packing, encode, pack, read_generation
from jaxsink.report.view import View, choose_generation, movement, opening, views
from jaxsink.sinks import Threshold, track


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
        "steps shuffled",
        "0.4567<",
        "more than 2.5 above",
    ):
        assert text in page
    assert [page.index(f'id="e-{name}"') for name in ("fig1", "fig2", "fig10", "table1", "dose")] == sorted(
        page.index(f'id="e-{name}"') for name in ("fig1", "fig2", "table1", "fig10", "dose")
    )
    words = ("1 is supported", "1 is refuted", "2 are undecided", "1 cannot be tested here")
    for sign, word in zip("✓✗?–", words, strict=True):
        assert f"{sign}</span> {word}<" in page
    assert page.count("M10 110 L80 40 L150 70 L290 15") == 5
    assert "Tom starts with 3 apples." in page and len(page) < 1_000_000


def test_everything_is_escaped(tmp_path: Path) -> None:
    page = render(read_study(make_study(tmp_path / "s", EVIL)))
    assert 'id="evil"' not in page and "</script><b" not in page
    assert page.count("</script>") == page.count("<script")
    data = json.loads(re.search(r'id="study">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert EVIL in data["generations"][0]["tokens"]


def test_packed_numbers_come_back(tmp_path: Path) -> None:
    arrays = make_run(tmp_path / "r.npz", "dlm")
    run = read_generation(tmp_path / "r.npz")
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
        run = read_generation(tmp_path / "r.npz")
        fresh = np.array([run.fresh_at(frame) for frame in range(len(run.steps))])
        assert (fresh.sum(0) == (run.committed_at >= 0)).all() and run.shown_at(len(run.steps) - 1).all()


def test_drawings_follow_the_theme_and_bring_no_script(tmp_path: Path) -> None:
    evil = SVG.replace(
        "<defs>",
        '<script>alert(1)</script><foreignObject/><style>*{}</style><a xlink:href="javascript:1"/><defs onload="x()">',
    )
    evil = evil.replace('<use xlink:href="#tick"', '<image xlink:href="file:///etc/passwd"/><use xlink:href="#tick"')
    (tmp_path / "f1.svg").write_text(evil)
    drawn = figures.figure_html(tmp_path / "f1.svg", "t")
    assert not re.search("script|foreignObject|<style|<a |onload|passwd|xmlns", drawn)
    assert 'style="fill: none"' in drawn and "stroke: currentColor" in drawn and "#000000" not in drawn
    assert 'width="420"' in drawn and 'height="120"' not in drawn  # 1.4 times the printed size
    assert 'id="f1-tick"' in drawn and 'href="#f1-tick"' in drawn and "#0072b2" in drawn
    (tmp_path / "f1.svg").write_text("<html/>")
    with pytest.raises(JaxsinkError, match=r"f1\.svg is not a valid SVG drawing: it starts with html"):
        figures.figure_html(tmp_path / "f1.svg", "t")
    (tmp_path / "f1.svg").write_text("<svg")
    with pytest.raises(JaxsinkError, match=r"f1\.svg is not a valid SVG drawing"):
        figures.figure_html(tmp_path / "f1.svg", "t")


def test_huge_drawings_become_bitmaps(tmp_path: Path) -> None:
    path = make_study(tmp_path / "s")
    (path / "figures" / "fig2.svg").write_text(SVG + " " * figures.LARGE)
    page = render(read_study(path))
    assert page.count("<figure class=bitmap>") == page.count('src="data:image/png') == 1 and page.count("<figure>") == 4


def test_command_writes_page_and_animation(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    page, gif = tmp_path / "new" / "p.html", tmp_path / "g.gif"
    words = [str(study), "--out", str(page), "--gif", str(gif), "--json"]
    assert command(*words, "--show", "b-llama,a-llada", "--layer", "2", "--head", "mean") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["page"] == str(page) and result["bytes"] == page.stat().st_size and result["gif"] == str(gif)
    shown = [{"generation": 2, "layer": 2, "head": -1}, {"generation": 0, "layer": 2, "head": -1}]
    assert f'"show":{json.dumps(shown, separators=(",", ":"))}' in page.read_text()
    assert [view["generation"] for view in result["shown"]] == ["b-llama", "a-llada"] and not list(
        tmp_path.rglob("*.partial")
    )
    with image.open(io.BytesIO(gif.read_bytes())) as animation:
        assert animation.n_frames == result["gif_frames"] == len(ANSWER) and animation.size == (1280, 720)
        first = np.asarray(animation.convert("RGB")).astype(int)
        animation.seek(animation.n_frames - 1)
        assert (abs(np.asarray(animation.convert("RGB")).astype(int) - first).max(-1) > 30).mean() > 0.02
    assert gif.stat().st_size < 5_000_000
    before = gif.read_bytes()
    assert command(*words, "--show", "a-llada") == 0
    shown = json.loads(capsys.readouterr().out)["shown"]
    assert shown == [{"generation": "a-llada", "layer": MOVING[0], "head": MOVING[1]}] and gif.read_bytes() != before


def test_animation_tells_nothing_of_what_is_to_come(tmp_path: Path) -> None:
    """Two runs whose prompts and first tokens are equal look the same until the others appear; then they differ."""
    pytest.importorskip("PIL")
    make_run(tmp_path / "r.npz", "dlm")
    run = read_generation(tmp_path / "r.npz")
    frame = 9
    to_come = np.flatnonzero(~run.shown_at(frame))
    other = run.tokens.copy()
    for place in to_come:
        other[place] = "\n" if place % 3 else " incomprehensibly"
    panels = [make_panel(View(replace(run, tokens=tokens), 0, 0), 36, 500) for tokens in (run.tokens, other)]
    panels = [replace(panel, font=panels[0].font) for panel in panels]
    assert lay_out(panels[0], frame) == lay_out(panels[1], frame)
    boxes = lay_out(panels[0], frame)
    assert len({round(boxes[place][2] - boxes[place][0], 3) for place in to_come if boxes[place][2] < 536}) == 1
    last = len(run.steps) - 1
    assert lay_out(panels[0], last) != lay_out(panels[1], last)


def test_ink_of_the_animation_is_readable_on_every_shade() -> None:
    pytest.importorskip("matplotlib")
    for shade in colours(np.linspace(0, 1, 1001)):
        shade = tuple(int(value) for value in shade)
        dark, light = sorted((luminance(shade), luminance(ink_on(shade))))
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_page_without_generations(tmp_path: Path) -> None:
    path = make_study(tmp_path / "s")
    shutil.rmtree(path / "player")
    assert "recorded no generations" in render(read_study(path))
    with pytest.raises(JaxsinkError, match="nothing to animate"):
        command(str(path), "--gif", str(tmp_path / "g.gif"))
    assert not (path / "report.html").exists()


def test_the_page_opens_where_a_sink_moves_beside_the_same_with_it_hidden(study: Path) -> None:
    everything = read_study(study)
    runs = {run.name: run for run in everything.generations}
    first, second = opening(everything.generations, 3.0)
    assert (first.generation.name, first.layer, first.head) == ("a-llada", *MOVING)
    assert (second.generation.name, second.layer, second.head) == ("a-llada-hidden", *MOVING)
    without = [run for run in everything.generations if not run.condition]
    assert [view.generation.name for view in opening(without, 3.0)] == ["a-llada", "b-llama"]
    assert [view.generation.name for view in opening([runs["b-llama"]], 3.0)] == ["b-llama"] and opening([], 3.0) == []
    assert choose_generation(everything.generations, "mini-llada", 3.0).name == "a-llada"
    (view,) = views([runs["a-llada"]], 3.0, head=-1)
    np.testing.assert_allclose(view.scores, runs["a-llada"].parts["scores"][:, 1].astype(float).mean(1), rtol=1e-3)


def test_movement_is_what_tracking_calls_jumps(tmp_path: Path) -> None:
    noise = np.random.default_rng(3)
    for kind in ("dlm", "arm"):
        make_run(tmp_path / "r.npz", kind)
        run = read_generation(tmp_path / "r.npz")
        scores = noise.gamma(0.3, 1.5, run.parts["scores"].shape).astype(np.float16) * run.exists()[:, None, None]
        run = replace(run, parts={"scores": scores.astype(np.float16)})
        found = track(scores[:, :, None].astype(np.float32), Threshold(3.0), run.exists()[:, None])
        jumps, distance = movement(run, 3.0)
        np.testing.assert_array_equal(jumps, np.asarray(found.jumps)[:, 0])
        assert jumps.sum() > 20 and (distance >= jumps).all()


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
        ({"steps": np.arange(3)}, "steps has 3 along its axis T, and scores has 28"),
        ({"steps": np.array(["x"] * 28)}, "steps must be an array of whole numbers"),
        ({"tokens": np.zeros(41)}, r"tokens must be texts \[41\], not float64"),
        ({"masked": np.zeros((2, 2))}, r"masked must be floats \[28, 3, 2, 41\], not float64 \[2, 2\]"),
        ({"scores": np.zeros(3)}, r"scores must be \[steps, layers, heads, tokens\], not \[3\]"),
    ],
)
def test_broken_runs_say_what_is_wrong(changes: dict, message: str, tmp_path: Path) -> None:
    arrays = make_run(tmp_path / "r.npz", "dlm") | changes
    np.savez(tmp_path / "r.npz", **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(JaxsinkError, match=r"r\.npz.*" + message):
        read_generation(tmp_path / "r.npz")


def test_wrong_arguments(study: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text('{"kind": "training"}')
    for words, message in (
        ([str(tmp_path / "run")], "holds a run of another kind \\(training\\)"),
        ([str(tmp_path / "none")], "is not a directory"),
        ([str(tmp_path)], "holds no manifest.json"),
        ([str(study), "--out", "page.pdf"], "must be a file that ends in .html"),
        ([str(study), "--show", "x"], 'no generation "x".*a-llada, a-llada-hidden, b-llama'),
        ([str(study), "--layer", "3"], "mini-llada has layers 0 to 2, and no layer 3"),
        ([str(study), "--show", "b-llama", "--head", "7"], "mini-llama has heads 0 to 1, and no head 7"),
        ([str(study), "run.npz"], "one directory of a study, or one or several"),
        ([str(study), "--show", "a,b,c"], "one or two generations, not 3"),
    ):
        with pytest.raises(JaxsinkError, match=message):
            command(*words)
