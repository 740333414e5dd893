"""No figure on a page without a committed file: every number of the prose is tied to one, or is no result of ours.

support/figures.py says how; docs/figures/ has the sentences.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from support import figures
from support.figures import Data, Tie, tie

PAGES = figures.pages()
TIED = [path for path, page in PAGES.items() if page.ties]
NEW = """It takes 12.3 s, needs 4.2 GB and loses 0.42 nats, 37 % more; 17 of 48 texts differ, p < 0.03. The speed is 1.8
times that of PyTorch, 109 GFLOP/s, in 940 ms. The loss is 1.74 [1.70, 1.79] > 1. It solves 83 problems, 12 seeds agree."""


@pytest.mark.parametrize("path", PAGES)
def test_every_number_is_tied_to_a_file_or_no_result(path: str) -> None:
    page = PAGES[path]
    assert page.declared.get("diary") or figures.unaccounted(page.text, page, page.ties) == []


@pytest.mark.parametrize("path", TIED)
def test_figures_are_those_of_the_files(path: str) -> None:
    page = PAGES[path]
    said = {"".join(one.parts): len(one.places(page.text)) for one in page.ties}
    assert {words: times for words, times in said.items() if times != 1} == {}, f"{path} does not say so, once"


def test_words_that_stand_for_figures_hold() -> None:
    for page in PAGES.values():
        for words, condition in page.holding().items():
            assert Tie(words, (words,)).places(page.text), f"{page.path} does not say: {words}"
            assert figures.value(condition, page.names()) is True, f"{page.path}: {words}"


def test_what_is_no_result_stands_on_its_page_and_has_a_kind() -> None:
    for page in PAGES.values():
        for kind, words in page.other():
            assert kind in figures.kinds() and figures.NUMBER.search(words), f"{page.path}: {words}"
            assert Tie(words, (words,)).places(page.text), f"{page.path} does not say: {words}"
    assert all(kind["why"] for kind in figures.kinds().values())
    assert [path for path, page in PAGES.items() if page.declared.get("diary")] == ["docs/first-ten-minutes.md"]


@pytest.mark.parametrize("path", [path for path, page in PAGES.items() if not page.declared.get("diary")])
def test_a_new_figure_is_noticed(path: str) -> None:
    page = PAGES[path]
    found = figures.unaccounted(f"{page.text}\n\n{NEW}\n", page, page.ties)
    assert [line.split(": ")[1].split(" in ")[0] for line in found] == figures.NUMBER.findall(NEW)


@pytest.mark.parametrize("path", TIED)
def test_another_digit_on_a_page_is_noticed(path: str) -> None:
    page = PAGES[path]
    for one in page.ties:
        (place,) = one.places(page.text)
        start = max(0, place[0][0] - len(one.says))
        around = page.text[start : place[-1][1] + len(one.says)]
        assert one.places(around)
        for begin, end in place:
            figure = re.sub(r"\d(?=\D*$)", lambda last: str((int(last[0]) + 1) % 10), page.text[begin:end])
            if figure != page.text[begin:end]:  # the words of a table's line have none
                assert one.places(around[: begin - start] + figure + around[end - start :]) == []


def other(data: Any, count: list[int]) -> Any:
    """Every number is another one, not all by the same factor, and every list has lost its last."""
    if isinstance(data, dict):
        return Data({key: other(entry, count) for key, entry in data.items()})
    if isinstance(data, list):
        return [other(entry, count) for entry in (data[:-1] if len(data) > 1 else data)]
    if isinstance(data, bool) or not isinstance(data, int | float):
        return data
    count[0] += 1
    return type(data)(data * (1.7 + 0.9 * (count[0] % 7)) + 3)


@pytest.mark.parametrize("path", TIED)
def test_another_value_in_a_file_is_noticed(path: str) -> None:
    """Lines of a table are altered one by one: which lines there are is asked of the true file."""
    page = PAGES[path]
    files = page.of_files()
    names = {**page.of_code(), **files}
    altered = {name: other(data, [0]) for name, data in files.items()}
    for says, with_line in page.sentences(names):
        line = {name: other(with_line[name], [0]) for name in set(with_line) - set(names)}
        read = [name for name in (line or files) if re.search(rf"\{{[^}}]*\b{name}\b", says)]
        assert not read or changed(says, with_line, line or altered), says


def changed(says: str, names: dict[str, Any], altered: dict[str, Any]) -> bool:
    before = tie(says, names).figures
    try:
        return tie(says, {**names, **altered}).figures != before
    except (ValueError, IndexError, KeyError, TypeError):
        return True  # what it reads is no longer there


def test_what_is_left_to_programs_is_written_by_one_that_a_test_runs() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (figures.ROOT / "tests" / "docs").glob("test_*.py"))
    blocks = [
        block[0]
        for path in PAGES
        for block in figures.BLOCKS.finditer((figures.ROOT / path).read_text(encoding="utf-8"))
        if block[0].startswith("<!--")
    ]
    programs = {re.findall(r"\w+/\w+\.py", block)[0] for block in blocks}
    assert len(programs) > 8
    for program in programs:
        folder, name = program.split("/")
        called = f'"{folder}" / "{name}"' if folder == "docs" else name.removesuffix(".py")
        assert (figures.ROOT / program).is_file() and called in tests, program
