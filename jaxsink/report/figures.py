"""Figures in the page: drawings become part of it, so that they follow its theme; values are shown under the pointer."""

from __future__ import annotations

import base64
import json
import re
from html import escape
from pathlib import Path
from xml.etree import ElementTree

from jaxsink.errors import JaxsinkError

LARGE = 400_000  # bytes of a drawing; beyond it the bitmap is shown, if it is smaller
TAGS = {
    *("svg", "g", "defs", "path", "use", "image", "clipPath", "rect", "line", "polyline", "polygon", "circle"),
    *("ellipse", "text", "tspan", "title", "desc", "linearGradient", "radialGradient", "stop", "pattern", "mask"),
    "marker",
}
SCALE = 1.4  # figures have the size and type of a printed page, which is small on a screen
INK, PAPER = "#000000", "#ffffff"  # matplotlib's
NAME = re.compile(r"url\(\s*#([^)]*)\)")


def source(figure: Path) -> bytes:
    """The drawing, or its bitmap where the drawing is very large."""
    svg = figure.read_bytes()
    if len(svg) > LARGE:
        return min(svg, figure.with_suffix(".png").read_bytes(), key=len)
    return svg


def figure_html(figure: Path, title: str) -> str:
    data, alt = source(figure), escape(f"{title} ({figure.stem})")
    is_bitmap = data.startswith(b"\x89PNG")
    if is_bitmap:
        drawn = f'<img alt="{alt}" src="data:image/png;base64,{base64.b64encode(data).decode("ascii")}">'
    else:
        drawn = inline_svg(data, figure, alt)
    values = "" if is_bitmap else read_values(figure)
    held = f'<script type="application/json" class="values">{values}</script>' if values else ""
    button = f'<button type="button" class="zoom" aria-label="Enlarge: {alt}">{drawn}</button>'
    return f"<figure{' class=bitmap' if is_bitmap else ''}>{button}{held}</figure>"


def read_values(figure: Path) -> str:
    """What the drawing shows, as JSON that cannot end its element; empty where the study did not keep it."""
    file = figure.with_suffix(".json")
    if not file.is_file():
        return ""
    try:
        return embed(json.loads(file.read_text(encoding="utf-8")))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise JaxsinkError(f"{file} is not valid JSON: {error}.") from error


def embed(data: object) -> str:
    """JSON that cannot end the element around it."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def inline_svg(data: bytes, figure: Path, alt: str) -> str:
    """The drawing without scripts, links and names of its own; black ink and white paper become the page's."""
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise JaxsinkError(f"{figure} is not a valid SVG drawing: {error}.") from error
    if local(root.tag) != "svg":
        raise JaxsinkError(f"{figure} is not a valid SVG drawing: it starts with {local(root.tag)}.")
    clear_paper(root)
    width = re.fullmatch(r"([\d.]+)(pt|px)?", root.get("width", ""))
    if width:
        root.set("width", f"{SCALE * float(width[1]):g}{width[2] or ''}")
        root.attrib.pop("height", None)  # follows from the width
    return "".join(write(root, f"{figure.stem}-", f' role="img" aria-label="{alt}"'))


def local(tag: object) -> str:
    """A name without its namespace; comments and instructions have none."""
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def clear_paper(root: ElementTree.Element) -> None:
    """The white behind a matplotlib figure and behind each of its axes goes; white marks stay."""
    for group in root.iter():
        patch = group[0] if len(group) and group.get("id", "").startswith(("figure_", "axes_")) else None
        for path in () if patch is None or not patch.get("id", "").startswith("patch_") else patch:
            path.set("style", path.get("style", "").replace(f"fill: {PAPER}", "fill: none"))


def write(node: ElementTree.Element, prefix: str, extra: str = "") -> list[str]:
    """Pieces of HTML; names get a prefix, because one page has several drawings."""
    tag = local(node.tag)
    if tag not in TAGS:
        return []
    parts = [f"<{tag}{extra}"]
    for key, value in node.attrib.items():
        kept = attribute(local(key), value, prefix)
        if kept is not None:
            parts.append(f' {local(key)}="{escape(kept)}"')
    parts.append(">")
    if tag in ("text", "tspan", "title", "desc"):
        parts.append(escape(node.text or ""))
    for child in node:
        parts += write(child, prefix)
        if tag in ("text", "tspan"):
            parts.append(escape(child.tail or ""))
    return [*parts, f"</{tag}>"]


def attribute(key: str, value: str, prefix: str) -> str | None:
    """The value as the page has it; None: leave it out."""
    if key == "id":
        return prefix + value
    if key == "href":
        return f"#{prefix}{value[1:]}" if value.startswith("#") else value if value.startswith("data:image/") else None
    if key.startswith("on") or "url(" in NAME.sub("", value):
        return None
    return NAME.sub(rf"url(#{prefix}\1)", value).replace(INK, "currentColor")
