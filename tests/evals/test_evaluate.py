"""The evaluation engine on random models: answers and sink counts are those of single runs, whatever the batch."""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support.miniatures import random_model

import jaxsink
from jaxsink.cli.evaluate import add_parser
from jaxsink.errors import JaxsinkError
from jaxsink.evals import engine
from jaxsink.evals.conditions import PLAIN, Condition, Named, comparisons, conditions, hide, programs
from jaxsink.evals.engine import Evaluation, batches, evaluate
from jaxsink.evals.prepare import Options
from jaxsink.evals.results import read_results
from jaxsink.evals.settings import get_setting
from jaxsink.evals.statistics import mcnemar, wilson
from jaxsink.evals.summary import summarise
from jaxsink.nn.fingerprint import fingerprint
from jaxsink.parallel import make_mesh, shard
from jaxsink.runs.lines import encoded
from jaxsink.runs.stopping import StoppedError
from jaxsink.sinks import MaskSinks
from jaxsink.tasks.benchmarks import Example
from jaxsink.tasks.exam import Exam, benchmark_exam, choose, task_exam
from jaxsink.tasks.vocabulary import tokenizer

pytestmark = pytest.mark.usefixtures("quick_compilation")
SHORT = {
    "mini-llada": {"gen_length": 8, "steps": 8, "block_length": 4},
    "mini-dream": {"max_new_tokens": 8, "steps": 8, "temperature": 0.7},
    "mini-llama": {"max_new_tokens": 8, "temperature": 0.7},
}
CONDITIONS = conditions((0, 2), ("top", "random"))
LENGTHS = (27, 28, 18, 26, 22)
EPS = 0.5


def short_exam(name: str, model: jaxsink.Model, count: int = 5) -> Exam:
    """Problems with prompts of set lengths, so that there are two buckets of three and two; eight tokens each."""
    exam = task_exam(model.config, list(range(count)))
    asked = [replace(q, prompt=(q.prompt * 3)[:length]) for q, length in zip(exam.questions, LENGTHS, strict=False)]
    return replace(exam, questions=tuple(asked), sampler=replace(exam.sampler, **SHORT[name]), bucket=8)


def evaluation(name: str, **options: Any) -> Evaluation:
    model = random_model(name)
    options = {"eps": EPS, "rows": 6, **options}
    return Evaluation(model, short_exam(name, model), CONDITIONS, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An evaluation in one go."""
    folder = tmp_path_factory.mktemp("whole")
    evaluate(again(), folder)
    return folder


def again(**options: Any) -> Evaluation:
    return evaluation("mini-llada", **{"seed": 3, **options})


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return list(read_results(folder).values())


def slow_counts(out: jaxsink.Generation, mask_id: int | None) -> dict[str, Any]:
    """The sinks of a run of one row with a full record [T,L,1,H,S], by loops."""
    scores = np.asarray(out.record)[:, :, 0]
    tokens, written, mask, steps = (np.asarray(x)[0] for x in (out.tokens, out.committed_at, out.mask, out.steps))
    start = int(np.flatnonzero(mask)[0])
    found: dict[str, Any] = {"maps": 0, "total": 0, "first": 0, "layers": [0] * scores.shape[1]}
    at, places = Counter(), Counter()
    for step in range(steps):
        there = [p for p in np.flatnonzero(mask) if mask_id is not None or p < out.prompt_length + step]
        canvas = {p: mask_id if mask_id is not None and written[p] >= step else tokens[p] for p in there}
        places.update(str(canvas[p]) for p in there)
        for layer in range(scores.shape[1]):
            for row in scores[step, layer]:
                found["maps"] += 1
                for p in there:
                    others = [row[other] for other in there if other != p]
                    if row[p] > np.mean(others) + EPS:
                        found["total"] += 1
                        found["first"] += p == start
                        found["layers"][layer] += 1
                        at[str(canvas[p])] += 1
    return {**found, "tokens": dict(at), "places": dict(places)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "checked"), [("mini-llada", (1, 4)), ("mini-dream", (4,)), ("mini-llama", (4,))])
def test_lines_are_those_of_single_runs(name: str, checked: tuple[int, ...], tmp_path: Path) -> None:
    """Text, score and steps of every question and condition alone; sinks by loops over the full record."""
    run = evaluation(name, seed=5)
    evaluate(run, tmp_path)
    lines = read_results(tmp_path)
    assert set(lines) == {(n, str(condition)) for n in range(5) for condition in CONDITIONS}
    sampler = run.exam.sampler
    if name == "mini-llama":
        sampler = replace(sampler, whole_map=True)
    for question in (run.exam.questions[number] for number in checked):
        for condition in CONDITIONS:
            out = jaxsink.generate(
                run.model,
                [list(question.prompt)],
                sampler,
                record=jaxsink.record.received(),
                intervene=condition.policy,
                seed=5 + question.index,
                pad_to=32,
            )
            response = np.asarray(out.response)[0].tolist()
            ends = [n for n, token in enumerate(response) if token in run.config.eos_ids]
            text = tokenizer().decode(response[: ends[0] if ends else None])
            line = lines[question.index, str(condition)]
            assert line["text"] == text and line["task_id"] == question.task_id
            assert line["correct"] == question.grade(text).correct and line["found"] == question.grade(text).found
            assert line["steps"] == int(np.asarray(out.steps)[0])
            sinks = slow_counts(out, run.config.mask_id if name != "mini-llama" else None)
            assert line["sinks"] == sinks and sinks["total"] > 0
    assert len({line["text"] for line in lines.values()}) > 5  # the conditions do something


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [{"rows": 1}, {"rows": 100}, {"devices": 2}, {"devices": 8}, {"mesh": (2, 2)}],
    ids=str,
)
def test_rows_and_devices_change_nothing(place: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    run = again(rows=place.get("rows", 6))
    if "devices" in place:
        run = replace(run, devices=jax.devices()[: place["devices"]])
    if "mesh" in place:
        data, weights = place["mesh"]
        run = replace(run, model=shard(run.model, make_mesh(data, weights, jax.devices()[: data * weights])))
    evaluate(run, tmp_path)
    assert lines_of(tmp_path) == lines_of(whole)


def test_a_bucket_has_one_shape(tmp_path: Path) -> None:
    """Also the last batch, and also when only few questions are left."""
    run = replace(again(rows=7), devices=jax.devices()[:2])
    found = list(batches(run, set()))
    everything = [(n, str(condition)) for n in range(5) for condition in CONDITIONS]
    assert sorted((q.index, str(condition)) for batch in found for q, condition in batch.asked) == sorted(everything)
    shapes = {batch.width: len(batch.filled) for batch in found}
    assert shapes == {32: 6, 24: 6}  # nine and six sequences, two devices
    for batch in found:
        assert len(batch.filled) == shapes[batch.width] and set(batch.filled) == set(batch.asked)
        assert all(batch.width - 8 < len(q.prompt) <= batch.width for q, _ in batch.asked)
    assert [batch.width for batch in found] == sorted((batch.width for batch in found), reverse=True)
    done = set(everything) - {(4, "K = 0"), (4, "K = 2, random")}
    (last,) = batches(run, done)
    assert [(q.index, str(condition)) for q, condition in last.asked] == [(4, "K = 0"), (4, "K = 2, random")]
    assert len(last.filled) == shapes[last.width] and last.first


def asked_by(monkeypatch) -> list[int]:
    """The seeds of the rows that are generated from here on."""
    seeds, real = [], engine.generate

    def generate(*args: Any, **options: Any) -> Any:
        seeds.extend(options["seed"])
        return real(*args, **options)

    monkeypatch.setattr(engine, "generate", generate)
    return seeds


def test_a_torn_line_is_cut_and_nothing_finished_is_asked_again(whole: Path, tmp_path: Path, monkeypatch) -> None:
    for path in whole.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    results = tmp_path / "results-0001.jsonl"
    kept = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(kept[:10]) + kept[10][:40])  # three questions, a condition of the fourth, a torn line
    finished = {line["index"] for line in map(json.loads, kept[:9])}
    seeds = asked_by(monkeypatch)
    evaluate(again(rows=1), tmp_path)
    assert {seed - 3 for seed in seeds} == set(range(5)) - finished and len(finished) == 3
    assert len(results.read_bytes().splitlines()) == len(kept)
    assert lines_of(tmp_path) == lines_of(whole)
    seeds.clear()
    evaluate(again(), tmp_path)
    assert not seeds


def test_a_damaged_line_is_named(whole: Path, tmp_path: Path) -> None:
    for path in whole.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    lines = (tmp_path / "results-0001.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "results-0001.jsonl").write_bytes(lines[0] + lines[1][:50] + b"\n" + lines[2])
    with pytest.raises(JaxsinkError, match=r"line 2 of .*results-0001.jsonl is damaged"):
        evaluate(again(), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "seed is 3, not 4"),
        ({"eps": None}, "eps is 0.5, not None"),
        ({"conditions": CONDITIONS[:1]}, "conditions K = 2, top differs"),
        ({"model": random_model("mini-dream")}, "model fingerprint differs"),
        ({"exam": short_exam("mini-llada", random_model("mini-llada"), 3)}, "exam questions is 5, not 3"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_foreign_manifest_is_refused(change: dict[str, Any], message: str, whole: Path) -> None:
    before = {path.name: path.read_bytes() for path in whole.iterdir()}
    with pytest.raises(JaxsinkError) as caught:
        evaluate(replace(again(), **change), whole)
    assert message in str(caught.value) and "choose another --out" in str(caught.value)
    assert {path.name: path.read_bytes() for path in whole.iterdir()} == before


def test_fingerprints_tell_weights_apart_and_not_places() -> None:
    model = random_model("mini-llada")
    leaves, treedef = jax.tree.flatten(model)
    assert fingerprint(shard(model, make_mesh(2, 2, jax.devices()[:4]))) == fingerprint(model)
    for leaf in (leaves[0].at[(0,) * leaves[0].ndim].add(1e-6), leaves[0][::-1], leaves[0].astype("bfloat16")):
        assert fingerprint(jax.tree.unflatten(treedef, [leaf, *leaves[1:]])) != fingerprint(model)


def test_shards_add_up(whole: Path, tmp_path: Path, monkeypatch) -> None:
    seeds = asked_by(monkeypatch)
    evaluate(again(rows=1, shard=(2, 3)), tmp_path)
    assert {seed - 3 for seed in seeds} == {1, 4}
    assert not (tmp_path / "results-0001.jsonl").exists()
    partly = summarise(tmp_path, str)
    assert partly["finished"] == 2 and partly["questions"] == 5
    for number, own in ((1, {0, 3}), (3, {2})):
        seeds.clear()
        evaluate(again(rows=1, shard=(number, 3)), tmp_path)
        assert {seed - 3 for seed in seeds} == own
    assert lines_of(tmp_path) == lines_of(whole)
    assert without_speed(summarise(tmp_path, str)) == without_speed(summarise(whole, str))
    seeds.clear()
    evaluate(again(shard=(1, 2)), tmp_path)  # other shards find everything done
    assert not seeds


def without_speed(results: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results.items() if key != "throughput"}


def test_summary_by_hand_and_in_any_order(whole: Path, tmp_path: Path) -> None:
    """Made-up scores, so that the tests have something to find; the lines shuffled."""
    lines, chance = lines_of(whole), random.Random(1)
    for line in lines:
        line["correct"] = chance.random() < (0.9 if line["condition"] == "K = 0" else 0.4)
    for folder, order in ((tmp_path / "a", lines), (tmp_path / "b", chance.sample(lines, len(lines)))):
        folder.mkdir()
        (folder / "manifest.json").write_bytes((whole / "manifest.json").read_bytes())
        (folder / "results-0001.jsonl").write_bytes(b"".join(map(encoded, order)))
    results = summarise(tmp_path / "a", tokenizer().token)
    assert summarise(tmp_path / "b", tokenizer().token) == results
    assert json.loads((tmp_path / "a" / "results.json").read_text()) == results
    names = list(map(str, CONDITIONS))
    right = {name: [line["correct"] for line in lines if line["condition"] == name] for name in names}
    for line in results["conditions"]:
        assert (line["accuracy"], line["low"], line["high"]) == wilson(sum(right[line["condition"]]), 5)
    tests = {(test["condition"], test["against"]): test for test in results["tests"]}
    assert set(tests) == {("K = 2, top", "K = 0"), ("K = 2, random", "K = 0"), ("K = 2, top", "K = 2, random")}
    for (one, other), test in tests.items():
        assert (test["gained"], test["lost"], test["p"]) == mcnemar(right[one], right[other])
    for label in names:
        mine = [line["sinks"] for line in lines if line["condition"] == label]
        tokens, places = (sum((Counter(sinks[name]) for sinks in mine), Counter()) for name in ("tokens", "places"))
        best = results["sinks"][label]["tokens"][0]
        token, count = max(tokens.items(), key=lambda item: (item[1], -int(item[0])))
        assert best["id"] == int(token) and best["token"] == tokenizer().token(int(token))
        assert best["share"] == pytest.approx(count / sum(tokens.values()))
        assert best["base"] == pytest.approx(places[token] / sum(places.values()))
        assert best["lift"] == pytest.approx(best["share"] / best["base"])
        assert results["sinks"][label]["per_head"] == pytest.approx(
            sum(sinks["total"] for sinks in mine) / sum(sinks["maps"] for sinks in mine)
        )


def test_stopping_keeps_what_is_finished(whole: Path, tmp_path: Path) -> None:
    looks = iter([False] * 4 + [True] * 100)  # of the first batch: one while it writes, one per question
    with pytest.raises(StoppedError):
        evaluate(again(), tmp_path, lambda: next(looks))
    finished = len(lines_of(tmp_path))
    assert 0 < finished < len(lines_of(whole))
    evaluate(again(), tmp_path)
    assert lines_of(tmp_path) == lines_of(whole)


def test_weights_are_put_on_the_devices_once(tmp_path: Path, monkeypatch) -> None:
    run, used = again(devices=jax.devices()[:2]), []

    def stop(model: jaxsink.Model, *_: Any, **__: Any) -> None:
        used.append(model)
        raise StoppedError

    monkeypatch.setattr(engine, "generate", stop)
    for _ in range(2):
        with pytest.raises(StoppedError):
            evaluate(run, tmp_path)
    assert used[0] is used[1]
    assert all(leaf.sharding.device_set == set(jax.devices()[:2]) for leaf in jax.tree.leaves(used[0]))


def test_without_sinks(whole: Path, tmp_path: Path) -> None:
    evaluate(again(eps=None), tmp_path)
    assert lines_of(tmp_path) == [{k: v for k, v in line.items() if k != "sinks"} for line in lines_of(whole)]
    assert summarise(tmp_path, str)["sinks"] == {}


def test_a_benchmark_has_both_scores_and_its_published_number(tmp_path: Path) -> None:
    """GSM8K questions through a setting; the model is random, so an answer is put in its mouth."""
    setting = replace(
        get_setting("smollm2-135m-instruct/gsm8k/small"), template=None, options=(("max_new_tokens", 4),), reported=50.0
    )
    asked = [
        Example("gsm8k", "test", n, f"gsm8k/test/{n}", "Mia has 4 apples.", f"She has {answer}.\n#### {answer}")
        for n, answer in ((4, "7"), (9, "8"))
    ]
    model = random_model("mini-llama")
    exam = benchmark_exam(setting, asked, tokenizer(), model.config)
    assert [question.index for question in exam.questions] == [4, 9]
    assert exam.questions[0].prompt == tuple(
        tokenizer().encode("Question: Mia has 4 apples.\nAnswer:", add_special_tokens=True)
    )
    first, second = exam.questions
    exam = replace(exam, questions=(first, replace(second, grade=lambda _: second.grade("That makes 8"))))
    evaluate(Evaluation(model, exam, (PLAIN,), eps=EPS), tmp_path)
    lines = read_results(tmp_path)
    assert {line["task_id"] for line in lines.values()} == {"gsm8k/test/4", "gsm8k/test/9"}
    right = lines[9, "K = 0"]
    assert right["correct"] and right["flexible"] and not right["strict"] and right["found"] == "8"
    results = summarise(tmp_path, tokenizer().token)
    (line,) = results["conditions"]
    assert line["reported"] == 50.0 and line["strict"] == 0 and line["flexible"] == line["accuracy"] == 0.5
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["exam"]["digest"] == setting.digest and manifest["exam"]["setting"]["reported"] == 50.0
    foreign = replace(setting, template="llada")
    with pytest.raises(JaxsinkError, match="needs the token"):
        benchmark_exam(foreign, asked, tokenizer(), model.config)
    with pytest.raises(JaxsinkError, match="is for a diffusion model"):
        benchmark_exam(replace(setting, decoder="dream"), asked, tokenizer(), model.config)


def test_conditions_and_choices() -> None:
    assert [*map(str, conditions((5, 0), ("top", "random")))] == ["K = 0", "K = 5, top", "K = 5, random"]
    assert conditions((1,), ("bottom",)) == (Condition(MaskSinks(1, select="bottom")),)
    assert comparisons([Named("K = 1, top", 1, "top"), Named("K = 1, bottom", 1, "bottom")]) == []
    shares = conditions((0, 5, 0.03), ("top", "mass"), rows="all")
    assert [*map(str, shares)][1:4] == ["K = 3%, top, all rows", "K = 3%, mass, all rows", "K = 5, top, all rows"]
    above = conditions((0, 1, 5), ("top", "partner"), rule="threshold", eps=2.0)
    assert [*map(str, above)] == ["K = 0", "all sinks, top, eps 2.0", "all sinks, partner, eps 2.0"]
    assert [one.k for one in above] == [0, None, None]
    for counts, selections in (((), ("top",)), ((1,), ()), ((1,), ("middle",)), ((1.5,), ("top",))):
        with pytest.raises(JaxsinkError):
            conditions(counts, selections)
    assert choose(5) == [0, 1, 2, 3, 4] and choose(5, limit=2) == [0, 1]
    drawn = choose(1000, subset=10, subset_seed=1)
    assert drawn == sorted(set(drawn)) == choose(1000, subset=10, subset_seed=1) != choose(1000, subset=10)
    with pytest.raises(JaxsinkError, match="there are 5 questions"):
        choose(5, subset=6)


def test_the_text_of_a_condition_says_all_that_is_unusual() -> None:
    texts = {
        Condition(): "K = 0",
        hide(5, "random"): "K = 5, random",
        hide(2, "first"): "K = 2, first",
        hide(1, rank_on="clean"): "K = 1, top, ranked on clean maps",
        Condition(MaskSinks(5, select="bottom", keep=True)): "all but 5, top",
        Condition(MaskSinks(3, layers=(1,))): "K = 3, top, layer 1",
        Condition(MaskSinks(3, layers=(1, 2), spare=2)): "K = 3, top, layers 1, 2, spare 2",
        Condition(MaskSinks(1, positions=(4,))): "K = 1, top, positions (4,)",
        Condition(MaskSinks(1, rule="threshold", eps=2.0)): "all sinks, top, eps 2.0",
        hide(
            None, "mass", eps=2.5, rule="threshold", rank_on="clean"
        ): "all sinks, mass, ranked on clean maps, eps 2.5",
        hide(5, "partner", rule="top_k_above", rows="all"): "K = 5, partner, rule top_k_above, all rows",
        hide(0.03, "top_not_first"): "K = 3%, top_not_first",
        hide(0.125, "first", rows="newest"): "K = 12.5%, first, newest rows",
        Condition(MaskSinks(positions=(4, 5), select="mass")): "K = 2, mass, positions (4, 5)",
        Condition(MaskSinks(5, select="first", keep=True)): "all but 5, not first",
        Condition(MaskSinks(rule="threshold", keep=True)): "all but sinks, bottom",
    }
    assert {condition: str(condition) for condition in texts} == texts and len(set(texts.values())) == len(texts)
    changes = {"k": 2, "select": "random", "rule": "top_k", "rank_on": "clean", "eps": 1.0, "per": "layer", "spare": 1}
    changes |= {"layers": (0,), "positions": (3,), "keep": True, "factor": 0.5, "share": 0.1, "rows": "all"}
    assert set(changes) == {field.name for field in fields(MaskSinks)}  # no field may be left unsaid
    named = {str(Condition(replace(MaskSinks(1), **{name: value}))) for name, value in changes.items()}
    assert len(named | {str(hide(1))}) == len(changes) + 1


def test_conditions_that_rank_on_clean_maps_have_their_own_program() -> None:
    clean = hide(1, rank_on="clean")
    assert programs((PLAIN, hide(1), clean)) == [(PLAIN, hide(1)), (clean,)]
    every, both = hide(1, rows="all"), hide(1, rank_on="clean", rows="all")
    assert programs((both, PLAIN, every, clean, hide(2))) == [(PLAIN, hide(2)), (clean,), (every,), (both,)]
    assert programs((PLAIN, every)) == [(PLAIN, every)] and programs((PLAIN,)) == [(PLAIN,)]
    assert programs((PLAIN, clean)) == [(PLAIN, clean)] and programs((PLAIN, hide(1))) == [(PLAIN, hide(1))]


def test_sinks_are_compared_with_every_kind_of_random_keys_under_the_same_settings() -> None:
    selections = ("top", "first", "bottom", "random", "partner", "mass")
    wanted = conditions((0, 1, 0.05), selections) + conditions((1,), ("top", "partner"), rank_on="clean")
    found = comparisons([Named(str(one), one.k, one.select) for one in wanted])
    assert [pair for pair in found if pair.condition == "K = 1, top"] == [
        ("K = 1, top", "K = 0", "plain"),
        *(("K = 1, top", f"K = 1, {kind}", kind) for kind in ("random", "partner", "mass")),
    ]
    assert {pair.kind for pair in found if pair.condition == "K = 5%, first"} == {"plain", "random", "partner", "mass"}
    assert ("K = 1, top, ranked on clean maps", "K = 1, partner, ranked on clean maps", "partner") in found
    assert {pair.kind for pair in found if pair.condition in ("K = 1, bottom", "K = 1, mass")} == {"plain"}
    assert len(found) == len(set(found)) == 14 + 2 * 2 * 3 + 1


@pytest.mark.slow
def test_matched_controls_on_the_command_line(tmp_path: Path, capsys, monkeypatch) -> None:
    """All conditions in one program, K as a share, and the tables with their tests."""
    monkeypatch.setenv("JAXSINK_COMPILE_CACHE", "off")
    model, out = str(tmp_path / "model"), str(tmp_path / "out")
    jaxsink.save(random_model("mini-llada"), model)
    words = [model, "task", "--out", out, "--limit", "3", "--k", "0,1,10%", "--select", "top,partner,mass"]
    assert command(*words, "--json") == 0
    results = json.loads(capsys.readouterr().out)
    assert [line["condition"] for line in results["conditions"]][1:4] == [
        f"K = 10%, {s}" for s in ("top", "partner", "mass")
    ]
    assert [line["k"] for line in results["conditions"]] == [0, 0.1, 0.1, 0.1, 1, 1, 1]
    assert {test["kind"] for test in results["tests"]} == {"plain", "partner", "mass"}
    assert command(*words, "--summary") == 0 and "p: mass" in capsys.readouterr().out
    table = (tmp_path / "out" / "tables.md").read_text()
    assert "| 10% | partner |" in table and "p_partner_holm" in table


def test_policies_without_an_effect_are_refused_before_weights_are_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("JAXSINK_COMPILE_CACHE", "off")
    words = ["task", "--out", str(tmp_path / "out"), "--limit", "2", "--k", "0,1"]
    for model, more, message in (
        ("mini-llama", ["--rule", "threshold"], "whose attention sums to 1"),
        ("mini-llada", ["--mask-rows", "newest"], "none is the newest"),
        ("mini-llada", ["--k", "1,500"], "queries without any key ignore the mask"),
        ("mini-llada", ["--select", "first", "--rule", "top_k_above"], "without rule or positions"),
    ):
        with pytest.raises(JaxsinkError, match=message):
            command(model, *words, *more)
    assert not (tmp_path / "out").exists()


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["evaluate", *words])
    return args.run(args)


@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("JAXSINK_COMPILE_CACHE", "off")
    model, out = str(tmp_path / "model"), str(tmp_path / "out")
    jaxsink.save(random_model("mini-llada"), model)
    words = [model, "task", "--out", out, "--subset", "3", "--k", "0,1", "--select", "top,random"]
    assert command(*words, "--json", "--devices", "2") == 0
    output = capsys.readouterr()
    results = json.loads(output.out)
    assert results["finished"] == 3 and len(results["conditions"]) == 3 and "questions" in output.err
    assert results["throughput"]["tokens_per_second"] > 0
    assert command(*words, "--summary") == 0
    printed = capsys.readouterr().out
    assert "K = 1, random" in printed and "questions/s" in printed and "3 of 3 questions" in printed
    assert without_speed(json.loads((tmp_path / "out" / "results.json").read_text())) == without_speed(results)
    assert {file.name for file in (tmp_path / "out").glob("table*")} == {
        "table1.csv",
        "table2.csv",
        "tables.json",
        "tables.md",
    }
    with pytest.raises(JaxsinkError, match="seed is 0, not 1"):
        command(*words, "--seed", "1")
    with pytest.raises(JaxsinkError, match=r"eps is 3\.0, not 0\.5"):
        command(*words, "--eps", "0.5")
    with pytest.raises(JaxsinkError, match=r"model (fingerprint differs|dtype is float32, not bfloat16)"):
        command(*words, "--dtype", "bfloat16")
    for wrong in ("-1", "inf", "nan", "x"):
        with pytest.raises(SystemExit):
            command(*words, "--eps", wrong)


def test_the_function_is_the_command(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("JAXSINK_COMPILE_CACHE", "off")
    model, said = str(tmp_path / "model"), []
    jaxsink.save(random_model("mini-llada"), model)
    mine = jaxsink.evaluate(model, "task", tmp_path / "mine", limit=2, k=(0, 1), select=("top",), say=said.append)
    assert (
        command(
            model, "task", "--out", str(tmp_path / "theirs"), "--limit", "2", "--k", "0,1", "--select", "top", "--json"
        )
        == 0
    )
    assert without_speed(json.loads(capsys.readouterr().out)) == without_speed(mine) and len(said) == 1
    names = {field.name for field in fields(Options)}
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = vars(parser.parse_args(["evaluate", "m", "task", "--out", "o"]))
    cli_only = {"model", "setting", "out", "run", "no_sinks", "summary", "json"}
    assert {"ignore_settings" if name == "ignore_setting" else name for name in args} - cli_only == names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task", "--shard", "5/4"], "--shard takes"),
        (["task", "--k", "1,x"], "--k takes whole numbers"),
        (["task", "--k", "1,100%"], "--k takes whole numbers, or shares"),
        (["task", "--select", "best"], "cannot be selected by 'best'"),
        (["nonsense"], "unknown evaluation setting 'nonsense'"),
        (["smollm2-135m-instruct/humaneval/small"], "--allow-code-execution"),
        (["task", "--mesh", "two"], "a mesh is two numbers"),
        (["task", "--summary"], "holds no evaluation"),
    ],
)
def test_the_command_refuses_in_one_sentence(words: list[str], message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("JAXSINK_COMPILE_CACHE", "off")
    with pytest.raises(JaxsinkError) as caught:
        command("mini-llama", *words, "--out", str(tmp_path / "out"))
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_task_needs_a_model_that_knows_its_words() -> None:
    config = random_model("mini-llada").config
    with pytest.raises(JaxsinkError, match="does not know the words of the built-in task"):
        task_exam(config.replace(vocab=1000), [0])
