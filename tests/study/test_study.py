"""The study's machinery on random models: every experiment runs, results are kept, and a rerun changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jaxsink_experiments import ORDER
from support.made_gallery import made_gallery
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
from jaxsink.runs.stopping import StoppedError
from jaxsink.sampling.generation import before_end, end_ids
from jaxsink.sinks import MaskSinks
from jaxsink.study import Experiment, Hidden, Recorded, Scored, Study, Subject, Untrained, measurements
from jaxsink.study.experiments import experiment_of
from jaxsink.study.player import CONDITION, HIDDEN, export, one_generation
from jaxsink.study.run import all_measurements, conduct
from jaxsink.study.subject import with_random_weights

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONDITIONS = (PLAIN, hide(2), hide(2, "random"), Condition(MaskSinks(3, layers=(1,))), hide(1, rank_on="clean"))


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    subjects = [random_subject(name) for name in ("mini-llada", "mini-llama")]
    return Study(subjects, tmp_path_factory.mktemp("study"), problems=3, generations=2, eps=0.5, untrained=1)


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def experiments(names=ORDER) -> list[Experiment]:
    return [experiment_of(import_module(f"jaxsink_experiments.{name}")) for name in names]


def longer(subject: Subject) -> Subject:
    """With answers long enough that a sequence has more keys than any experiment hides."""
    changes = {"gen_length": 16, "block_length": 8} if subject.is_diffusion else {"max_new_tokens": 16}
    return replace(subject, sampler=replace(subject.sampler, **changes))


@pytest.mark.slow
def test_every_experiment_runs_and_a_rerun_changes_nothing(study: Study, monkeypatch) -> None:
    """On random weights as nulls have them, with what it takes to test: so nothing may be supported."""
    subjects = [with_random_weights(longer(subject), 1, subject.name) for subject in study.subjects]
    study = replace(study, subjects=subjects, rows=90, problems=6, generations=5, untrained=4, loaded={})
    findings = conduct(study, experiments())
    assert [finding.name for finding in findings] == [one.name for one in experiments()]
    for finding in findings:
        assert finding.found and finding.verdict in VERDICTS and finding.verdict != "supported"
        for name in finding.figures:
            assert (study.folder / "figures" / name).is_file()
            for kind in (".png", ".pdf"):
                assert (study.folder / "figures" / name).with_suffix(kind).is_file()
        saved = json.loads((study.folder / "experiments" / f"{finding.name}.json").read_text(encoding="utf-8"))
        assert saved["found"] == finding.found and len(saved["tables"]) == len(finding.tables)
        assert [test["verdict"] for test in saved["tests"]] == [test.verdict for test in finding.tests]
        assert (study.folder / "experiments" / f"{finding.name}-problems.csv").is_file() == bool(finding.values)
    tests = [test for finding in findings for test in finding.tests]
    assert not [test for test in tests if test.verdict == "supported"]
    assert len([test for test in tests if test.comparisons]) > 10
    write_page(read_study(study.folder), study.folder / "report.html")
    before = files(study.folder)
    for module in (measurements, engine):
        monkeypatch.setattr(module, "generate", lambda *a, **k: pytest.fail("measured again"))
    monkeypatch.setattr(study, "loaded", {})
    assert repr(conduct(study, experiments())) == repr(findings)  # NaN is not equal to itself
    write_page(read_study(study.folder), study.folder / "report.html")
    assert files(study.folder) == before


@pytest.mark.slow
def test_a_study_that_was_stopped_goes_on_where_it_stopped(study: Study, tmp_path: Path, monkeypatch) -> None:
    alone = replace(study, subjects=study.subjects[:1], loaded={})
    whole, stopped = (replace(alone, folder=tmp_path / name, loaded={}) for name in ("whole", "stopped"))
    wanted = experiments(["fig1_scores_over_steps", "beyond_clean_ranking"])
    findings = conduct(whole, wanted)
    seen = []

    def after_a_few() -> bool:
        seen.append(1)
        return len(seen) > 3

    with pytest.raises(StoppedError):
        conduct(stopped, wanted, after_a_few)
    done = files(stopped.folder)
    assert done and not any(name.startswith("experiments") for name in done)
    assert repr(conduct(replace(stopped, loaded={}), wanted)) == repr(findings)
    after = files(stopped.folder)
    assert all(after[name] == content for name, content in done.items() if name.endswith(".npz"))
    for name in ("fig1.json", "fig1-problems.csv", "clean.json", "clean-1.csv", "clean-problems.csv"):
        assert (stopped.folder / "experiments" / name).read_bytes() == (
            whole.folder / "experiments" / name
        ).read_bytes()


def test_untrained_models_are_measured_once_for_all_experiments(study: Study, tmp_path: Path) -> None:
    here = replace(study, folder=tmp_path, untrained=2, loaded={})
    wanted = experiments(["fig1_scores_over_steps", "fig3_histogram", "fig7_trajectories"])
    here = replace(here, predictions=tuple(one for experiment in wanted for one in experiment.predictions))
    specs = [(subject.name, spec) for subject, spec in all_measurements(here, wanted) if isinstance(spec, Untrained)]
    assert specs == [(name, Untrained(number)) for name in ("mini-llada", "mini-llama") for number in (0, 1)]
    llada, llama = here.subjects
    of_llada, of_llama = (here.of_untrained(subject) for subject in (llada, llama))
    assert set(of_llada[0]) == {f"{n}{end}" for n in ("strongest", "near-zero", "stay") for end in ("", " shuffled")}
    assert set(of_llama[0]) == {"on-first", "on-first shuffled"}  # what is said of it, and no more
    assert all(values.shape == (2,) for found in of_llada for values in found.values())
    assert (of_llada[0]["strongest"] != of_llada[1]["strongest"]).all()
    other = replace(here, predictions=wanted[0].predictions)
    assert Untrained(0).path(other, llada) != Untrained(0).path(here, llada)


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


@pytest.mark.slow
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
            seed=[study.seed + question.index for question in exam.questions],
            pad_to=exam.bucket,
        )
        ends = end_ids(subject.model.config)
        texts = [subject.tokenizer.decode(before_end(ids, ends)) for ids in np.asarray(out.response).tolist()]
        graded = [question.grade(text).correct for question, text in zip(exam.questions, texts, strict=True)]
        assert right[condition].tolist() == graded
        kept = read_results(Scored(()).path(study, subject))
        assert [kept[question.index, str(condition)]["text"] for question in exam.questions] == texts


def test_problems_are_solved_with_another_sampler_too(study: Study) -> None:
    """Kept apart from the answers with the subject's own."""
    subject = study.subjects[0]
    other = replace(subject.sampler, remasking="left_to_right")
    study.scores(subject, (PLAIN,))
    study.scores(subject, (PLAIN,), sampler=other)
    usual, found = (read_results(Scored((), sampler=one).path(study, subject)) for one in (None, other))
    exam = subject.exam(3, study.seed)
    prompts = [list(question.prompt) for question in exam.questions]
    out = jaxsink.generate(subject.model, prompts, other, pad_to=exam.bucket)
    ends = end_ids(subject.model.config)
    texts = [subject.tokenizer.decode(before_end(ids, ends)) for ids in np.asarray(out.response).tolist()]
    keys = [(question.index, str(PLAIN)) for question in exam.questions]
    assert [found[key]["text"] for key in keys] == texts != [usual[key]["text"] for key in keys]


@pytest.mark.slow
def test_what_conditions_hide_is_the_same_in_turns_and_alone(study: Study, tmp_path: Path) -> None:
    """Also those that cannot share a program, in batches of three, and one condition at a time."""
    subject = study.subjects[1]
    wanted = (hide(1), hide(2, "random"), hide(1, rows="all"), hide(1, rank_on="clean"))
    together = replace(study, folder=tmp_path / "together", rows=3).hidden(subject, wanted)
    for number, condition in enumerate(wanted):
        alone = replace(study, folder=tmp_path / str(number)).hidden(subject, (condition,))
        assert set(alone) == {name for name in together if name.startswith(f"{condition}: ")}
        for name, values in alone.items():
            assert values.shape == (measurements.HIDDEN,)
            np.testing.assert_allclose(values, together[name], rtol=1e-5, err_msg=name)
    assert (together[f"{hide(2, 'random')}: number"] == 2).all() and (together[f"{hide(1)}: number"] == 1).all()


def test_the_cost_is_of_what_is_left(study: Study, tmp_path: Path) -> None:
    table1 = experiments(["table1_masking"])
    fresh = replace(study, folder=tmp_path, problems=2, loaded={})
    wanted = all_measurements(fresh, table1)
    kinds = [type(spec) for _, spec in wanted]
    assert kinds.count(Scored) == 4 and kinds.count(Hidden) == 2  # answers, and how likely given ones are
    assert kinds.count(Recorded) == 4 and len(wanted) == 10  # for the player

    def costs() -> list[int]:
        return [spec.cost(fresh, subject) for subject, spec in wanted]

    assert all(cost > 0 for cost in costs())
    gallery = kinds.index(Recorded)
    fresh.measure(*wanted[gallery])
    assert [number for number, cost in enumerate(costs()) if cost == 0] == [gallery]
    number = kinds.index(Scored)
    subject, spec = wanted[number]
    whole, conditions = costs()[number], len(spec.conditions)
    fresh.measure(subject, Scored(spec.conditions[:2]))
    assert costs()[number] == whole * (conditions - 2) / conditions
    assert len(all_measurements(fresh, experiments(["table1_masking", "beyond_dose"]))) == len(wanted) + 2  # shared


def test_other_settings_are_other_files(study: Study) -> None:
    subject = study.subjects[0]

    def name(study: Study, subject: Subject, **changes: Any) -> Path:
        return Recorded(tuple(changes.items())).path(study, subject)

    names = {
        HIDDEN.path(study, subject),
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
    with pytest.raises(JaxsinkError, match="another study: settings untrained is 1, not 5"):
        conduct(replace(here, untrained=5), [])
    with pytest.raises(JaxsinkError, match="another study: models mini-llama differs"):
        conduct(replace(here, subjects=here.subjects[:1]), [])
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(JaxsinkError, match="not the manifest of a run"):
        conduct(here, [])


def test_a_subject_that_is_to_write_token_by_token_is_causal_in_all_that_is_asked(tmp_path: Path) -> None:
    """A checkpoint of weights that know both ways may recommend ARSampler."""
    mini = jaxsink.load("mini-dream")
    both = jaxsink.init(mini.config.replace(writes_causally=True)).with_origin(mini.origin)
    jaxsink.save(both, tmp_path / "both", sampler=jaxsink.ARSampler(16))
    one = jaxsink.study.subject(str(tmp_path / "both"))
    assert (one.model.config.attention, one.is_diffusion, one.sampler.response_length) == ("causal", False, 16)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig99"], "there is no experiment 'fig99'"),
        (["--problems", "0"], "problems must be a positive whole number"),
        (["--generations", "1"], "two generations"),
        (["--rows", "0"], "rows must be a positive whole number"),
        (["--mesh", "3"], "two numbers such as 2x4"),
        (["--mesh", "3x5"], "15 devices are asked for, and there are 8"),
        (["--runs", "nowhere"], "nowhere is not a directory"),
        (["--model", "nowhere"], "nowhere"),
        (["--prompts", "nowhere.txt"], "cannot read nowhere.txt"),
        (["--prompts", "humaneval"], "give --allow-code-execution"),
        (["--prompts", "x.txt", "--data-file", "y"], "--data-file is for gsm8k, humaneval and text"),
    ],
)
def test_mistakes_are_named(arguments: list[str], words: str, tmp_path: Path, capsys: Any) -> None:
    jax.devices()  # from here on there are eight, and no more
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
    ended = made_gallery(
        np.ones((4, 2, 1, 2, 7), np.float32),
        tokens=np.array([[2, 2, 5, 6, 7, 3, 2]]),
        committed_at=np.array([[-1, -1, -1, 0, 1, 2, -1]]),
        mask=np.array([[False, *[True] * 6]]),
        taken=np.array([3]),
        prompt_length=3,
        mask_id=None,
    )
    arrays = one_generation(subject, ended, 0)
    assert arrays["committed_at"].tolist() == [-1, -1, 0, 1, 2] and arrays["scores"].shape == (3, 2, 2, 5)
    assert int(arrays["prompt_length"]) == 2 and len(arrays["tokens"]) == 5
