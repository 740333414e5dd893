"""Training of any model on text: recipes, adapters, accumulation, sinks along the way, resuming, the command."""

from __future__ import annotations

import csv
import json
import os
import struct
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.stand_ins import gguf_file

import jaxsink
from jaxsink.checkpoints.integrity import MANIFEST, file_checksums, sealed
from jaxsink.cli.main import main
from jaxsink.errors import JaxsinkError
from jaxsink.nn.parameters import named_leaves
from jaxsink.nn.transformer import Output
from jaxsink.runs.stopping import StoppedError
from jaxsink.tasks.batches import Batch
from jaxsink.text.tokenizer import Tokenizer
from jaxsink.training import step, watch
from jaxsink.training.data import DataSettings, text_data
from jaxsink.training.flops import flops_per_token
from jaxsink.training.lora import SCALE, make_adapters, merged
from jaxsink.training.recipe import described, fitted, text_recipe
from jaxsink.training.run import Training
from jaxsink.training.settings import Objective, Settings
from jaxsink.training.start import small_model
from jaxsink.training.watch import lost_without_first, of_attention, validation_loss

pytestmark = pytest.mark.usefixtures("quick_compilation")
TEXT = "To be, or not to be: that is the question.\nWhether 'tis nobler in the mind to suffer\n" * 60
OBJECTIVES: tuple[Objective, ...] = ("causal", "diffusion", "block_diffusion")


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "input.txt").write_text(TEXT)
    return tmp_path


def settings_of(**changes: object) -> dict[str, object]:
    return {"steps": 3, "batch": 4, "checkpoints": 1, "warmup": 1, **changes}


def recipe_of(objective: Objective = "causal", model: str = "1x16x2", **changes: object):
    data = DataSettings(("input.txt",), tokenizer="characters", length=16)
    return text_recipe(model, data, settings_of(objective=objective, **changes), False, 4)


def one_device():
    return step.data_mesh(jax.devices()[:1])


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_model_of_any_kind_writes_with_its_own_tokenizer(text: Path, objective: Objective) -> None:
    training = Training(recipe_of(objective), text / "run")
    training.train(one_device())
    result = training.examine(1, "the command")
    model = jaxsink.load(text / "run" / "model")
    config = model.config
    assert config.is_diffusion == (objective != "causal") and config.vocab == model.tokenizer.size
    assert config.eos_ids == (model.tokenizer.special["eos"],) and config.bos_id == model.tokenizer.special["bos"]
    sampler = jaxsink.sampler_for(model).with_length(8)
    assert jaxsink.generate(model, "To be", sampler).response.shape[1] in (8, 10)  # SDAR's fills up the last block
    card = (text / "run" / "model" / "README.md").read_text()
    assert np.isfinite(result["validation_loss"]) and "the command" in card
    assert f"on a CPU with {os.cpu_count()} cores" in card
    assert training.recipe.data.facts["tokens"] == round(0.9 * (len(TEXT) + 1))


@pytest.mark.slow
def test_a_checkpoint_is_adapted_and_an_unused_token_becomes_its_mask(text: Path) -> None:
    Training(recipe_of(), text / "arm").train(one_device())
    model = text / "arm" / "model"
    path = model / "tokenizer_config.json"
    names = {key: value for key, value in json.loads(path.read_text()).items() if key != "mask_token"}
    path.write_text(json.dumps(names))
    (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text().replace("<|mask|>", "<|spare|>"))
    manifest = json.loads((model / MANIFEST).read_text())
    manifest["checksums"]["files"] = file_checksums(model, manifest["checksums"]["files"])
    (model / MANIFEST).write_text(json.dumps(sealed(manifest)))
    data = DataSettings(("input.txt",), length=16)
    recipe = text_recipe("arm/model", data, settings_of(objective="adaptation", opening=0.5), False, 4)
    config = recipe.config
    spare = recipe.data.tokenizer.backend.token_to_id("<|spare|>")
    assert (config.attention, config.shift_logits, config.mask_id) == ("bidirectional", True, spare)
    assert recipe.settings.init == "arm/model" and recipe.settings.optimizer == "adamw"
    Training(recipe, text / "dlm").train(one_device())
    adapted = jaxsink.load(text / "dlm" / "model")
    assert adapted.config.mask_id == spare == adapted.tokenizer.special["mask"]
    assert jaxsink.generate(adapted, "To be", jaxsink.sampler_for(adapted).with_length(4)).response.shape == (1, 4)


def test_init_random_trains_a_checkpoint_from_scratch(text: Path) -> None:
    Training(recipe_of(), text / "arm").train(one_device())
    fresh = text_recipe("arm/model", DataSettings(("input.txt",), length=16), settings_of(init="random"), False, 4)
    given = dict(named_leaves(jaxsink.load(text / "arm" / "model", "float32"))[0])
    leaves = named_leaves(Training(fresh, text / "new").first_model())[0]
    assert any((leaf != given[name]).any() for name, leaf in leaves) and fresh.settings.init is None


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["causal", "diffusion"])
def test_accumulation_changes_nothing_but_the_order_of_sums(text: Path, objective: Objective) -> None:
    whole, parts = (Training(recipe_of(objective, accumulate=n), text / str(n)) for n in (1, 4))
    for one, other in zip(*(jax.tree.leaves(run.train(one_device())) for run in (whole, parts)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    assert (text / "1" / "loss.csv").read_text().split(",")[4:] != []


@pytest.mark.slow
def test_an_interrupted_run_ends_as_an_uninterrupted_one(text: Path) -> None:
    recipe = recipe_of("diffusion", steps=6, lora=2, optimizer="adamw")
    whole = Training(recipe, text / "whole").train(one_device())
    asked = iter([False, True])
    with pytest.raises(StoppedError):
        Training(recipe, text / "parts").train(one_device(), is_stopped=lambda: next(asked))
    again = Training(recipe, text / "parts").train(one_device())
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    for name in ("loss.csv", "sinks.csv"):
        assert (text / "whole" / name).read_text() == (text / "parts" / name).read_text()


def test_adapters_begin_at_the_model_and_are_all_that_changes(text: Path) -> None:
    training = Training(recipe_of(lora=2, optimizer="adamw"), text / "run")
    model = training.first_model().unrolled()
    adapters = make_adapters(model, 2, seed=0)
    assert set(adapters) == {
        name for name, leaf in named_leaves(model)[0] if leaf.ndim == 2 and name.startswith("layers")
    }
    jax.tree.map(np.testing.assert_array_equal, merged(model, adapters), model)
    name = next(iter(adapters))
    adapters[name]["b"] = jnp.ones_like(adapters[name]["b"])
    moved = dict(named_leaves(merged(model, adapters))[0])[name] - dict(named_leaves(model)[0])[name]
    np.testing.assert_allclose(moved, SCALE * np.tile(adapters[name]["a"].sum(axis=0), (len(moved), 1)), atol=1e-5)
    trained = dict(named_leaves(training.train(one_device()))[0])
    changed = {name for name, leaf in named_leaves(model)[0] if (trained[name] != leaf).any()}
    assert changed == set(adapters)


def test_the_loss_on_held_out_text_is_that_of_the_whole_model(text: Path) -> None:
    recipe = recipe_of()
    lesson = step.Lesson(recipe.config, recipe.settings)
    model, held_out = jaxsink.init(recipe.config, seed=1), recipe.data.validation(5)
    logits = np.asarray(jaxsink.forward(model, held_out.tokens).logits, np.float64)[:, :-1]
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = -np.take_along_axis(logits, held_out.tokens[:, 1:, None], axis=-1).mean()
    for size in (2, 5):
        assert validation_loss(model, lesson, held_out, size) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("objective", ["causal", "diffusion"])
def test_what_the_first_token_costs_is_what_dropping_it_costs(text: Path, objective: Objective) -> None:
    """Given back by the other way in which a key can be hidden; sequences of different lengths, padded on the left."""
    recipe = recipe_of(objective, "2x16x2")
    lesson, config = step.Lesson(recipe.config, recipe.settings), recipe.config
    model, held_out = jaxsink.init(config, seed=1), recipe.data.validation(3)
    real = np.arange(16) >= np.array([[0], [3], [6]])
    example = lesson.example(Batch(held_out.tokens, real), jnp.int32(0))
    first, middle = np.array([0, 3, 6]), np.array([8, 9, 11])
    late = np.arange(16) >= middle[:, None]
    weight = np.where(np.take_along_axis(late, np.asarray(example.outputs), axis=1), example.weight, 0)
    drop = np.broadcast_to((np.arange(16) == first[:, None])[None, :, None], (config.layers, 3, config.heads, 16))

    def loss(hidden_from: np.ndarray | None) -> float:
        hides = {} if hidden_from is None else {"drop": drop, "hidden_from": hidden_from}
        logits = np.asarray(jaxsink.forward(model, example.tokens, real, **hides).logits, np.float64)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        picked = np.take_along_axis(logits, np.asarray(example.outputs)[..., None], axis=1)
        return -(weight * np.take_along_axis(picked, np.asarray(example.targets)[..., None], axis=-1)[..., 0]).sum()

    expected = [loss(others) - loss(None) for others in (np.arange(16) != first[:, None], late)] / weight.sum()
    found = lost_without_first(model, Batch(held_out.tokens, real), jnp.int32(0), lesson)
    assert np.abs(expected).min() > 1e-6 and abs(expected[0] - expected[1]) > 1e-6
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-7)


def test_figures_of_a_made_map() -> None:
    """One layer, two heads, four tokens after a padded one: the first head sends all to the first token."""
    scores = np.array([[[[0, 4, 0, 0, 0], [0, 1, 1, 1, 1]]]], np.float32)
    values = np.array([[[[9, 1, 4, 4, 4], [9, 2, 2, 2, 2]]]], np.float32)
    found = of_attention(scores, values, np.array([[False, True, True, True, True]]))
    assert found == pytest.approx(
        {"alpha_first": 0.625, "heads_above": 0.5, "sinks_per_head": 0.5, "largest_share": 0.625, "value_first": 0.625}
    )


def test_a_dense_models_operations_are_counted_by_hand() -> None:
    config, _ = described("2x16x2")
    config = config.replace(vocab=10)
    by_hand = 10 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * config.mlp_width)
    assert flops_per_token(config, 8) == 6 * (by_hand + 2 * 2 * 8 * 16)


def test_configurations_of_ones_own(text: Path) -> None:
    sizes = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp_width": 24, "qk_norm": True}
    Path("mine.json").write_text(json.dumps(sizes))
    config = recipe_of(model="mine.json").config
    assert config.qk_norm and config.kv_heads == 1 and config.vocab > 10
    Path("bad.json").write_text('{"layers": 1}')
    with pytest.raises(JaxsinkError, match=r"bad.json is no configuration to train .* it needs at least layers, width"):
        recipe_of(model="bad.json")
    with pytest.raises(JaxsinkError, match="a width of 16 cannot be shared by 3 heads"):
        recipe_of(model="1x16x3")
    data = text_data(DataSettings(("input.txt",), tokenizer="characters", length=18))
    with pytest.raises(JaxsinkError, match="18 tokens is not a whole number of blocks of 4"):
        fitted(described("1x16x2")[0], "block_diffusion", data, 4)
    assert (
        text_recipe(
            "smollm2-135m", DataSettings(("input.txt",), tokenizer="bpe:300", length=16), settings_of(), False, 4
        ).settings.init
        is None
    )


@pytest.mark.slow
def test_devices_share_a_batch_of_text(text: Path) -> None:
    alone, shared = (
        Training(recipe_of("diffusion", batch=8), text / str(n)).train(step.data_mesh(jax.devices()[:n]))
        for n in (1, 4)
    )
    for one, other in zip(jax.tree.leaves(alone), jax.tree.leaves(shared), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


@pytest.mark.slow
def test_the_command_and_its_card_repeat_the_run(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "1x16x2", "--out", "run", "--data", "input.txt", "--tokenizer", "characters", "--length", "16"]
    command += ["--steps", "2", "--batch", "8", "--objective", "diffusion", "--no-bos", "--checkpoints", "1"]
    assert main([*command, "--json"]) == 0, capsys.readouterr().err
    result = json.loads(capsys.readouterr().out)
    assert result["tokens"] == 2 * 8 * 16 and "accuracy" not in result
    card = (text / "run" / "model" / "README.md").read_text()
    again = next(line for line in card.splitlines() if line.startswith("jaxsink train")).split()[1:]
    assert main([*again, "--json"]) == 0, capsys.readouterr().err
    repeated = json.loads(capsys.readouterr().out)
    assert repeated["loss"] == result["loss"] and repeated["validation_loss"] == result["validation_loss"]
    with (text / "run" / "sinks.csv").open() as file:
        assert [int(line["step"]) for line in csv.DictReader(file)] == [0, 1, 2]


@pytest.mark.slow
def test_a_gguf_file_is_trained_on_with_the_tokenizer_inside(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gguf_file(text / "tiny.gguf")
    command = ["train", "tiny.gguf", "--out", "run", "--data", "input.txt", "--length", "16", "--json"]
    command += ["--steps", "1", "--batch", "8", "--checkpoints", "1", "--learning-rate", "1e-9", "--warmup", "1"]
    assert main(command) == 0, capsys.readouterr().err
    result = json.loads(capsys.readouterr().out)
    given, trained = jaxsink.load("tiny.gguf", "float32"), jaxsink.load("run/model", "float32")
    assert given.tokenizer.encode("he is") == trained.tokenizer.encode("he is")
    for (name, before), (_, after) in zip(named_leaves(given)[0], named_leaves(trained)[0], strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-2, atol=1e-2, err_msg=name)  # bfloat16, after one tiny step
    assert result["steps"] == 1 and np.isfinite(result["validation_loss"])
    assert trained.config.layers == 2 and not trained.config.is_diffusion


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """Of all event files: records of a length, its checksum, the event and its checksum."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = {}
    for path in folder.iterdir():
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + length])
            found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
            data = data[12 + length + 4 :]
    return found


@pytest.mark.slow
def test_tensorboard_gets_the_figures_of_the_files(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboardX")
    command = ["train", "1x16x2", "--out", "run", "--data", "input.txt", "--tokenizer", "characters", "--length", "16"]
    command += ["--steps", "12", "--batch", "8", "--checkpoints", "1", "--tensorboard", "--json"]
    assert main(command) == 0, capsys.readouterr().err
    expected = {}
    for name in ("loss.csv", "sinks.csv"):
        with (text / "run" / name).open(encoding="utf-8") as file:
            for line in csv.DictReader(file):
                step = int(line.pop("step"))
                names = ("loss",) if name == "loss.csv" else tuple(line)
                expected |= {(one, step): float(line[one]) for one in names}
    found = scalars(text / "run" / "tensorboard")
    assert found.keys() == expected.keys() and {("loss", 10), ("loss", 12), ("alpha_first", 12)} <= found.keys()
    assert [found[key] for key in expected] == pytest.approx(list(expected.values()), rel=1e-4)


def test_without_the_extra_nothing_is_begun(
    text: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert main(["train", *CHARACTERS, "--out", "run", "--tensorboard"]) == 2
    error = capsys.readouterr().err
    assert "--tensorboard needs an extra" in error and "tensorboard" in error and not (text / "run" / "model").exists()


ON_TEXT = ["1x16x2", "--data", "input.txt", "--steps", "2"]
CHARACTERS = [*ON_TEXT, "--tokenizer", "characters"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1x16x2", "--steps", "2"], "name texts to train 1x16x2 on (--data)"),
        (["1x16x2", "--data", "input.txt", "--tokenizer", "characters"], "say for how many steps"),
        (ON_TEXT, "the model brings no tokenizer; name one"),
        (["1x16x2", "--data", "none.txt", "--steps", "2"], "cannot read the text none.txt"),
        (["nowhere", "--data", "input.txt", "--steps", "2"], "no checkpoint at nowhere"),
        (["mini-llama", "--length", "8"], "--length does not apply"),
        ([*CHARACTERS, "--length", "1"], "length must be a whole number of 2 or more"),
        ([*CHARACTERS, "--lora", "2", "--optimizer", "muon"], "optimizer='adamw'"),
        ([*CHARACTERS, "--objective", "adaptation"], "starts from an autoregressive model"),
        ([*CHARACTERS, "--batch", "9"], "cannot be shared evenly"),
    ],
)
def test_bad_input_is_one_sentence(
    text: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["train", *arguments, "--out", "run"]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not (text / "run").exists()


def test_settings_are_refused_before_anything_is_read() -> None:
    known = Settings("causal", steps=10)
    for change, message in (
        ({"accumulate": 0}, "accumulate must be"),
        ({"accumulate": 3}, "in 3 parts"),
        ({"noise": "x"}, "noise must be one of"),
    ):
        with pytest.raises(JaxsinkError, match=message):
            replace(known, **change).check()


def test_a_first_batch_is_of_the_stream(text: Path) -> None:
    recipe = recipe_of()
    found: Batch = recipe.data.batch(0, 3, seed=0)
    assert (found.tokens[:, 0] == recipe.config.bos_id).all()
    assert all(recipe.data.tokenizer.decode(row[1:]) in TEXT for row in found.tokens)


@pytest.mark.parametrize("bos", [True, False])
def test_the_tokenizer_of_a_trained_model_begins_texts_as_its_training_did(text: Path, bos: bool) -> None:
    """A checkpoint's tokenizer may add no bos; a model that was trained on windows with one gets it in studies too."""
    made = text_data(DataSettings(("input.txt",), tokenizer="characters", length=16))
    given, written = text / "given", text / "written"
    given.mkdir()
    written.mkdir()
    made.write_tokenizer(given)
    plain = json.loads((given / "tokenizer.json").read_text(encoding="utf-8")) | {"post_processor": None}
    (given / "tokenizer.json").write_text(json.dumps(plain), encoding="utf-8")
    text_data(DataSettings(("input.txt",), tokenizer=str(given), length=16, bos=bos)).write_tokenizer(written)
    tokenizer = Tokenizer.load(written)
    first = [tokenizer.special["bos"]] if bos else []
    assert tokenizer.encode("To", add_special_tokens=True) == [*first, *tokenizer.encode("To")]


def test_values_that_came_to_nothing_are_no_warning() -> None:
    """A norm of a head that became 0 or NaN: the figure is NaN, and nothing is printed."""
    scores, values = np.zeros((1, 1, 2, 4), np.float32), np.zeros((1, 1, 2, 4), np.float32)
    assert np.isnan(of_attention(scores, values, np.ones((1, 4), bool))["value_first"])


def test_sinks_of_block_diffusion_are_seen_where_its_example_has_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Word problems are padded on the left; the example of a block diffusion model has moved them."""
    recipe = text_recipe("1x16x2", DataSettings(("stories",)), settings_of(objective="block_diffusion"), False, 4)
    held_out = recipe.data.validation(4)
    assert not held_out.real[:, 0].all()
    seen = []

    def forward(model: object, tokens: np.ndarray, real: np.ndarray, **options: object) -> Output:
        seen.append((tokens, real))
        return jaxsink.forward(model, tokens, real, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(watch, "forward", forward)
    lesson = step.Lesson(recipe.config, recipe.settings, recipe.data.prompt)
    watch.sink_figures(small_model(recipe.config, 0), lesson, held_out)
    ((tokens, real),) = seen
    first = np.take_along_axis(tokens, real.argmax(axis=1)[:, None], axis=1)
    special = recipe.data.tokenizer.special
    assert np.isin(first, (special["bos"], special["mask"])).all()
    np.testing.assert_array_equal(real.sum(axis=1), held_out.real.sum(axis=1))
