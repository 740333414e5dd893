"""The study's machinery on random models: every experiment runs, results are kept, and a rerun changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxsink_experiments import ORDER
from support.miniatures import random_subject

import jaxsink
from jaxsink.cli.main import main
from jaxsink.errors import JaxsinkError
from jaxsink.evals import engine
from jaxsink.evals.conditions import PLAIN, Condition, hide
from jaxsink.evals.results import read_results
from jaxsink.report import read_study, write_page
from jaxsink.report.played import read_generation
from jaxsink.report.study import VERDICTS
from jaxsink.sampling.generation import before_end, end_ids
from jaxsink.sinks import MaskSinks
from jaxsink.study import Experiment, Gallery, Recorded, Scored, Study, Subject, measure
from jaxsink.study.experiments import experiment_of
from jaxsink.study.player import CONDITION, HIDDEN, export, one_generation
from jaxsink.study.run import all_measurements, conduct

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONDITIONS = (PLAIN, hide(2), hide(2, "random"), Condition(MaskSinks(3, layers=(1,))), hide(1, rank_on="clean"))


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    subjects = [random_subject(name) for name in ("mini-llada", "mini-llama")]
    return Study(subjects, tmp_path_factory.mktemp("study"), problems=3, generations=2, eps=0.5)


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def experiments(names=ORDER) -> list[Experiment]:
    return [experiment_of(import_module(f"jaxsink_experiments.{name}")) for name in names]


@pytest.mark.slow
def test_every_experiment_runs_and_a_rerun_changes_nothing(study: Study, monkeypatch) -> None:
    study = replace(study, rows=20, loaded={})  # two batches of each condition
    findings = conduct(study, experiments())
    assert [finding.name for finding in findings] == [one.name for one in experiments()]
    for finding in findings:
        assert finding.found and finding.verdict in VERDICTS
        for name in finding.figures:
            assert (study.folder / "figures" / name).is_file()
            for kind in (".png", ".pdf"):
                assert (study.folder / "figures" / name).with_suffix(kind).is_file()
        saved = json.loads((study.folder / "experiments" / f"{finding.name}.json").read_text(encoding="utf-8"))
        assert saved["found"] == finding.found and len(saved["tables"]) == len(finding.tables)
    write_page(read_study(study.folder), study.folder / "report.html")
    before = files(study.folder)
    for module in (measure, engine):
        monkeypatch.setattr(module, "generate", lambda *a, **k: pytest.fail("measured again"))
    monkeypatch.setattr(study, "loaded", {})
    assert conduct(study, experiments()) == findings
    write_page(read_study(study.folder), study.folder / "report.html")
    assert files(study.folder) == before


def test_the_gallery_holds_what_a_generation_recorded(study: Study) -> None:
    subject = study.subjects[0]
    gallery = study.gallery(subject)
    canvas = gallery.canvas[3, :, :]
    masked = canvas == subject.model.config.mask_id
    np.testing.assert_array_equal(masked, (gallery.committed_at >= 3) & gallery.mask)
    received = jaxsink.forward(subject.model, canvas, gallery.mask, record=jaxsink.record.received_by_query()).record
    np.testing.assert_allclose(gallery.scores[3], sum(received.values()), atol=1e-4)
    np.testing.assert_allclose(gallery.masked[3], received["masked"], atol=1e-4)
    present = np.argwhere(gallery.present)
    assert len(present)
    for step, layer, row, head in present[:: max(1, len(present) // 20)]:
        position = gallery.tracks.position[step, layer, row, head]
        assert gallery.sink_token_position[step, layer, row, head] == gallery.mask[row, :position].sum()
    number = gallery.mean_over_steps(gallery.tracks.sink_count)
    by_hand = gallery.tracks.sink_count[: gallery.taken[1], 1, 1, 0].mean()
    np.testing.assert_allclose(number[1, 1, 0], by_hand)


def test_conditions_in_turns_are_what_each_would_be_alone(study: Study) -> None:
    """The rows of a policy in a batch of many are those of a batch of its own, with the same seeds."""
    subject = study.subjects[0]
    right = study.scores(subject, CONDITIONS)
    exam = subject.exam(3, study.seed)
    for condition in CONDITIONS:
        out = jaxsink.generate(
            subject.model,
            [list(question.prompt) for question in exam.questions],
            subject.sampler,
            intervene=condition.policy,
            seed=[0, 1, 2],
            pad_to=exam.bucket,
        )
        ends = end_ids(subject.model.config)
        texts = [subject.tokenizer.decode(before_end(ids, ends)) for ids in np.asarray(out.response).tolist()]
        graded = [question.grade(text).correct for question, text in zip(exam.questions, texts, strict=True)]
        assert right[condition].tolist() == graded
        kept = read_results(study.path(subject, Scored(())))
        assert [kept[number, str(condition)]["text"] for number in range(3)] == texts


def test_the_cost_is_of_what_is_left(study: Study, tmp_path: Path) -> None:
    table1 = experiments(["table1_masking"])
    fresh = replace(study, folder=tmp_path, problems=2, loaded={})
    wanted = all_measurements(fresh, table1)
    assert [type(spec) for _, spec in wanted].count(Scored) == 2 and len(wanted) == 2 + 4  # galleries, hidden too
    assert all(fresh.cost(*one) > 0 for one in wanted)
    gallery = next(one for one in wanted if isinstance(one[1], Recorded))
    fresh.measure(*gallery)
    assert [fresh.cost(*one) == 0 for one in wanted] == [one is gallery for one in wanted]
    subject, spec = next(one for one in wanted if isinstance(one[1], Scored))
    whole = fresh.cost(subject, spec)
    fresh.measure(subject, Scored(spec.conditions[:2]))
    assert fresh.cost(subject, spec) == whole * 8 / 10
    assert len(all_measurements(fresh, experiments(["table1_masking", "beyond_dose"]))) == len(wanted) + 2  # shared


def test_other_settings_are_other_files(study: Study) -> None:
    subject = study.subjects[0]

    def name(study: Study, subject: Subject, **changes: Any) -> Path:
        return study.path(subject, Recorded(tuple(changes.items())))

    names = {
        study.path(subject, HIDDEN),
        name(study, subject),
        name(study, subject, temperature=1.0),
        name(study, study.subjects[1]),
        name(replace(study, seed=1), subject),
        name(replace(study, generations=3), subject),
    }
    assert len(names) == 6


def test_a_folder_holds_one_study(study: Study, tmp_path: Path) -> None:
    here = replace(study, folder=tmp_path, loaded={})
    conduct(here, [])
    conduct(here, [])
    with pytest.raises(JaxsinkError, match="another study: settings problems is 3, not 4"):
        conduct(replace(here, problems=4), [])
    with pytest.raises(JaxsinkError, match="another study: models mini-llama differs"):
        conduct(replace(here, subjects=here.subjects[:1]), [])
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(JaxsinkError, match="not the manifest of a run"):
        conduct(here, [])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig99"], "there is no experiment 'fig99'"),
        (["--problems", "0"], "at least one problem"),
        (["--generations", "1"], "two generations"),
        (["--rows", "0"], "one sequence"),
        (["--mesh", "3"], "two numbers such as 2x4"),
        (["--mesh", "3x5"], "15 devices are asked for, and there are 8"),
        (["--runs", "nowhere"], "nowhere is not a directory"),
        (["--model", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_named(arguments: list[str], words: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["study", *arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_player_gets_every_problem_with_and_without_sinks(study: Study) -> None:
    names = export(study)
    assert names == [
        f"{model}-{row}{end}.npz" for model in ("mini-llada", "mini-llama") for end in ("", "-hidden") for row in (1, 2)
    ]
    runs = {name: read_generation(study.folder / "player" / name) for name in names}
    plain, hidden = runs["mini-llada-1.npz"], runs["mini-llada-1-hidden.npz"]
    assert plain.problem == hidden.problem == "Problem 1" and (plain.condition, hidden.condition) == ("", CONDITION)
    assert plain.text[0] == hidden.text[0] and {"scores", "masked"} == set(plain.parts) == set(hidden.parts)
    np.testing.assert_array_equal(plain.parts["scores"][0], hidden.parts["scores"][0])  # nothing is hidden at first
    assert (plain.parts["scores"] > 0).all()
    zeros = hidden.parts["scores"][1:] == 0
    assert (zeros.sum(-1) == 1).all()  # then one key of each head
    np.testing.assert_array_equal(zeros[0].argmax(-1), hidden.parts["scores"][0].argmax(-1))  # the strongest before


def test_player_leaves_out_places_after_an_early_end() -> None:
    subject = random_subject("mini-llama")
    ended = Gallery(
        scores=np.ones((4, 2, 1, 2, 7), np.float32),
        masked=None,
        tokens=np.array([[2, 2, 5, 6, 7, 3, 2]]),
        committed_at=np.array([[-1, -1, -1, 0, 1, 2, -1]]),
        mask=np.array([[False, *[True] * 6]]),
        real=np.ones((4, 1, 7), bool),
        taken=np.array([3]),
        prompt_length=3,
        mask_id=None,
        eps=3.0,
    )
    arrays = one_generation(subject, ended, 0)
    assert arrays["committed_at"].tolist() == [-1, -1, 0, 1, 2] and arrays["scores"].shape == (3, 2, 2, 5)
    assert int(arrays["prompt_length"]) == 2 and len(arrays["tokens"]) == 5
