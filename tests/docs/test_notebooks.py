"""The notebooks: their outputs are kept, are clean, and are what executing them as they stand gives (extra `notebooks`)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

FOLDER = ROOT / "notebooks"
PATHS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in PATHS]
HERE = re.compile(r"/(root|home|work|tmp|Users)/|site-packages")
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"


def cells_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code_of(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in cells_of(path) if cell["cell_type"] == "code"]


def text_of(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def kinds(cell: dict[str, Any]) -> list[str]:
    """What a cell shows; progress on stderr comes and goes."""
    shown = [output for output in cell["outputs"] if output.get("name") != "stderr"]
    return [max(output.get("data", {output["output_type"]: ""}), key=len) for output in shown]


def test_all_are_listed() -> None:
    listed = re.findall(r"\]\((\w+\.ipynb)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [path.name for path in PATHS] and len(listed) >= 5


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_outputs_are_kept_and_clean(path: Path) -> None:
    text, cells = path.read_text(encoding="utf-8"), code_of(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 1
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert BADGE in text_of(cells_of(path)[0]) and text_of(cells_of(path)[0]).startswith("# ")
    assert not HERE.search(text) and len(text) < 1_000_000
    assert text_of(cells[0]).startswith(text_of(code_of(PATHS[0])[0]))  # all are set up in the same way


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_links_lead_somewhere(path: Path) -> None:
    prose = " ".join(text_of(cell) for cell in cells_of(path) if cell["cell_type"] == "markdown")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", prose) if not link.startswith("http")]
    assert links and [link for link in links if not (FOLDER / link.partition("#")[0]).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_executing_gives_what_is_kept(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the extra notebooks")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(path, as_version=4)
    options = {"timeout": 600, "kernel_name": "python3", "coalesce_streams": True}
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, **options).execute()
    executed = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for kept, new in zip(code_of(path), executed, strict=True):
        assert kinds(kept) == kinds(new), text_of(kept)
