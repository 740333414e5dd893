"""The command `jaxsink models`: every model that has a name here, and the settings for evaluating them."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from jaxsink.cli.main import Commands, add_command

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = """examples:
  jaxsink models                          built-in models, published ones, and evaluation settings
  jaxsink models llada                    only those with llada in their name
  jaxsink models --json

Built-in models come with their weights. For a published one give its hub id (`jaxsink generate GSAI-ML/LLaDA-8B-Instruct …`
fetches and converts it once), or a directory; its name alone is enough for `jaxsink inspect` and `jaxsink plan`.
"""
WIDTH = 120  # columns, where nobody looks


def add_parser(commands: Commands) -> None:
    parser = add_command(
        commands,
        "models",
        run,
        "list the models that have a name here, and the evaluation settings",
        "List built-in models, published models with their sizes and hub ids, and the settings of `jaxsink "
        "evaluate`; each with the sampler that it recommends.",
        EXAMPLES,
    )
    parser.add_argument("part", metavar="NAME", nargs="?", default="", help="only names that contain this")
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(args: argparse.Namespace) -> int:
    import jaxsink

    found = jaxsink.models(args.part)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)
    return 0


def show(found: dict[str, dict[str, dict[str, Any]]]) -> None:
    """One table per kind, for people."""
    from jaxsink.cli.console import Console

    published = found["published"]
    tables = {
        "built-in models, with their weights": found["built-in"],
        "published diffusion models": {name: facts for name, facts in published.items() if facts["diffusion"]},
        "published autoregressive models": {name: facts for name, facts in published.items() if not facts["diffusion"]},
        "settings of `jaxsink evaluate`": found["settings"],
    }
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    for title, listed in tables.items():
        if listed:
            console.print(table_of(title, listed))
            console.print()


def table_of(title: str, listed: dict[str, dict[str, Any]]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, title=title, title_justify="left", title_style="bold", header_style="dim")
    rows = [(name, *middle_of(facts), brief(facts["sampler"])) for name, facts in listed.items()]
    columns = {5: ("name", "family", "size", "hub id", "sampler"), 4: ("name", "family", "size", "sampler")}
    for column in columns.get(len(rows[0]), ("name", "model", "sampler")):
        table.add_column(column, no_wrap=column in ("name", "hub id"), justify="right" if column == "size" else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def middle_of(facts: dict[str, Any]) -> tuple[str, ...]:
    """The columns between a name and its sampler."""
    if "benchmark" in facts:
        return (facts["model"],)
    count = facts["parameters"]
    size = f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M" if count >= 1e7 else f"{count / 1e6:.1f}M"
    return facts["family"], size, *([facts["hub_id"] or ""] if "hub_id" in facts else [])


def brief(sampler: dict[str, Any]) -> str:
    """The fields that say most: "256 tokens, block 32, T 0.1"."""
    parts = [f"{sampler.get('gen_length') or sampler.get('max_new_tokens')} tokens"]
    if sampler.get("block_length"):
        parts.append(f"block {sampler['block_length']}")
    if sampler.get("temperature"):
        parts.append(f"T {sampler['temperature']:g}")
    if sampler.get("top_p"):
        parts.append(f"top-p {sampler['top_p']:g}")
    return ", ".join(parts)
