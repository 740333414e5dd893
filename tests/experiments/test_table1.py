"""Table 1 beside the paper's: its figures as data, the tests against them, several runs in one table."""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from jaxsink_experiments import table1 as experiment
from jaxsink_experiments import table1_masking, table2_tokens
from scipy.stats import fisher_exact
from support.paths import ROOT

from jaxsink.cli.main import build_parser
from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import conditions
from jaxsink.evals.paper import COUNTS, QUESTIONS, TABLE1, TABLE2, Published, published
from jaxsink.evals.results import KIND
from jaxsink.evals.settings import SETTINGS
from jaxsink.evals.statistics import holm, mcnemar
from jaxsink.evals.summary import read_summary, summarise
from jaxsink.evals.tables import compact, table1, table2, write_tables
from jaxsink.runs.lines import encoded
from jaxsink.runs.run import about
from jaxsink.study.experiments import experiment_of

STUDY = (ROOT / "docs" / "study.md").read_text(encoding="utf-8")
CONDITIONS = {str(one): one for one in conditions((0, 1), ("top", "random", "bottom"))}
LABELS = tuple(CONDITIONS)
CODE, MATHS = "llada-8b-instruct/humaneval/study", "llama-3.1-8b-instruct/gsm8k/study"
SINKS = {"maps": 10, "total": 6, "first": 2, "layers": [6], "tokens": {"7": 4, "3": 2}, "places": {"7": 5, "3": 15}}


def made_run(folder: Path, name: str, right: dict[str, range], total: int, asked: int | None = None) -> dict[str, Any]:
    """A directory as `jaxsink evaluate` leaves it: the questions that each condition solves are given."""
    folder.mkdir(parents=True)
    setting = SETTINGS[name]
    manifest = {
        "exam": {
            "name": name,
            "setting": setting.to_dict(),
            "benchmark": setting.benchmark,
            "questions": asked or total,
        },
        "model": {"family": "llada"},
        "conditions": {name: CONDITIONS[name].to_dict() for name in right},
        "eps": 3.0,
        "seed": 0,
        "reported": setting.reported,
        **about(KIND),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    lines = [
        {"index": n, "condition": label, "correct": n in solved, "sinks": SINKS}
        for n in range(total)
        for label, solved in right.items()
    ]
    (folder / "results-0001.jsonl").write_bytes(b"".join(map(encoded, lines)))
    return summarise(folder, lambda token: f"token {token}")


def solved(*counts: int) -> dict[str, range]:
    return {label: range(count) for label, count in zip(LABELS, counts, strict=True)}


def test_every_column_of_the_paper_has_a_setting_and_every_study_setting_a_column() -> None:
    assert set(TABLE1) == {name for name in SETTINGS if name.endswith("/study")}
    for name, figures in TABLE1.items():
        assert SETTINGS[name].reported == figures[0] and len(figures) == len(COUNTS)
    assert all(any(name.startswith(model) for name in TABLE1) for model in TABLE2)


def test_the_docs_quote_the_papers_figures() -> None:
    columns = [f"{model}/gsm8k/study" for model in ("llada-8b-instruct", "dream-7b-instruct", "llama-3.1-8b-instruct")]
    for place, k in enumerate(COUNTS):
        (line,) = re.findall(rf"^\| {k} \|(.*)\|$", STUDY, re.MULTILINE)
        assert [int(cell) for cell in line.split("|")[:3]] == [TABLE1[name][place] for name in columns]


def test_the_study_quotes_the_papers_figures() -> None:
    results = ROOT / "experiments" / "results"
    for declared in map(experiment_of, (table1_masking, table2_tokens)):
        assert json.loads((results / f"{declared.name}.json").read_text())["paper"] == declared.paper


def test_the_nearest_count_that_rounds_to_the_printed_figure() -> None:
    code = Published(37, 164, 1.0)  # 60 and 61 of 164 are 36.6 and 37.2 per cent
    assert [code.count_near(share / 164) for share in (0, 59, 60, 61, 62, 164)] == [60, 60, 60, 61, 61, 61]
    assert Published(0, 164, 1.0).count_near(0.5) == 0 and Published(100, 164, 1.0).count_near(1.0) == 164
    assert Published(85, 1319, 1.0).count_near(0.0) == 1115  # 84.53 %; 1114 are 84.46 %
    assert Published(33.3, 10, 0.1).count_near(0.9) == 3  # no count gives this: the nearest there is


@pytest.mark.parametrize(("right", "total"), [(60, 164), (75, 164), (20, 100), (164, 164), (0, 40)])
def test_p_against_the_paper_is_fishers(right: int, total: int) -> None:
    paper = published(CODE, 0)
    assert paper == Published(37, QUESTIONS["humaneval"], 1.0)
    count = 60 if right / total < 0.37 else 61
    expected = fisher_exact([[right, total - right], [count, 164 - count]]).pvalue
    assert paper.p(right, total) == pytest.approx(expected, rel=1e-9)
    assert (paper.p(right, total) == 1) == (right == 60)


def test_what_is_published() -> None:
    assert [published(MATHS, k).percent for k in COUNTS] == [85, 2, 2, 1]  # type: ignore[union-attr]
    assert published(MATHS, 3) is None and published("task", 0) is None and published("smollm2/gsm8k/small", 0) is None
    assert published("llada-8b-instruct/gsm8k/block-8", 0, 78.6) == Published(78.6, 1319, 0.1)
    assert published("llada-8b-instruct/gsm8k/block-8", 1, 78.6) is None


def test_a_run_is_tested_against_the_paper_itself_and_random_keys(tmp_path: Path) -> None:
    results = made_run(tmp_path / "code", CODE, solved(61, 40, 61, 58), 164)
    rows = {row["condition"]: row for row in table1([results])}
    assert [rows[label]["paper"] for label in LABELS] == [37, 37, None, None]
    assert rows["K = 0"]["p_paper"] == 1
    assert rows["K = 1, top"]["p_paper"] == published(CODE, 1).p(40, 164) < 0.05  # type: ignore[union-attr]
    assert rows["K = 1, random"]["p_paper"] is None
    against = mcnemar([True] * 40 + [False] * 21, [True] * 61).p
    assert rows["K = 1, top"]["p_plain"] == rows["K = 1, top"]["p_random"] == against
    assert (rows["K = 1, top"]["lost"], rows["K = 1, top"]["gained"]) == (21, 0)
    assert rows["K = 0"]["p_plain"] is None and rows["K = 1, bottom"]["p_random"] is None
    plain = [rows[label]["p_plain"] for label in LABELS[1:]]
    assert [rows[label]["p_plain_holm"] for label in LABELS[1:]] == holm(plain) == [3 * against, 1.0, 0.5]


def test_an_incomplete_run_is_not_tested_against_the_paper(tmp_path: Path) -> None:
    results = made_run(tmp_path / "code", CODE, solved(61, 40, 61, 58), 163, asked=164)
    assert [line["reported"] for line in results["conditions"]] == [37, 37, None, None]
    assert {line["p_reported"] for line in results["conditions"]} == {None}


def test_several_runs_in_one_table(tmp_path: Path) -> None:
    code = made_run(tmp_path / "code", CODE, solved(61, 40, 61, 20), 164)
    maths = made_run(tmp_path / "maths", MATHS, solved(1121, 900, 1121, 1118), 1319)
    rows = table1([code, maths])
    tested = [row for row in rows if row["p_paper"] is not None]
    assert [row["p_paper_holm"] for row in tested] == holm([row["p_paper"] for row in tested])
    assert len({row["p_random_holm"] for row in rows} - {None}) == 2
    heading, lines = compact(rows)
    assert heading == ["data", "K", "masked", "LLaDA-8B-Instruct", "Llama-3.1-8B-Instruct"]
    assert lines[0] == ["gsm8k", "0", "", "", "85.0 (85)"] and lines[1] == ["gsm8k", "1", "top", "", "68.2† (2*)"]
    assert lines[4] == ["humaneval", "0", "", "37.2 (37)", ""]
    assert [line[2:4] for line in lines[6:]] == [["random", "37.2"], ["bottom", "12.2†"]]


def test_table_2_has_base_rates_and_the_papers_tokens(tmp_path: Path) -> None:
    rows = table2([made_run(tmp_path / "code", CODE, solved(61, 40, 61, 58), 164)])
    assert len(rows) == 5
    first, second, third = rows[:3]
    assert (first["token"], first["paper_token"], first["paper_share"]) == ("token 7", "newline", 0.368)
    assert (first["share"], first["base"]) == pytest.approx((4 / 6, 5 / 20))
    assert first["lift"] == pytest.approx(8 / 3) and second["token"] == "token 3"
    assert third["token"] is None and third["paper_token"] == "."


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    experiment.add_parser(parser.add_subparsers())
    args = parser.parse_args(["table1", *words])
    return args.run(args)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_run(tmp_path / "code", CODE, solved(61, 40, 61, 58), 164)
    made_run(tmp_path / "maths", MATHS, solved(11, 9, 11, 11), 13, asked=1319)
    out = tmp_path / "tables"
    assert command(str(tmp_path / "code"), str(tmp_path / "maths"), "--out", str(out)) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "37.2 (37)" in printed and "13 of 1319 questions" in printed
    written = json.loads((out / "tables.json").read_text())
    assert len(written["table1"]) == 8 and written["table2"][0]["token"] == "token 7"
    with (out / "table1.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["condition"] for line in lines] == [row["condition"] for row in written["table1"]]
    assert float(lines[1]["p_paper"]) == written["table1"][1]["p_paper"]
    assert (out / "table2.csv").read_text().startswith("model,benchmark,rank,token,share,base,lift,paper_token")
    markdown = (out / "tables.md").read_text()
    assert "| humaneval | 0 |  | 37.2 (37) |" in markdown and "McNemar" in markdown and "token 7" in markdown
    assert command(str(tmp_path / "code"), "--json") == 0
    assert json.loads(capsys.readouterr().out)["table1"][0]["paper"] == 37


def test_without_sinks_there_is_no_table_2(tmp_path: Path) -> None:
    results = made_run(tmp_path / "code", CODE, solved(61, 40, 61, 58), 164) | {"sinks": {}}
    write_tables(tmp_path, [results])
    assert table2([results]) == [] and (tmp_path / "table2.csv").read_text() == ""
    assert "Table 2" not in (tmp_path / "tables.md").read_text()


def test_the_command_shows_the_paper_and_commands_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert command() == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == [MATHS, "85", "2", "2", "1"] for line in lines)
    shown = [shlex.split(line)[1:] for line in lines if line.startswith("  jaxsink")]
    assert len(shown) == 9
    for words in shown:
        args = build_parser().parse_args(words)
        if words[0] == "evaluate":
            assert args.setting in SETTINGS and args.allow_code_execution == ("humaneval" in args.setting)
    assert command("--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 8


def test_answers_that_came_after_the_summary_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    with pytest.raises(JaxsinkError, match="holds no evaluation"):
        read_summary(folder)
    results = made_run(folder, CODE, solved(6, 4, 6, 5), 10, asked=11)
    assert read_summary(folder) == json.loads(json.dumps(results))
    more = [{"index": 10, "condition": x, "correct": True, "sinks": SINKS} for x in LABELS]
    (folder / "results-0002.jsonl").write_bytes(b"".join(map(encoded, more)))
    with pytest.raises(JaxsinkError, match="not summed up; do so with `jaxsink evaluate MODEL llada-8b"):
        read_summary(folder)
    (folder / "results.json").write_text("{}")
    with pytest.raises(JaxsinkError, match="not summed up"):
        read_summary(folder)
