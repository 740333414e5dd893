"""The page of one's own run: from a generation, from a recorded file, in a notebook; and one sentence when it cannot be."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively

import jaxsink
from jaxsink.cli.main import main
from jaxsink.report import own
from jaxsink.report.generations import played_generations
from jaxsink.report.scores import whole_scores
from jaxsink.sampling.record_file import read_record
from jaxsink.text.token_texts import token_text, token_texts

pytestmark = pytest.mark.usefixtures("quick_compilation")
PROMPTS = [[5, 17, 31, 9], [7, 8]]


class Words(jaxsink.Tokenizer):
    """A tokenizer of made-up words."""

    def __init__(self) -> None:
        pass

    def decode(self, ids: list[int], skip_special: bool = True) -> str:
        return "".join("�" if i == 31 else f"word{i}" for i in ids)

    def token(self, index: int) -> str:
        return "<0xE2>" if index == 31 else f"␣word{index}"


@pytest.fixture(scope="module")
def diffusion() -> jaxsink.Generation:
    record = {"received": jaxsink.record.received(), "kinds": jaxsink.record.received_by_query()}
    return jaxsink.generate(lively(FAMILIES["llada"]), PROMPTS, jaxsink.LLaDASampler(8, 8, 8), record=record)


@pytest.fixture(scope="module")
def autoregressive() -> jaxsink.Generation:
    model = lively(FAMILIES["smollm2"])
    return jaxsink.generate(model, PROMPTS, jaxsink.ARSampler(6, stop_at_eos=False), record=jaxsink.record.received())


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'id="study">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def test_report_writes_the_player_page(diffusion: jaxsink.Generation, tmp_path: Path) -> None:
    page = jaxsink.report(diffusion, Words(), tmp_path / "new" / "r.html", title="tiny")  # type: ignore[arg-type]
    text = Path(page).read_text()
    data = data_of(text)
    assert str(page) == str(tmp_path / "new" / "r.html") and "What the study finds" not in text
    assert [(run["model"], run["problem"], run["kind"]) for run in data["generations"]] == [
        ("tiny", "Sequence 1", "dlm"),
        ("tiny", "Sequence 2", "dlm"),
    ]
    first, second = data["generations"]
    assert first["tokens"][:4] == [" word5", " word17", "<0xE2>", " word9"] and first["shape"] == [8, 3, 6, 12]
    assert second["promptLength"] == 2 and second["shape"] == [8, 3, 6, 10]  # without the padding
    assert second["committedAt"] == np.asarray(diffusion.committed_at)[1, 2:].tolist()
    assert set(first["parts"]) == {"scores", "masked"} and len(data["show"]) == 1
    frame = page._repr_html_()
    assert frame.startswith("<iframe") and "&lt;!doctype html&gt;" in frame and "<script" not in frame


def test_runs_hold_what_was_recorded(diffusion: jaxsink.Generation) -> None:
    runs = played_generations(diffusion, [token_texts(None, row) for row in np.asarray(diffusion.tokens)], "r", "m")
    expected = np.asarray(diffusion.record["received"])[:, :, 1][..., 2:]
    np.testing.assert_allclose(runs[1].parts["scores"], expected, rtol=1e-3, atol=1e-4)
    assert runs[0].tokens[0] == " 5"
    alone = replace(diffusion, record=diffusion.record["kinds"])  # without the whole: the sum of its parts
    scores, masked = whole_scores(alone)
    np.testing.assert_allclose(scores, np.asarray(diffusion.record["received"]), atol=1e-5)
    np.testing.assert_array_equal(masked, np.asarray(diffusion.record["kinds"]["masked"]))


def test_scores_of_the_newest_token_have_the_mean_of_the_rest(autoregressive: jaxsink.Generation) -> None:
    """One row of attention adds up to 1; in the page the mean over the tokens that exist is 1, as for whole maps."""
    assert np.asarray(autoregressive.record).sum(-1).max() < 1.01
    for run in played_generations(autoregressive, [[""] * 10] * 2, "r", "m"):
        assert run.kind == "arm"
        there = run.exists()[:, None, None]
        mean = (run.parts["scores"].astype(float) * there).sum(-1) / there.sum(-1)
        np.testing.assert_allclose(mean, 1.0, atol=0.01)


def test_several_runs_are_compared(diffusion: jaxsink.Generation, tmp_path: Path) -> None:
    pair = {"plain": diffusion, "top sink hidden": replace(diffusion)}
    data = data_of(Path(jaxsink.report(pair, out=tmp_path / "r.html")).read_text())
    assert [run["condition"] for run in data["generations"]] == ["plain"] * 2 + ["top sink hidden"] * 2
    assert len({run["name"] for run in data["generations"]}) == 4 and len(data["show"]) == 2
    shown = [data["generations"][view["generation"]] for view in data["show"]]
    assert shown[0]["problem"] == shown[1]["problem"] and shown[0]["condition"] != shown[1]["condition"]


def test_show_prints_a_path_without_a_screen(diffusion: jaxsink.Generation, monkeypatch: Any, capsys: Any) -> None:
    opened: list[str] = []
    monkeypatch.setattr(own.webbrowser, "open", opened.append)
    monkeypatch.setattr(own.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert diffusion.show() is None and opened == []
    path = Path(capsys.readouterr().out.strip())
    assert data_of(path.read_text())["generations"] and path.suffix == ".html"
    path.unlink()
    monkeypatch.setenv("DISPLAY", ":0")
    diffusion.show()
    path = Path(capsys.readouterr().out.strip())
    assert opened == [path.as_uri()]
    path.unlink()


def test_show_in_a_notebook(diffusion: jaxsink.Generation, monkeypatch: Any, capsys: Any) -> None:
    shown: list[str] = []
    display = SimpleNamespace(HTML=str, display=shown.append)
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    diffusion.show()
    assert len(shown) == 1 and shown[0].startswith("<iframe") and capsys.readouterr().out == ""
    assert not shown[0].endswith("</iframe>")  # of which IPython warns
    del shell.kernel  # a terminal, although IPython's
    monkeypatch.setattr(own, "has_screen", lambda: False)
    diffusion.show()
    assert len(shown) == 1
    Path(capsys.readouterr().out.strip()).unlink()


def top(scores: Any) -> dict[str, Any]:
    return {"score": scores[..., :2], "position": scores[..., :2].astype(np.int32)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda scores: None, "nothing was recorded.*--record-what received"),
        (top, r"the record holds score \[8, 3, 2, 6, 2\], position .*no scores of every key"),
        (lambda scores: {"key_norm": scores}, "no scores of every key"),
        (
            lambda scores: {"a": scores, "b": scores},
            r'several arrays of scores \(a, b\); call the one to show "received"',
        ),
    ],
)
def test_records_that_cannot_be_shown(diffusion: jaxsink.Generation, change: Any, message: str, tmp_path: Path) -> None:
    other = replace(diffusion, record=change(np.asarray(diffusion.record["received"])))
    with pytest.raises(jaxsink.JaxsinkError, match=message):
        jaxsink.report(other, out=tmp_path / "r.html")
    assert not list(tmp_path.iterdir())


def test_other_arguments_that_cannot_be_shown(diffusion: jaxsink.Generation, tmp_path: Path) -> None:
    with pytest.raises(jaxsink.JaxsinkError, match=r"ends in \.html"):
        jaxsink.report(diffusion, out=tmp_path / "r.pdf")
    with pytest.raises(jaxsink.JaxsinkError, match="source must be a Generation or a mapping or a text or a path"):
        jaxsink.report(np.zeros(3), out=tmp_path / "r.html")  # type: ignore[arg-type]
    with pytest.raises(jaxsink.JaxsinkError, match="no generation to show"):
        jaxsink.report({}, out=tmp_path / "r.html")


def test_recorded_on_the_command_line_then_reported(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXSINK_COMPILE_CACHE", "off")
    question = "Mia has 4 apples. She buys 3 more apples."
    made = ["generate", "mini-llada", question, "--tokens", "8", "--steps", "8", "--block", "8", "--no-live"]
    assert main([*made, "--record", "run.npz", "--record-what", "by_query,top"]) == 0
    assert main(["report", "run.npz"]) == 0
    assert "run.html" in capsys.readouterr().out
    data = data_of((tmp_path / "run.html").read_text())
    (run,) = data["generations"]
    assert run["model"] == "mini-llada" and "".join(run["tokens"]).startswith(f"<|bos|>{question}")
    generation, texts, settings = read_record(tmp_path / "run.npz")
    assert settings["steps"] == 8 and len(texts[0]) == generation.tokens.shape[1]
    assert run["committedAt"] == generation.committed_at[0].tolist()
    assert main(["report", "run.npz", "run.npz", "--out", "two.html", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["generations"] == ["run", "run-2"]

    broken = {
        "none.npz": (None, "none.npz is not a file"),
        "half.npz": ({"tokens": np.zeros((1, 3))}, "half.npz lacks committed_at, mask"),
        "top.npz": ("top", "top.npz: the record holds top.position .*--record-what received"),
    }
    for name, (arrays, message) in broken.items():
        if arrays == "top":
            with np.load("run.npz") as file:
                arrays = {key: file[key] for key in file.files if not key.startswith("by_query")}
        if arrays is not None:
            np.savez(name, **arrays)
        capsys.readouterr()
        assert main(["report", name]) == 2
        assert re.search(message, capsys.readouterr().err) and not Path(name).with_suffix(".html").exists()


CHANGES: list[tuple[str, Any, str]] = [
    ("tokens", lambda v: v[0], r"tokens must be an array of whole numbers \[B,S\], not of shape"),
    ("tokens", lambda v: np.full(v.shape, np.nan), "tokens must be an array of whole numbers .*, not of float64"),
    ("tokens", lambda v: -v, "tokens must hold finite numbers from 0"),
    ("committed_at", lambda v: v[:, :1], "committed_at has 1 along its axis S, and tokens has"),
    ("mask", np.zeros_like, "mask must have a real token in every sequence"),
    ("recorded_steps", lambda v: v[::-1], "recorded_steps must increase"),
    ("prompt_length", lambda v: v + 10**6, "prompt_length must lie inside the sequence"),
    ("autoregressive", lambda v: np.array("x"), "autoregressive must be an array of True and False"),
    ("token_texts", lambda v: v[0], "token_texts must be texts"),
    ("token_texts", lambda v: np.full(v.shape, "\ud800"), "one of them is no text"),
    ("settings", lambda v: np.array("3"), "must hold a JSON object, not int"),
    ("settings", lambda v: np.array(3), "settings must be texts"),
    ("settings", lambda v: np.array('{"words": [3]}'), "settings words must be a mapping"),
    ("received", lambda v: v[0], "received has .* along its axis"),
    ("received", lambda v: v * np.nan, "received must hold finite numbers"),
    ("received", lambda v: -v, "received must hold finite numbers of 0 or more"),
    ("lens.token", lambda v: v.astype(float), "lens.token must be an array of whole numbers"),
    ("lens.position", lambda v: v + 10**6, "a recorded position lies outside the sequence"),
    ("appending", lambda v: np.array([0, 0, 0, 0, 0]), "appending must be a length of blocks and four truth values"),
    ("appending", lambda v: np.array("x"), "appending must be an array of whole numbers"),
    ("received.x", lambda v: np.zeros((8, 4, 1)), "does not hold what jaxsink wrote there"),
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    path = tmp_path_factory.mktemp("recorded") / "run.npz"
    jaxsink.respond("mini-llada", "Mia has 4 apples.", tokens=8, steps=8, record=path, record_what="received,lens")
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


@pytest.mark.parametrize(("name", "change", "message"), CHANGES)
def test_recorded_arrays_of_other_kinds(
    recorded: dict[str, np.ndarray], name: str, change: Any, message: str, tmp_path: Path
) -> None:
    """One sentence, and no page."""
    path = tmp_path / "run.npz"
    np.savez(path, allow_pickle=False, **recorded | {name: change(recorded.get(name))})
    with pytest.raises(jaxsink.JaxsinkError, match=rf"run\.npz.*{message}"):
        jaxsink.report(path, out=tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()
    np.savez(path, allow_pickle=False, **recorded)
    jaxsink.report(path, out=tmp_path / "r.html")


def test_texts_of_tokens() -> None:
    words: Any = Words()
    assert token_text(words, 31) == "<0xE2>" and token_text(words, 4) == " word4"
