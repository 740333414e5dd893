"""Plain text in windows, and how likely models find it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxsink
from jaxsink.cli.main import main
from jaxsink.errors import JaxsinkError
from jaxsink.evals.results import read_results
from jaxsink.tasks.vocabulary import tokenizer
from jaxsink.tasks.windows import windows

pytestmark = pytest.mark.usefixtures("quick_compilation")
SENTENCE = "Tom has 3 flowers. He buys 4 more. How many flowers does he have?\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "some.txt"
    path.write_text(SENTENCE * 5, encoding="utf-8")
    return path


def test_windows_lie_side_by_side(text: Path) -> None:
    found = windows(text, 11, tokenizer())
    ids, bos = tokenizer().encode(SENTENCE * 5), tokenizer().special["bos"]
    assert len(found) == len(ids) // 11 > 3
    for number, window in enumerate(found):
        assert window.context == (bos, *ids[11 * number : 11 * number + 5])
        assert window.rest == tuple(ids[11 * number + 5 : 11 * number + 11])


def test_no_window_spans_two_texts(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps({"text": SENTENCE * n}) + "\n" for n in (1, 2, 3)), encoding="utf-8")
    size = len(tokenizer().encode(SENTENCE))
    assert len(windows(path, size, tokenizer())) == 6
    assert len(windows(path, size + 1, tokenizer())) == 0 + 1 + 2
    assert len(windows(path, 3 * size, tokenizer())) == 1


@pytest.mark.parametrize(
    ("name", "content", "window", "message"),
    [
        ("a.txt", b"Tom", 5, "no text in .*a.txt has 5 tokens; give a smaller --window"),
        ("a.txt", b"Tom has 3", 1, "needs two tokens at least"),
        ("a.txt", b"\xff\xfe", 2, "is not text in UTF-8"),
        ("a.txt", None, 2, "cannot read the text .*a.txt: No such file"),
        ("a.jsonl", b'{"text": "Tom"}\n{"words": 1}\n', 2, 'line 2 of .*a.jsonl has no text "text" .its fields: words'),
        ("a.jsonl", b'{"text": 1}\n', 2, 'line 1 of .*a.jsonl has no text "text"'),
        ("a.jsonl", b"Tom\n", 2, "line 1 of .* is not a JSON object"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, name: str, content: bytes | None, window: int, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(JaxsinkError, match=message):
        windows(tmp_path / name, window, tokenizer())


def test_an_autoregressive_model_reads_the_second_halves(text: Path, tmp_path: Path) -> None:
    options = {"text": text, "window": 20, "k": (0, 1), "select": ("top",)}
    found = jaxsink.evaluate("mini-llama", "text", tmp_path / "out", **options)
    model = jaxsink.load("mini-llama", dtype="float32")
    sums = 0.0
    for number, window in enumerate(windows(text, 20, tokenizer())):
        tokens = np.array([[*window.context, *window.rest]])
        table = np.asarray(jax.nn.log_softmax(jaxsink.forward(model, tokens).logits[0]), np.float64)
        start = len(window.context)
        expected = sum(table[start - 1 + n, token] for n, token in enumerate(window.rest))
        line = read_results(tmp_path / "out")[number, "K = 0"]
        assert line["log_prob"] == pytest.approx(expected, rel=1e-4) and line["tokens"] == 10
        sums += expected
    plain, masked = found["conditions"]
    assert plain["perplexity"] == pytest.approx(math.exp(-sums / plain["tokens"]), rel=1e-4)
    assert plain["kl"] == pytest.approx(0, abs=1e-6) and masked["kl"] > 1e-3


def test_command(text: Path, tmp_path: Path, capsys) -> None:
    arguments = ["evaluate", "mini-llada", "text", "--k", "0,1", "--select", "top", "--out", str(tmp_path / "out")]
    wanted = [*arguments, "--text", str(text), "--window", "16", "--canvases", "1", "--limit", "3"]
    assert main(wanted) == 0
    shown = capsys.readouterr().out
    assert "perplexity of the text" in shown and "t = 0.75" in shown and "3 of 3 questions" in shown
    assert {line["tokens"] for line in read_results(tmp_path / "out").values()} == {2 + 4 + 6}
    assert main([*wanted, "--summary"]) == 0
    text.write_text(SENTENCE * 6, encoding="utf-8")
    assert main(wanted) == 2 and "exam text_sha256 differs" in capsys.readouterr().err
    assert main(arguments) == 2 and "belong together" in capsys.readouterr().err
    wrong = ["evaluate", "mini-llada", "task", "--text", str(text), "--out", str(tmp_path / "other")]
    assert main(wrong) == 2 and "belong together" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
