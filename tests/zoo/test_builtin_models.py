"""The shipped models: found by name, of one size, small enough, and as good as their cards say."""

from __future__ import annotations

import re

import jax
import pytest

import jaxsink
from jaxsink.checkpoints.storage import Reader
from jaxsink.cli.main import main
from jaxsink.errors import JaxsinkError
from jaxsink.evals.conditions import PLAIN
from jaxsink.evals.engine import Evaluation, ask_all
from jaxsink.tasks.exam import task_exam
from jaxsink.tasks.task import problems
from jaxsink.text.tokenizer import check_special_ids
from jaxsink.training.evaluate import accuracy
from jaxsink.zoo.builtin import BUILTIN, builtin
from jaxsink.zoo.resolve import NAMES, resolve

FLOOR = {"mini-llama": 0.95, "mini-llada": 0.95, "mini-dream": 0.85}  # on 40 problems; the cards have the figures


@pytest.mark.parametrize("name", NAMES)
def test_it_solves_held_out_problems(name):
    model = jaxsink.load(name, "float32")
    found = accuracy(model, builtin(name).sampler, total=40, seed=7)
    assert found.share >= FLOOR[name]


@pytest.mark.parametrize("name", NAMES)
def test_it_writes_the_steps_of_the_answer(name):
    model, asked, results = jaxsink.load(name, "float32"), problems("test", 8, seed=11), []
    ask_all(Evaluation(model, task_exam(model.config, range(8), builtin(name).sampler, 11), (PLAIN,)), results.extend)
    texts = {result["index"]: result["text"] for result in results}
    right = [texts[number] == problem.answer for number, problem in enumerate(asked)]
    assert sum(right) >= int(8 * FLOOR[name])


@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_the_table_says(name):
    model = jaxsink.load(name)
    assert model.config == BUILTIN[name].config
    assert check_special_ids(jaxsink.Tokenizer.load(resolve(name)), model.config) == []
    BUILTIN[name].sampler.check(model.config)


def test_the_three_have_one_size_and_fit_the_package():
    shapes = [[leaf.shape for leaf in jax.tree.leaves(jaxsink.abstract(BUILTIN[name].config))] for name in NAMES]
    assert shapes[0] == shapes[1] == shapes[2] and tuple(BUILTIN) == NAMES
    files = [path for name in NAMES for path in resolve(name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 12e6


@pytest.mark.parametrize("name", NAMES)
def test_the_card_gives_command_and_accuracy(name):
    card = (resolve(name) / "README.md").read_text(encoding="utf-8")
    assert f"jaxsink train {name} --out" in card and re.search(r"95 % interval \d", card)
    settings = Reader(resolve(name)).source["settings"]
    assert f"{settings['steps']:,} steps" in card and settings["objective"] == BUILTIN[name].settings.objective


def test_names_are_for_what_is_not_here(tmp_path, monkeypatch, capsys):
    assert main(["inspect", "mini-llada"]) == 0 and "llada (diffusion)" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini-llada").mkdir()
    assert resolve("mini-llada").resolve() == (tmp_path / "mini-llada").resolve()
    with pytest.raises(JaxsinkError, match="no built-in model 'mini-bert'"):
        builtin("mini-bert")
