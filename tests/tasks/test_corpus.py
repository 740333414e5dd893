"""Documents from files, directories, JSON lines and TFDS; packing into windows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jaxsink.errors import JaxsinkError
from jaxsink.tasks.builder import WordProblems
from jaxsink.tasks.corpus import documents
from jaxsink.tasks.packing import Stream, join, occurring


def test_documents_of_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("two\nlines")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.jsonl").write_text('{"text": "one"}\n{"text": "three"}\n')
    (tmp_path / "picture.png").write_bytes(b"\xff")
    assert list(documents(str(tmp_path / "b.txt"))) == ["two\nlines"]
    assert list(documents(str(tmp_path))) == ["two\nlines", "one", "three"]


def test_a_template_says_how_fields_make_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"question": "1 + 1?", "answer": "{2}", "n": 3}) + "\n")
    assert list(documents(str(path), "Q: {question}\nA: {answer}")) == ["Q: 1 + 1?\nA: {2}"]
    for template, field in (("{text}", "text"), ("{n}", "n")):
        with pytest.raises(JaxsinkError, match=f'line 1 of .* has no text "{field}" .its fields: answer, n, question'):
            list(documents(str(path), template))


def test_tfds_datasets_by_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxsink.tasks.builder.SIZES", dict.fromkeys(WordProblems_splits(), 3))
    builder = WordProblems(data_dir=str(tmp_path), file_format="array_record")
    builder.download_and_prepare()
    found = list(documents(f"tfds:{builder.data_dir}:test", "{question} {answer}"))
    assert len(found) == 3 and all("####" in text for text in found)
    assert found != list(documents(f"tfds:{builder.data_dir}", "{question} {answer}"))
    with pytest.raises(JaxsinkError, match="TFDS cannot give no_such_dataset"):
        list(documents("tfds:no_such_dataset"))


def WordProblems_splits() -> list[str]:  # noqa: N802
    from jaxsink.tasks import builder

    return list(builder.SIZES)


@pytest.mark.parametrize(
    ("name", "message"), [("nothing.txt", "cannot read the text"), (".", "holds no .txt, .md, .jsonl")]
)
def test_what_is_not_there_is_named(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(JaxsinkError, match=message):
        list(documents(str(tmp_path / name)))


def test_documents_are_joined_and_cut() -> None:
    stream = join([[5, 6], [7], [8, 9, 5]], separator=1, first=0)
    assert stream.tokens.tolist() == [5, 6, 1, 7, 1, 8, 9, 5, 1]
    assert stream.at(np.array([0, 4]), 4).tokens.tolist() == [[0, 5, 6, 1], [0, 1, 8, 9]]
    assert stream.side_by_side(5, 4).tokens.tolist() == [[0, 5, 6, 1], [0, 1, 8, 9]]
    assert occurring(stream, 12).nonzero()[0].tolist() == [1, 5, 6, 7, 8, 9]
    plain = Stream(stream.tokens)
    assert plain.side_by_side(1, 4).tokens.tolist() == [[5, 6, 1, 7]] and plain.at(np.array([0]), 4).real.all()


def test_windows_follow_from_seed_and_step_and_reach_every_place() -> None:
    stream = Stream(np.arange(20, dtype=np.int32))
    first, again, other = (stream.draw(step, 6, seed=3, length=5).tokens for step in (4, 4, 5))
    assert (first == again).all() and (first != other).any()
    assert (first != stream.draw(4, 6, seed=2, length=5).tokens).any()
    places = {int(row[0]) for step in range(50) for row in stream.draw(step, 6, seed=0, length=5).tokens}
    assert places == set(range(16))


def test_the_end_is_held_out_and_too_little_text_is_named() -> None:
    train, held_out = Stream(np.arange(100, dtype=np.int32)).split(8, 0.2)
    assert train.tokens.tolist() == list(range(80)) and held_out.tokens.tolist() == list(range(80, 100))
    with pytest.raises(JaxsinkError, match="has 8 tokens to validate with, fewer than a window of 9"):
        Stream(np.arange(100, dtype=np.int32)).split(9, 0.08)
    with pytest.raises(JaxsinkError, match="has 2 tokens to train on"):
        Stream(np.arange(20, dtype=np.int32)).split(9, 0.9)
