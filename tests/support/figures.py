"""What pages say in figures, and the files in docs/figures/ that say where these come from.

A file there is of one page. In its sentences a figure is replaced by an expression in braces, `{100 * run.share:.0f} %`,
over the result files that it names; put in, the sentence must stand on the page, once. Words that stand for figures ("more
than doubles") have a condition. Every other number of the page must be of a kind that is no result of ours: by a pattern in
kinds.toml, or by words that the page's file lists under a kind.
"""

from __future__ import annotations

import builtins
import csv
import importlib
import json
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from support.paths import ROOT

FOLDER = ROOT / "docs" / "figures"
PAGES = ("README.md", "examples/README.md", "notebooks/README.md")
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
FIELD = re.compile(r"\{((?:[^{}]|\{[^{}]*\})+?)(?::([+,]?[\d.]*[dfg]?))?\}")
BLOCKS = re.compile(
    r"^ *(?P<fence>`{3,}).*?^ *(?P=fence)$"
    r"|<!-- \w+: written by \S+ -->.*?<!-- end of \w+ -->|<!-- (\S+) begins -->.*?<!-- \2 ends -->",
    re.DOTALL | re.MULTILINE,
)
UNREAD = re.compile(
    r"`[^`]+`|(?<=\])\([^)\s]*\)|^\[!\[.*$|</?[a-z!][^<>\n]*>", re.MULTILINE
)  # code, targets, badges, tags
Span = tuple[int, int]


class Data(dict[str, Any]):
    """A JSON object or a line of a CSV file, whose entries are also attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


@cache
def read(path: str) -> Any:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".csv"):
        lines = csv.DictReader(text.splitlines())
        return [Data({key: number(value) for key, value in line.items()}) for line in lines]
    return json.loads(text, object_hook=Data)


def one(lines: list[Data], *like: dict[str, Any], **equal: Any) -> Data:
    """The line that has these entries; `like` is for names that are no words of Python."""
    wanted = {**equal, **{key: value for some in like for key, value in some.items()}}
    (found,) = (line for line in lines if all(line.get(key) == value for key, value in wanted.items()))
    return found


def test_of(finding: Data, model: str, words: str) -> Data:
    """The test of a study's finding whose statistic has these words."""
    (found,) = (test for test in finding.tests if test.model == model and words in test.statistic)
    return found


def written(path: str, pattern: str) -> str:
    """What a pattern's group finds in a file of the tree: for sizes and settings that code defines."""
    (found,) = set(re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE))
    return found


def card(name: str) -> Data:
    """Of a built-in model's card: parameters, steps, and the problems it solves with their interval, in percent."""
    path = f"jaxsink/zoo/weights/{name}/README.md"
    patterns = {
        "parameters": r"([\d,]+) parameters: ",
        "steps": r"\*\*Training\*\*: ([\d,]+) steps",
        "solved": r"\*\*Accuracy\*\*: ([\d.]+)% of 1,000 held-out",
        "low": r"95 % interval ([\d.]+)%",
        "high": r"95 % interval [\d.]+%\s+to\s+([\d.]+)%",
    }
    return Data({what: written(path, pattern) for what, pattern in patterns.items()})


PLAIN = ("abs", "float", "int", "len", "max", "min", "range", "round", "set", "str", "sum")
HELPERS: dict[str, Any] = {
    "card": card,
    "one": one,
    "test_of": test_of,
    "written": written,
    "code": importlib.import_module,
    "math": math,
    **{name: getattr(builtins, name) for name in PLAIN},
}


def value(expression: str, names: dict[str, Any]) -> Any:
    return eval(expression, {"__builtins__": {}, **HELPERS, **names})  # of this tree, like any line of a test


@dataclass(frozen=True)
class Tie:
    """A sentence of a page: its words, and between them the figures as they must stand there."""

    says: str
    parts: tuple[str, ...]  # words, figure, words, … words

    @property
    def figures(self) -> tuple[str, ...]:
        return self.parts[1::2]

    def places(self, text: str) -> list[list[Span]]:
        """Of each time that the sentence stands in the text, where its figures are."""
        words = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in self.parts]
        words[1::2] = [rf"((?<![\d.,](?=\d)){figure}(?!(?<=\d)[.,]?\d))" for figure in words[1::2]]
        found = re.finditer("".join(words), text)
        return [[match.span(group + 1) for group in range(len(self.figures))] for match in found]


def tie(says: str, names: dict[str, Any]) -> Tie:
    parts, end = [], 0
    for field in FIELD.finditer(says):
        parts += [says[end : field.start()], format(value(field[1], names), field[2] or "")]
        end = field.end()
    return Tie(says, (*parts, says[end:]))


@dataclass(frozen=True)
class Page:
    path: str
    declared: dict[str, Any]

    @cached_property
    def text(self) -> str:
        """Without code blocks, and without what programs write."""
        whole = (ROOT / self.path).read_text(encoding="utf-8")
        return BLOCKS.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), whole)

    def of_files(self) -> dict[str, Any]:
        """The files, and the parts of them that have short names."""
        names = {name: read(path) for name, path in self.declared.get("files", {}).items()}
        for name, expression in self.declared.get("names", {}).items():
            names[name] = value(expression, names)
        return names

    def of_code(self) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for name, expression in self.declared.get("code", {}).items():
            names[name] = value(expression, names)
        return names

    def names(self) -> dict[str, Any]:
        return {**self.of_code(), **self.of_files()}

    def sentences(self, names: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each with what its expressions may name; those of a table once for each line."""
        for says in self.declared.get("figures", ()):
            yield says, names
        for rows in self.declared.get("rows", ()):
            name, _, lines = rows["each"].partition(" in ")
            for line in value(lines, names):
                yield rows["says"], {**names, name: line}

    @cached_property
    def ties(self) -> list[Tie]:
        return [tie(says, names) for says, names in self.sentences(self.names())]

    def holding(self) -> dict[str, str]:
        """Words, and the condition that must hold for them."""
        return self.declared.get("holds", {})

    def other(self) -> list[tuple[str, str]]:
        """Kind and words."""
        return [(kind, words) for kind, several in self.declared.get("not_ours", {}).items() for words in several]


@cache
def kinds() -> dict[str, dict[str, Any]]:
    return tomllib.loads((FOLDER / "kinds.toml").read_text(encoding="utf-8"))


@cache
def patterns() -> list[re.Pattern[str]]:
    every = [pattern.replace(" ", r"\s+") for kind in kinds().values() for pattern in kind.get("patterns", ())]
    return [UNREAD, *(re.compile(pattern, re.MULTILINE) for pattern in every)]


@cache
def pages() -> dict[str, Page]:
    declared = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))]
    of_page = {one["page"]: one for one in declared if "page" in one}
    paths = [*PAGES, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
    assert set(of_page) <= set(paths), "a file in docs/figures/ is of no page"
    return {path: Page(path, of_page.get(path, {})) for path in paths}


def unaccounted(text: str, page: Page, ties: list[Tie]) -> list[str]:
    """Numbers that are neither tied nor of a kind, each in its line."""
    known = [span for tie in ties for place in tie.places(text) for span in place]
    known += [match.span() for pattern in patterns() for match in pattern.finditer(text)]
    for words in (*page.holding(), *(words for _, words in page.other())):
        known += [match.span() for match in re.finditer(r"\s+".join(map(re.escape, words.split())), text)]
    covered = {place for begin, end in known for place in range(begin, end)}
    left = [match for match in NUMBER.finditer(text) if not covered.issuperset(range(*match.span()))]
    return [f"{page.path}: {match[0]} in “{context(text, match)}”" for match in left]


def context(text: str, match: re.Match[str]) -> str:
    around = text[max(0, match.start() - 40) : match.end() + 30]
    return " ".join(around.split())
