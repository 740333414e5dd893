"""The tables of docs/lens.md are written from committed files."""

from __future__ import annotations

import importlib.util

from support.paths import ROOT

FOUND = importlib.util.spec_from_file_location("lens_page", ROOT / "docs" / "lens.py")
assert FOUND is not None and FOUND.loader is not None
lens = importlib.util.module_from_spec(FOUND)
FOUND.loader.exec_module(lens)


def test_the_page_is_as_the_program_writes_it() -> None:
    assert lens.PAGE.read_text(encoding="utf-8") == lens.page(), "python docs/lens.py"


def test_a_lens_and_a_tap_cost_little_memory_and_a_tap_little_time() -> None:
    """Of the compiler's estimates: 5 % more memory for the lens, 3 % more time for a tap."""
    by = {(line["inside"], line["mesh"]["data"]): line for line in lens.results()["tpu"]}
    plain = by[None, 8]
    for inside in ("tap", "lens"):
        assert by[inside, 8]["needed_per_device"] < 1.05 * plain["needed_per_device"]
    assert by["tap", 8]["step_seconds"]["total"] < 1.03 * plain["step_seconds"]["total"]


def test_a_mesh_that_cuts_the_model_costs_the_lens_little_more() -> None:
    """Of the estimates: it adds up to 1.4 times as much to a step as with sequences dealt out; and 5 % of memory."""
    by = {(line["inside"], line["mesh"]["data"], line["mesh"]["model"]): line for line in lens.results()["tpu"]}

    def added(data: int, model: int) -> float:
        return by["lens", data, model]["step_seconds"]["total"] - by[None, data, model]["step_seconds"]["total"]

    assert added(1, 8) < 1.4 * added(8, 1)
    assert by["lens", 1, 8]["needed_per_device"] < 1.05 * by[None, 1, 8]["needed_per_device"]
