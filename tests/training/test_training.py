"""Training runs: optimizer, start values, devices, adaptation, resuming, and the command."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.paths import GOLDEN
from support.training import TINY, tiny_run

import jaxsink
from jaxsink.cli.main import main
from jaxsink.errors import JaxsinkError
from jaxsink.nn.parameters import named_leaves
from jaxsink.tasks.batches import training_batch
from jaxsink.tasks.word_tasks import SUMS
from jaxsink.training import examples, step
from jaxsink.training.optimizer import MUON, is_matrix, make_optimizer, schedule
from jaxsink.training.run import Progress, Training
from jaxsink.training.settings import Settings
from jaxsink.training.start import small_model
from jaxsink.training.states import save_state
from jaxsink.training.train import watching
from jaxsink.zoo import builtin

LENGTH, PROMPT = SUMS.length, SUMS.prompt

pytestmark = pytest.mark.usefixtures("quick_compilation")


def one_device():
    return step.data_mesh(jax.devices()[:1])


@pytest.fixture(scope="module")
def arm(tmp_path_factory) -> Training:
    """A trained autoregressive model."""
    run = tiny_run(tmp_path_factory.mktemp("runs") / "arm")
    run.train(one_device())
    return run


@pytest.mark.slow
def test_an_adaptation_begins_as_the_autoregressive_model(arm, tmp_path):
    adapted = tiny_run(tmp_path / "dlm", "mini-dream", init=str(arm.out / "model"))
    model, given = adapted.first_model(), jaxsink.load(arm.out / "model", "float32")
    assert model.config == TINY["mini-dream"].config and model.config.shift_logits
    tokens, real = map(jnp.asarray, training_batch(0, 2, 0))
    causal = examples.opened_mask(jax.random.key(0), LENGTH, 0.0)
    shown = examples.causal_example(model.config, tokens, real, (PROMPT, PROMPT))
    ours = jax.jit(examples.predictions)(model, shown, causal)
    theirs = jaxsink.forward(given, tokens, real).logits[:, PROMPT - 1 : LENGTH - 1]
    np.testing.assert_allclose(ours, theirs, atol=2e-5)

    def loss(at: int, opening: bool) -> float:
        batch = step.Batch(tokens, real)
        return float(step.gradient_of(adapted.lesson, model, None, batch, jnp.int32(at), opening)[0])

    opening, opened = [loss(0, True), loss(2, True)], loss(2, False)
    assert adapted.recipe.settings.opening_steps == 2 and opening[1] == pytest.approx(opened, rel=1e-6) != opening[0]
    with pytest.raises(JaxsinkError, match="has not the shape of mini-dream"):
        tiny_run(tmp_path / "other", "mini-dream", init=str(GOLDEN / "llada_tiny")).first_model()


def test_schedule_and_decay():
    rate = schedule(Settings("causal", steps=100, learning_rate=1.0, warmup=10))
    values = [float(rate(n)) for n in range(101)]
    assert np.argmax(values) == 10 and values[10] == pytest.approx(1.0)
    assert [values[n] for n in (0, 55, 100)] == pytest.approx([1 / 11, 0.505, 0.01])
    names = [name for name, _ in named_leaves(jaxsink.abstract(TINY["mini-llama"].config))[0]]
    assert {name for name in names if is_matrix(name)} == {
        *(f"layers.attention.{part}.weight" for part in "qkvo"),
        *(f"layers.mlp.{part}.weight" for part in ("gate", "up", "down")),
    }
    unrolled = named_leaves(jaxsink.init(TINY["mini-llama"].config).unrolled())[0]
    assert sum(is_matrix(name) for name, _ in unrolled) == 2 * 7


def test_muon_turns_matrices_and_adam_moves_the_rest():
    """The first update of a matrix is orthogonal times the rate, plus its decay; everything else gets Adam's sign."""
    settings = Settings("causal", steps=100, learning_rate=1e-3, warmup=0, decay=0.5, clip=1e9)
    model = jaxsink.init(TINY["mini-llama"].config, seed=1).unrolled()
    optimizer = make_optimizer(settings)
    draw = np.random.default_rng(0)
    gradient = jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape), jnp.float32), model)
    update, _ = jax.jit(optimizer.update)(gradient, optimizer.init(model), model)
    for (name, before), (_, grad), (_, moved) in zip(
        *(named_leaves(x)[0] for x in (model, gradient, update)), strict=True
    ):
        if not is_matrix(name):
            nesterov = 1.47368  # (b1 (1 - b1) / (1 - b1^2) + 1) for b1 = 0.9
            np.testing.assert_allclose(moved, -1e-3 * nesterov * np.sign(grad), rtol=1e-3, err_msg=name)
            continue
        turned = np.asarray(moved) / -(MUON * 1e-3) - 0.5 * np.asarray(before)
        sizes = np.linalg.svd(turned, compute_uv=False) / max(1, turned.shape[0] / turned.shape[1]) ** 0.5
        assert sizes.min() > 0.3 and np.median(sizes) > 0.6 and sizes.max() < 1.3, name


def test_narrow_models_start_with_signals_of_one_size():
    config = TINY["mini-llada"].config.replace(width=64, mlp_width=256)
    model = small_model(config, seed=0)
    wanted = {
        "attention.q": 64**-0.5,
        "attention.o": (16 * 4) ** -0.5,
        "mlp.down": (256 * 4) ** -0.5,
        "mlp.up": 64**-0.5,
    }
    spread = {name: float(leaf.std()) for name, leaf in named_leaves(model)[0]}
    assert spread["embedding"] == pytest.approx(0.5, rel=0.05) and spread["head.weight"] == pytest.approx(
        0.02, rel=0.05
    )
    for name, value in wanted.items():
        assert spread[f"layers.{name}.weight"] == pytest.approx(value, rel=0.05)
    assert spread["layers.attention_norm.weight"] == 0 and float(model.norm.weight[...].mean()) == 1


def test_milestones_are_dense_at_first_and_end_with_the_run():
    assert Settings("causal", steps=1000, checkpoints=5).milestones() == (62, 125, 250, 500, 750, 1000)
    assert Settings("causal", steps=2, checkpoints=12).milestones() == (1, 2)


@pytest.mark.slow
def test_devices_share_the_batch_and_agree(tmp_path):
    alone = tiny_run(tmp_path / "1", "mini-llada", steps=4).train(one_device())
    shared = tiny_run(tmp_path / "8", "mini-llada", steps=4).train(step.data_mesh(jax.devices()[:8]))
    for one, eight in zip(jax.tree.leaves(alone), jax.tree.leaves(shared), strict=True):
        np.testing.assert_allclose(one, eight, atol=2e-4)


@pytest.mark.slow
def test_bfloat16_arithmetic_keeps_float32_weights(tmp_path):
    model = tiny_run(tmp_path, "mini-llada", dtype="bfloat16", steps=3).train(one_device())
    assert {leaf.dtype.name for leaf in jax.tree.leaves(model)} == {"float32"}


@pytest.mark.slow
def test_the_loss_falls(tmp_path):
    tiny_run(tmp_path, steps=60, batch=16, learning_rate=1e-2).train(one_device())
    with open(tmp_path / "loss.csv") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [10, 20, 30, 40, 50, 60]
    assert float(rows[-1]["loss"]) < 0.7 * float(rows[0]["loss"])


def test_a_model_may_be_tuned_and_get_an_extra_sink(arm, tmp_path):
    given = dict(named_leaves(jaxsink.load(arm.out / "model", "float32"))[0])
    recipe = tiny_run(tmp_path, init=str(arm.out / "model")).recipe
    tuned = Training(replace(recipe, config=recipe.config.replace(extra_sink=True)), tmp_path)
    leaves = dict(named_leaves(tuned.first_model())[0])
    assert np.abs(np.asarray(leaves.pop("extra_sink"))).max() > 0.1 and leaves.keys() == given.keys()
    assert all((leaves[name] == given[name]).all() for name in given)


def test_a_directory_holds_one_run(arm, tmp_path):
    with pytest.raises(JaxsinkError, match="another training: settings seed is 0, not 1"):
        tiny_run(arm.out, seed=1).train(one_device())
    with pytest.raises(JaxsinkError, match="another training: name is mini-llama, not mini-llada"):
        tiny_run(arm.out, "mini-llada").train(one_device())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note").write_text("x")
    with pytest.raises(JaxsinkError, match="holds note and no manifest"):
        tiny_run(tmp_path / "mine").train(one_device())
    shutil.copytree(arm.out, tmp_path / "run")
    for path in (tmp_path / "run" / "states" / "00000012" / "arrays").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    with pytest.raises(JaxsinkError, match="is damaged"):
        tiny_run(tmp_path / "run").train(one_device())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be a positive whole number"),
        ({"learning_rate": 0.0}, "learning_rate must be a finite number above 0"),
        ({"warmup": -1}, "warmup must be a whole number of 0 or more"),
        ({"opening": 2.0}, "from 0 to 1"),
        ({"batch": 9}, "shared evenly by 8 devices"),
        ({"objective": "adaptation"}, "starts from an autoregressive model"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(JaxsinkError, match=message):
        replace(Settings("causal", steps=10), **settings).check(devices=8)


@pytest.mark.slow
def test_the_command_trains_examines_and_continues(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(builtin, "BUILTIN", TINY)
    command = [
        "train",
        "mini-llada",
        "--out",
        str(tmp_path / "run"),
        "--steps",
        "4",
        "--batch",
        "8",
        "--devices",
        "2",
        "--problems",
        "3",
    ]
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["steps"] == 4 and result["accuracy"]["total"] == 3 and result["tokens"] == 4 * 8 * LENGTH
    assert result == json.loads((tmp_path / "run" / "result.json").read_text())
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "\njaxsink train mini-llada --out runs/mini-llada --steps 4 --batch 8\n" in card and "| 4 | " in card
    looks = [line.split(",")[0] for line in (tmp_path / "run" / "sinks.csv").read_text().splitlines()]
    assert looks == ["step", "0", "1", "2", "3", "4"] and [look["step"] for look in result["sinks"]] == [0, 1, 2, 3, 4]
    assert jaxsink.load(tmp_path / "run" / "model").config == TINY["mini-llada"].config
    assert jaxsink.Tokenizer.load(tmp_path / "run" / "model").special["mask"] == TINY["mini-llada"].config.mask_id
    assert main(command) == 0
    assert "of 3 held-out problems" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("out", ["runs", "runs/not/yet/there", "~/runs/mine"])
def test_the_place_of_a_run_may_be_written_in_any_way(tmp_path, monkeypatch, capsys, out):
    monkeypatch.setattr(builtin, "BUILTIN", TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    command = ["train", "mini-llama", "--out", out, "--steps", "2", "--batch", "8", "--problems", "1", "--json"]
    assert main(command) == 0, capsys.readouterr().err
    result = json.loads(capsys.readouterr().out)
    place = tmp_path / out.replace("~", "home")
    assert json.loads((place / "result.json").read_text()) == result
    assert (place / "states" / "00000002" / "arrays").is_dir()
    assert main(command) == 0 and json.loads(capsys.readouterr().out) == result  # found again, at its last step


@pytest.mark.slow
def test_a_listener_hears_of_compiling_before_there_are_figures(tmp_path):
    heard: list[Progress] = []
    tiny_run(tmp_path / "llama").train(one_device(), heard.append)
    assert [(now.step, now.compiling, now.loss is None) for now in heard] == [
        (0, True, True),
        (0, False, True),
        (10, False, False),
        (12, False, False),
    ]
    heard.clear()
    run = tiny_run(tmp_path / "dream", "mini-dream", init=str(tmp_path / "llama/model"), opening=0.9)
    run.train(one_device(), heard.append)
    assert run.recipe.settings.opening_steps == 10  # then another program goes on
    assert [(now.step, now.compiling) for now in heard] == [
        (0, True),
        (0, False),
        (10, False),
        (10, True),
        (10, False),
        (12, False),
    ]


def test_the_line_of_a_run_says_compiling_and_never_nan():
    said = []
    show = watching(SimpleNamespace(update=lambda done, detail: said.append((done, detail))))  # type: ignore[arg-type]
    for now in (Progress(0, 9, compiling=True), Progress(0, 9), Progress(5, 9, 2.5, 12345.6, 98.7)):
        show(now)
    assert said == [(0, "compiling"), (0, ""), (5, "loss 2.5000, 12,346 tokens/s, 99 GFLOP/s")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mini-bert"], "only mini-llama, mini-llada, mini-dream bring data of their own"),
        (["mini-dream", "--init", "nowhere"], "no checkpoint at nowhere"),
        (["mini-llama", "--steps", "0"], "steps must be a positive whole number"),
        (["mini-llama", "--problems", "0"], "problems must be a positive whole number"),
        (["mini-llama", "--devices", "99"], "99 devices are asked for, and there are 8"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, arguments, message):
    assert main(["train", *arguments, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_intervals():
    from jaxsink.training.evaluate import Accuracy

    low, high = Accuracy(95, 100).interval
    assert low == pytest.approx(0.8882, abs=1e-3) and high == pytest.approx(0.9785, abs=1e-3)
    assert Accuracy(10, 10).interval[1] == pytest.approx(1.0)


@pytest.mark.parametrize("steps", [12, 4])
def test_a_loss_that_is_no_number_ends_the_run(steps, tmp_path):
    """Nothing of it is kept: neither the models of milestones, nor the state, nor the curve."""
    run = tiny_run(tmp_path / "run", learning_rate=1e38, warmup=0, steps=steps)
    with pytest.raises(JaxsinkError, match=r"the loss was .*Lower the learning rate|NaN or infinite"):
        run.train(one_device())
    for model in (tmp_path / "run" / "checkpoints").glob("*"):
        jaxsink.load(model)  # of a step that was sound
    assert not list((tmp_path / "run" / "states").glob("*")) and not (tmp_path / "run" / "model").exists()


def test_a_state_that_is_no_number_is_not_saved(tmp_path):
    run = tiny_run(tmp_path / "run")
    state, _, passed = run.begin(one_device())
    wrong = state._replace(trained=jax.tree.map(lambda x: x.at[(0,) * x.ndim].set(jnp.inf), state.trained))
    with pytest.raises(JaxsinkError, match="NaN or infinite, so its state is not saved"):
        save_state(tmp_path / "states", wrong, passed)
    assert not list((tmp_path / "states").glob("*"))
