"""The shipped models: found by name, of one size, small enough, and as good as their cards say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from support.paths import ROOT

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
from jaxsink.training.recipe import builtin_recipe
from jaxsink.training.run import held_out_loss
from jaxsink.zoo.builtin import BUILTIN, builtin
from jaxsink.zoo.resolve import NAMES, SHIPPED, TEXT_NAMES, WEIGHTS, resolve

RESULTS = ROOT / "experiments" / "results" / "testbeds"
FLOOR = {"mini-llama": 0.95, "mini-llada": 0.95, "mini-dream": 0.85}  # on 40 problems; the cards have the figures


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_solves_held_out_problems(name):
    model = jaxsink.load(name, "float32")
    found = accuracy(model, builtin(name).sampler, total=40, seed=7)
    assert found.share >= FLOOR[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_writes_the_steps_of_the_answer(name):
    model, asked, results = jaxsink.load(name, "float32"), problems("test", 8, seed=11), []
    ask_all(Evaluation(model, task_exam(model.config, range(8), builtin(name).sampler, 11), (PLAIN,)), results.extend)
    texts = {result["index"]: result["text"] for result in results}
    right = [texts[number] == problem.answer for number, problem in enumerate(asked)]
    assert sum(right) >= int(8 * FLOOR[name])


@pytest.mark.parametrize("name", NAMES)
def test_it_is_computed_with_in_float32_unless_another_type_is_asked_for(name):
    """Its weights are stored as bfloat16, whose texts depend on the batch and the devices."""
    kinds = [{leaf.dtype.name for leaf in jax.tree.leaves(jaxsink.load(name, *dtype))} for dtype in ((), ("bfloat16",))]
    assert Reader(resolve(name)).dtype == "bfloat16" and kinds == [{"float32"}, {"bfloat16"}]
    assert {leaf.dtype.name for leaf in jax.tree.leaves(jaxsink.load(resolve(name)))} == {"float32"}


@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_the_table_says(name):
    model = jaxsink.load(name)
    assert model.config == BUILTIN[name].config
    assert check_special_ids(jaxsink.Tokenizer.load(resolve(name)), model.config) == []
    BUILTIN[name].sampler.check(model.config)


def test_the_three_have_one_size_and_fit_the_package():
    shapes = [[leaf.shape for leaf in jax.tree.leaves(jaxsink.abstract(BUILTIN[name].config))] for name in NAMES]
    assert shapes[0] == shapes[1] == shapes[2] and tuple(BUILTIN) == NAMES
    files = [path for path in WEIGHTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 12e6


def test_the_package_stays_under_15_megabytes():
    files = [path for path in Path(jaxsink.__file__).parent.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    code = [path for name in ("converters", "experiments") for path in (ROOT / name).rglob("*.py")]
    assert sum(path.stat().st_size for path in (*files, *code)) < 15e6


def test_every_checkpoint_that_is_shipped_has_a_name():
    assert sorted(path.name for path in WEIGHTS.iterdir()) == sorted(SHIPPED)


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_a_model_of_a_text_is_the_one_of_the_results(name):
    """Its card has data, seed, steps, curve, loss and command; the loss is that of the first seed in docs/testbeds.md."""
    card = (resolve(name) / "README.md").read_text(encoding="utf-8")
    result = json.loads((RESULTS / f"{name}-0" / "result.json").read_text(encoding="utf-8"))
    assert f"**Loss on held-out data**: {result['validation_loss']:.4f} nats per token" in card
    assert f"{result['steps']:,} steps" in card and f"--out runs/{name} --data input.txt" in card and "--seed 0" in card
    assert all(f"| {step:,} | {loss:.4g} |" in card for step, loss in result["loss"])


@pytest.mark.parametrize("name", TEXT_NAMES)
def test_a_model_of_a_text_writes_its_letters(name):
    model = jaxsink.load(name)
    assert model.dtype == "float32" and model.config.is_diffusion == (name != "shakespeare-arm")
    text = jaxsink.generate(model, "ROMEO:\n", jaxsink.sampler_for(model).with_length(24)).text
    assert len(text) > 8 and sum(letter.isalpha() or letter in " \n,.;:!?'-" for letter in text) == len(text)
    if name == "shakespeare-arm":
        tokens = [model.tokenizer.encode("First Citizen:\nBefore we proceed any further, hear me speak.")]
        logits = np.asarray(jaxsink.forward(model, tokens).logits)[0]
        chosen = jax.nn.log_softmax(logits[:-1])[np.arange(len(tokens[0]) - 1), tokens[0][1:]]
        assert -np.mean(chosen) < 2.5  # uniform: 4.2


@pytest.mark.parametrize("name", NAMES)
def test_the_card_gives_command_and_accuracy(name):
    card = (resolve(name) / "README.md").read_text(encoding="utf-8")
    assert f"jaxsink train {name} --out" in card and re.search(r"95 % interval \d", card)
    settings = Reader(resolve(name)).source["settings"]
    assert f"{settings['steps']:,} steps" in card and settings["objective"] == BUILTIN[name].settings.objective
    assert "**Data**" in card and f"seed {settings['seed']}." in card
    curve = re.findall(r"^\| ([\d,]+) \| ([\d.e-]+) \|$", card, re.M)
    assert int(curve[-1][0].replace(",", "")) == settings["steps"] and float(curve[-1][1]) < float(curve[0][1])


@pytest.mark.parametrize("name", NAMES)
def test_the_card_gives_the_loss_of_the_shipped_weights_on_held_out_problems(name):
    (said,) = re.findall(r"\*\*Loss on held-out data\*\*: (\S+) nats", (resolve(name) / "README.md").read_text("utf-8"))
    found = held_out_loss(builtin_recipe(name, {}), jaxsink.load(name, "float32").unrolled())
    assert found == pytest.approx(float(said), rel=1e-2, abs=2e-4)  # XLA's sums differ from machine to machine


def test_names_are_for_what_is_not_here(tmp_path, monkeypatch, capsys):
    assert main(["inspect", "mini-llada"]) == 0 and "llada (diffusion)" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini-llada").mkdir()
    assert resolve("mini-llada").resolve() == (tmp_path / "mini-llada").resolve()
    with pytest.raises(JaxsinkError, match="no built-in model 'mini-bert'"):
        builtin("mini-bert")
