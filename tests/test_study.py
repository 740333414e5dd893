"""The study's machinery on random models: every experiment runs, results are kept, and a rerun changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from jaxsink_experiments import ORDER
from test_forward import lively

import jaxsink
from jaxsink.builtin import BUILTIN
from jaxsink.data.batches import PROMPT
from jaxsink.data.vocabulary import tokenizer
from jaxsink.study import Study, Subject
from jaxsink.study.player import export

pytestmark = pytest.mark.usefixtures("quick_compilation")
SMALLER = {
    "mini-llada": {"gen_length": 8, "steps": 8, "block_length": 4},
    "mini-dream": {"max_new_tokens": 8, "steps": 8},
}


def random_subject(name: str) -> Subject:
    entry = BUILTIN[name]
    sampler = replace(entry.sampler, **SMALLER.get(name, {"max_new_tokens": 8}))
    config = entry.config.replace(layers=2, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=32)
    return Subject(name, lively(config, size=0.3), tokenizer(), sampler, chats=False, pad_to=PROMPT)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    subjects = [random_subject(name) for name in ("mini-llada", "mini-llama")]
    return Study(subjects, tmp_path_factory.mktemp("study"), problems=3, generations=2, batch=2, eps=0.5)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.slow
def test_every_experiment_runs_and_a_rerun_changes_nothing(study: Study, monkeypatch) -> None:
    for module in ("table1_masking", "beyond_dose"):
        monkeypatch.setattr(import_module(f"jaxsink_experiments.{module}"), "COUNTS", (1,))
    before: dict[str, bytes] = {}
    for again in range(2):
        for module in ORDER:
            finding = import_module(f"jaxsink_experiments.{module}").run(study)
            finding.save(study.folder / "experiments")
            assert finding.found and finding.verdict in ("holds", "holds partly", "does not hold", "not tested")
            for name in finding.figures:
                assert (study.folder / "figures" / name).is_file()
                assert (study.folder / "figures" / name).with_suffix(".png").is_file()
            assert (
                json.loads((study.folder / "experiments" / f"{finding.name}.json").read_text())["name"] == finding.name
            )
        export(study)
        if again:
            assert files(study.folder) == before
            break
        before = files(study.folder)
        study.report = lambda text: pytest.fail(f"measured again: {text}")


def test_the_gallery_holds_what_a_generation_recorded(study: Study) -> None:
    subject = study.subjects[0]
    gallery = study.gallery(subject)
    canvas = gallery.canvas[3, :, :]
    masked = canvas == subject.model.config.mask_id
    np.testing.assert_array_equal(masked, (gallery.committed_at >= 3) & gallery.mask)
    received = jaxsink.forward(subject.model, canvas, gallery.mask, record=jaxsink.record.received_by_query()).record
    np.testing.assert_allclose(gallery.scores[3], sum(received.values()), atol=1e-4)
    np.testing.assert_allclose(gallery.masked[3], received["masked"], atol=1e-4)


def test_other_settings_are_other_pieces(study: Study) -> None:
    subject = study.subjects[0]
    names = {
        study._name("gallery", subject, subject.sampler, 2),
        study._name("gallery", subject, replace(subject.sampler, temperature=1.0), 2),
        study._name("gallery", study.subjects[1], subject.sampler, 2),
        replace(study, seed=1)._name("gallery", subject, subject.sampler, 2),
    }
    assert len(names) == 4
