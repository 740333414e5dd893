"""README.md and docs/speed.md say what is so: versions, badges, links, and what the benchmarks found."""

from __future__ import annotations

import importlib
import json
import re
import tomllib

import pytest
from support.paths import ROOT

from jaxsink.version import __version__

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_speed_is_that_of_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ROOT / "benchmarks"
    monkeypatch.syspath_prepend(folder)
    run = importlib.import_module("run")
    results = json.loads((folder / "results" / "results.json").read_text(encoding="utf-8"))
    speed = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert run.with_summary(speed, results) == speed and run.summary(results) in speed
    assert (folder / "results" / "results.md").read_text(encoding="utf-8") == run.page(results)


def test_badges_are_true() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [line.split(" :: ")[-1] for line in project["classifiers"] if " :: 3." in line]
    jax = next(line for line in project["dependencies"] if line.startswith("jax>"))
    badges = dict(re.findall(r"^\[!\[(.*?)\]\(https://img\.shields\.io/badge/(\S+?)-blue\)", README, re.MULTILINE))
    assert list(badges) == [
        f"Python {versions[0]} to {versions[-1]}",
        f"JAX {'.'.join(re.findall(r'[0-9]+', jax)[:2])}",
        f"License: {project['license']}",
    ]
    for label, badge in badges.items():
        assert re.sub(r"[^a-z0-9.]", "", label.lower()) == re.sub(r"[^a-z0-9.]", "", badge.lower().replace("--", "")), (
            label
        )


def test_the_version_is_one() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    dated = re.search(
        r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M
    )
    assert dated and dated[1] == __version__
    assert f"version: {dated[1]}\ndate-released: {dated[2]}\n" in citation and f"version = {{{dated[1]}}}" in README


@pytest.mark.parametrize(
    "page",
    ["README.md", "CHANGELOG.md", "SECURITY.md", "docs/comparison.md", "examples/README.md", "notebooks/README.md"],
)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")) if "://" not in link]
    for link in links:
        file, _, part = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE) if part else []
        assert not part or part in {
            re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
        }, link
    assert links


def test_other_tools_are_compared_by_the_same_columns() -> None:
    head, _, *lines = re.findall(r"^\|.*\|$", README[README.index("## How it compares") :], re.MULTILINE)
    names = [name.strip() for name in head.strip("|").split("|")][1:]
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    assert len(lines) >= 6 and all(line.count("|") == head.count("|") for line in lines)
    assert [name for name in names if not re.search(rf"^\| \[?\**{re.escape(name)}", page, re.MULTILINE)] == []
