"""The page: a study as one HTML file that needs nothing but a browser. All text from data is escaped here."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.report.figures import embed, figure_html, source
from jaxsink.report.played import Packing, PlayedGeneration, choose_packing, pack
from jaxsink.report.study import VERDICTS, StudyResults
from jaxsink.report.view import View, most_moving, opening
from jaxsink.runs.atomic import new_file
from jaxsink.study.finding import Finding, Table
from jaxsink.version import __version__

LIMIT = 15_000_000  # bytes of a page; one that is larger opens slowly
ELEMENT = 150  # characters, at most, around the numbers of one part of a generation; and notes on their packing
STYLES = ("page.css", "player.css")
SCRIPTS = (
    "data.js",
    "colours.js",
    "charts.js",
    "map.js",
    "grid.js",
    "lens.js",
    "pane.js",
    "player.js",
    "address.js",
    "download.js",
    "figures.js",
    "page.js",
)
SIGNS: dict[str, str] = dict(zip(VERDICTS, "✓✗?–", strict=True))
WORDS = {  # for one, for several
    "supported": ("is supported", "are supported"),
    "refuted": ("is refuted", "are refuted"),
    "undecided": ("is undecided", "are undecided"),
    "not testable here": ("cannot be tested here", "cannot be tested here"),
}


@checked()
def render(study: StudyResults, show: list[View] | None = None) -> str:
    """The page as text.

    Args:
        study: what it shows
        show: the one or two generations that the player opens with

    Examples:
        >>> page = jaxsink.report(out, out="run.html")
        >>> jaxsink.report.render(page.study).startswith("<!doctype html>")
        True
    """
    packing = Packing(16, 1)
    show = opening(study.generations, study.eps) if show is None else show
    fields = page_fields(study, packing, show)
    size = sum(len(text.encode()) for text in fields.values()) + len(asset("page.html"))
    if size > LIMIT:
        figures = [figure for finding in study.findings for figure in study.figures(finding)]
        largest = max(figures, key=lambda figure: len(source(figure)), default=None)
        hint = f"; the largest figure is {largest}" if largest else ""
        raise JaxsinkError(f"the page would have {size / 1e6:.1f} MB, more than {LIMIT / 1e6:.1f}{hint}.")
    packing = choose_packing(
        study.generations, LIMIT - size - ELEMENT * sum(len(generation.parts) for generation in study.generations)
    )
    if packing != Packing(16, 1):
        fields = page_fields(study, packing, show)
    blobs = [
        f'<script type="text/plain" id="generation-{number}-{part}">{blob}</script>'
        for number, generation in enumerate(study.generations)
        for part, blob in pack(generation, packing)[1].items()
    ]
    return Template(asset("page.html")).substitute(fields, blobs="\n".join(blobs))


@checked()
def write_page(study: StudyResults, page: Path, show: list[View] | None = None) -> None:
    """The page as a file, whole or not at all.

    Args:
        study: what it shows
        page: the file
        show: the one or two generations that the player opens with

    Examples:
        >>> page = jaxsink.report(out, out="run.html")
        >>> jaxsink.report.write_page(page.study, Path("again.html"))
    """
    text = render(study, show)
    with new_file(page) as partial:
        partial.write_text(text, encoding="utf-8")


def page_fields(study: StudyResults, packing: Packing, show: list[View]) -> dict[str, str]:
    """What goes into the page's template, but for the generations' numbers."""
    script = "(() => {\n" + "".join(asset(name) for name in SCRIPTS) + "})();\n"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    about = [
        pack(generation, packing)[0] | {"moving": most_moving(generation, study.eps)[1:]}
        for generation in study.generations
    ]
    panes = [
        {"generation": study.generations.index(view.generation), "layer": view.layer, "head": view.head}
        for view in show
    ]
    return {
        "title": escape(study.title),
        "generator": f"jaxsink {__version__}",
        "script_hash": f"sha256-{digest}",
        "subtitle": " · ".join(subtitle(study)),
        "verdicts": verdicts_html(study.findings),
        "player": player_html(study, packing),
        "experiments": "".join(finding_html(finding, study.figures(finding)) for finding in study.findings),
        "manifest": manifest_html(study),
        "data": embed({"generations": about, "show": panes, "eps": study.eps}),
        "style": "\n".join(asset(name) for name in STYLES),
        "script": script,
    }


def asset(name: str) -> str:
    return (files("jaxsink.report") / name).read_text(encoding="utf-8")


def subtitle(study: StudyResults) -> list[str]:
    models, made = study.manifest.get("models"), study.manifest.get("created")
    names = ", ".join(models) if isinstance(models, dict | list) else ""
    parts = [names, f"jaxsink {study.manifest.get('jaxsink', __version__)}", str(made)[:10] if made else ""]
    return [escape(part) for part in parts if part]


def verdicts_html(findings: list[Finding]) -> str:
    if not findings:
        return ""
    return f"""<section aria-labelledby="verdicts-title">
  <h2 id="verdicts-title">What the study finds</h2>
  <p class="counts">{counts(findings)}</p>
  <ol class="verdicts">{"".join(verdict_item(finding) for finding in findings)}</ol>
</section>
"""


def counts(findings: list[Finding]) -> str:
    """ "14 experiments: 8 are supported, 3 are refuted, 3 are undecided" with a chip for each."""
    parts = []
    for verdict in VERDICTS:
        number = sum(finding.verdict == verdict for finding in findings)
        if number:
            parts.append(chip(verdict, f"{number} {WORDS[verdict][number > 1]}"))
    plural = "s" if len(findings) > 1 else ""
    return f"<span>{len(findings)} experiment{plural}:</span> " + " ".join(parts)


def chip(verdict: str, text: str | None = None) -> str:
    """A sign, a colour and words, so that no one has to tell colours apart."""
    kind = verdict.replace(" ", "-")
    return (
        f'<span class="chip {kind}"><span aria-hidden="true">{SIGNS[verdict]}</span> {escape(text or verdict)}</span>'
    )


def verdict_item(finding: Finding) -> str:
    link = f'<a href="#{anchor(finding)}">{escape(finding.title)}</a>'
    return f'<li>{chip(finding.verdict)}<div>{link}<p class="dim">{escape(finding.found)}</p></div></li>'


def anchor(finding: Finding) -> str:
    return "e-" + "".join(char if char.isascii() and char.isalnum() else "-" for char in finding.name)


def finding_html(finding: Finding, figures: list[Path]) -> str:
    name = anchor(finding)
    return f"""<section class="experiment" id="{name}" aria-labelledby="{name}-t">
  <h2 id="{name}-t">{escape(finding.title)}</h2>
  <p class="meta">{chip(finding.verdict)} <code>{escape(finding.name)}</code></p>
  <p class="question">{escape(finding.question)}</p>
  <dl class="claims"><div><dt>The paper</dt><dd>{escape(finding.paper)}</dd></div>
  <div><dt>Here</dt><dd>{escape(finding.found)}</dd></div></dl>
  <div class="figures">{"".join(figure_html(figure, finding.title) for figure in figures)}</div>
  {"".join(table_html(table) for table in [*finding.table_of_tests(), *finding.tables])}
</section>
"""


def table_html(table: Table) -> str:
    numeric = [all(is_number(row[column]) for row in table.rows) for column in range(len(table.columns))]

    def cell(tag: str, value: Any, column: int) -> str:
        return f"<{tag}{' class=num' if numeric[column] else ''}>{escape(show_value(value))}</{tag}>"

    def line(tag: str, values: list[Any]) -> str:
        return "<tr>" + "".join(cell(tag, value, column) for column, value in enumerate(values)) + "</tr>"

    note = f'<p class="dim">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="table"><table><caption>{escape(table.title)}</caption><thead>{line("th", table.columns)}</thead>'
        f"<tbody>{''.join(line('td', row) for row in table.rows)}</tbody></table></div>{note}"
    )


def is_number(value: Any) -> bool:
    text = show_value(value)
    return not text or text in "–-" or text.lstrip("+-−.<≤>≥ [")[:1].isdigit()


def show_value(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def player_html(study: StudyResults, packing: Packing) -> str:
    if not study.generations:
        return (
            '<section><h2>Watch the sinks</h2><p class="dim">This study recorded no generations to play.</p></section>'
        )
    notes = []
    if packing.bits == 8:
        notes.append("Values are rounded to about 1 %, to keep this page small.")
    if packing.every > 1:
        notes.append(f"Of {packing.every} recorded steps one is kept, for the same reason.")
    texts = "".join(map(text_html, study.generations))
    return Template(asset("player.html")).substitute(precision=" ".join(notes), texts=texts, eps=f"{study.eps:g}")


def text_html(generation: PlayedGeneration) -> str:
    prompt, response = generation.text
    return (
        f"<details><summary>{escape(' · '.join(filter(None, (generation.problem, generation.label))))}</summary>"
        f'<div class="text"><span class="prompt">{escape(prompt)}</span>{escape(response)}</div></details>'
    )


def manifest_html(study: StudyResults) -> str:
    """The manifest, one foldable block for each of its objects."""
    blocks = []
    for key, value in study.manifest.items():
        if isinstance(value, dict | list):
            text = escape(json.dumps(value, indent=2, ensure_ascii=False))
            blocks.append(f"<details><summary>{escape(key)}</summary><pre>{text}</pre></details>")
        else:
            blocks.append(f"<p><span class=dim>{escape(key)}</span> {escape(str(value))}</p>")
    made = "\n".join(blocks)
    return f'<section aria-labelledby="made-title"><h2 id="made-title">How this was made</h2>{made}</section>'
