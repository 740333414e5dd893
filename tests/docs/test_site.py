"""The site builds strictly, has every page and every public name, and needs nothing but itself.

It needs the extra `docs`; .ci/run installs it and runs these tests.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from support.browser import CHROMIUM, Browser
from support.paths import ROOT

DOCS = ROOT / "docs"
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
LOADED = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "object": "data",
}
built = pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="needs the extra `docs`")


# What the search shows, once something is typed: the address of each result, the best first.
FOUND = """[...document.querySelectorAll("*")].flatMap(node => node.shadowRoot ?
    [...node.shadowRoot.querySelectorAll("a[role=option]")].map(found => found.href) : [])"""


class Page(HTMLParser):
    """What a page loads, what it links to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: set[str] = set()
        self.links: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in LOADED and given.get("rel") not in ("canonical", "prev", "next", "edit"):
            self.loads |= {given[LOADED[tag]]} if LOADED[tag] in given else set()
            self.loads |= {part.split()[0] for part in given.get("srcset", "").split(",") if part.strip()}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files that are published, in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "jaxsink", "experiments", "converters"):
        (folder / name).symlink_to(ROOT / name) if name != "docs" else shutil.copytree(DOCS, folder / name)
    shutil.copy(ROOT / "mkdocs.yml", folder)
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing: requests are what the browser is asked about."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served, on this machine alone."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=site)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs a browser: chromium is not installed (Debian: apt-get install chromium)")
    browser = Browser(tmp_path)
    yield browser
    browser.close()


@cache
def parsed(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def pages(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def test_every_page_is_in_the_navigation() -> None:
    written = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    shown = re.findall(r"([\w/-]+\.md)", NAV)
    assert set(shown) == written and len(shown) == len(written)


@built
@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    assert len(pages(site)) > 40
    for path in pages(site):
        outside = {url for url in parsed(path).loads if urlsplit(url).netloc or url.startswith("//")}
        assert not outside, (path.name, outside)
    for path in site.rglob("*.css"):
        found = re.findall(r"url\(([^)]+)\)|@import\s+(\S+)", path.read_text(encoding="utf-8"))
        assert not [one for one in found if "//" in "".join(one) and "data:" not in "".join(one)], path.name


def outside(browser: Browser, address: str) -> set[str]:
    """What the browser asked others for, and messages of its console."""
    asked = {
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    }
    said = {
        json.dumps(event["params"])
        for event in browser.events
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
    }
    assert any(url.endswith(".js") for url in asked)
    return {url for url in asked if not url.startswith((f"{address}/", "data:", "about:", "blob:"))} | said


def visit(browser: Browser, address: str, page: str) -> None:
    browser("Page.navigate", url=f"{address}/{page}")
    browser.wait(f"document.readyState === 'complete' && location.pathname === '/{page}'")
    browser.wait("document.querySelector('.md-search__button') !== null")  # the site's own script has run


@built
@pytest.mark.slow
def test_no_page_asks_anybody_else_for_anything(site: Path, address: str, browser: Browser) -> None:
    """In a browser, because scripts load more than a page names."""
    for path in pages(site):
        visit(browser, address, str(path.relative_to(site)))
    assert not outside(browser, address)


@built
@pytest.mark.slow
@pytest.mark.parametrize("typed", ["MaskSinks", "stats.wilson"])
def test_the_search_finds_names_without_a_network(typed: str, address: str, browser: Browser) -> None:
    browser("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
    visit(browser, address, "index.html")
    browser.mouse(".md-search__button", click=True)
    browser.wait("document.activeElement.shadowRoot !== null")
    browser("Input.insertText", text=typed)
    browser.wait(f"({FOUND}).length")
    best = browser.run(f"({FOUND})[0]")
    assert (
        isinstance(best, str) and best.startswith(f"{address}/reference/") and best.endswith(f".{typed.split('.')[-1]}")
    )
    assert not outside(browser, address)


@built
@pytest.mark.slow
def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Path) -> None:
    for path in pages(site):
        page = parsed(path)
        for url in page.links | page.loads:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file() and site in target.parents, (path.name, url)
            if target.suffix == ".html" and parts.fragment != "__skip":
                assert unquote(parts.fragment) in parsed(target).anchors, (path.name, url)


@built
@pytest.mark.slow
def test_programs_and_results_are_no_pages(site: Path) -> None:
    kinds = {path.suffix for path in site.rglob("*") if path.is_file() and "assets" not in path.parts}
    assert kinds <= {".html", ".png", ".gif", ".svg", ".sh", ".css", ".js", ".json", ".inv", ".xml"}
    assert {path.name for path in site.rglob("*.json") if "assets" not in path.parts} <= {"search.json"}


@built
@pytest.mark.slow
def test_the_reference_and_the_search_have_what_its_pages_name(site: Path) -> None:
    named = {
        name: path.stem
        for path in (DOCS / "reference").glob("*.md")
        for name in re.findall(r"^::: (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    found = {item["location"]: item["title"] for item in index["items"]}
    assert len(named) > 150
    for name, page in named.items():
        assert name in parsed(site / "reference" / f"{page}.html").anchors, name
        assert found[f"reference/{page}.html#{name}"].split()[0] == name  # what is typed is looked for in titles first
    assert "Examples:" in (site / "reference" / "sinks.html").read_text(encoding="utf-8")


@built
@pytest.mark.slow
@pytest.mark.parametrize("broken", ["[gone](nothing.md)", "[gone](other.md#nowhere)", "[gone][jaxsink.no_such_name]"])
def test_what_is_broken_is_an_error(broken: str, tmp_path: Path) -> None:
    settings, _, _ = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "site.css").touch()
    (tmp_path / "docs" / "other.md").write_text("# Other\n", encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n{broken}\n", encoding="utf-8")
    done = build(tmp_path)
    assert done.returncode != 0 and "1 issue" in done.stdout + done.stderr
    (tmp_path / "docs" / "index.md").write_text("# Start\n\n[there](other.md#other)\n", encoding="utf-8")
    assert build(tmp_path).returncode == 0
