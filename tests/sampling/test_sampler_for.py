"""`sampler_for`: a checkpoint brings its sampler, wherever its weights go, and nothing compiles again because of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from jaxsink_converters.convert import convert
from support.configs import FAMILIES
from support.paths import GOLDEN

import jaxsink
from jaxsink import (
    AncestralSampler,
    ARSampler,
    DreamSampler,
    FastDLLMv2Sampler,
    GIDDSampler,
    JaxsinkError,
    LLaDASampler,
    Origin,
    SDARSampler,
    sampler_for,
)
from jaxsink.checkpoints.integrity import sealed
from jaxsink.evals.settings import get_setting
from jaxsink.nn.forward import _forward
from jaxsink.nn.quantization import quantized
from jaxsink.parallel import make_mesh, shard
from jaxsink.sampling import execution
from jaxsink.sampling.registry import family_sampler, from_dict, to_dict
from jaxsink.zoo.builtin import BUILTIN
from jaxsink.zoo.presets import HUB_IDS, PRESETS, preset
from jaxsink.zoo.recommend import published, recommended
from jaxsink.zoo.resolve import NAMES

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return jaxsink.load("mini-llada", "float32")


@pytest.mark.parametrize("name", NAMES)
def test_built_in_checkpoints_carry_their_sampler(name: str) -> None:
    assert sampler_for(name) == BUILTIN[name].sampler
    loaded = jaxsink.load(name)
    assert loaded.origin.sampler == BUILTIN[name].sampler == sampler_for(loaded)
    assert loaded.tokenizer.decode(loaded.tokenizer.encode(" apples")) == " apples"


def test_the_origin_goes_where_the_weights_go(model: jaxsink.Model) -> None:
    mesh = make_mesh(1, 2, jax.devices()[:2])
    ways = {
        "astype": model.astype("bfloat16"),
        "unrolled": model.unrolled(),
        "stacked": model.unrolled().stacked(),
        "int8": quantized(model),
        "device_put": jax.device_put(model, jax.devices()[1]),
        "tree.map": jax.tree.map(lambda x: 2 * x, model),
        "mesh": shard(model, mesh),
        "tree.map of two": jax.tree.map(lambda x, y: x - y, model, model.with_origin(Origin())),
    }
    for way, other in ways.items():
        assert other.origin == model.origin, way


def test_two_checkpoints_of_one_shape_share_their_programs(model: jaxsink.Model) -> None:
    other = model.with_origin(Origin("/elsewhere", ("other",), LLaDASampler(8, 8, 8)))
    assert other.origin != model.origin and jax.tree.structure(other) == jax.tree.structure(model)
    jaxsink.forward(model, [[1, 2, 3]])
    jaxsink.generate(model, [[1, 2, 3]], LLaDASampler(8, 4, 8))
    before = _forward.cache_size(), execution._advance.cache_size()
    jaxsink.forward(other, [[1, 2, 3]])
    jaxsink.generate(other, [[1, 2, 3]], LLaDASampler(8, 4, 8))
    assert (_forward.cache_size(), execution._advance.cache_size()) == before


def test_a_compiled_function_gives_no_model_the_origin_of_another(model: jaxsink.Model) -> None:
    other = model.with_origin(Origin("/elsewhere", ("other",), LLaDASampler(8, 8, 8)))
    double = jax.jit(lambda m: jax.tree.map(lambda x: 2 * x, m))
    assert double(model).origin == double(other).origin == Origin()
    assert double(other).with_origin(other.origin).origin == other.origin
    gradient = jax.grad(lambda m: jaxsink.forward(m, [[1, 2]]).logits.sum())(model)
    assert jax.tree.structure(gradient) == jax.tree.structure(model)
    assert jax.eval_shape(lambda m: m, model).origin == Origin()


def test_save_keeps_sampler_tokenizer_and_name(model: jaxsink.Model, tmp_path: Path) -> None:
    jaxsink.save(model, tmp_path / "copy")
    again = jaxsink.load(tmp_path / "copy")
    assert sampler_for(again) == sampler_for(tmp_path / "copy") == BUILTIN["mini-llada"].sampler
    assert again.tokenizer.encode("Mia has 4 apples.") == model.tokenizer.encode("Mia has 4 apples.")
    assert again.origin.names == ("copy", "mini-llada")
    other = LLaDASampler(16, 8, 16)
    jaxsink.save(again, tmp_path / "other", sampler=other)
    assert sampler_for(jaxsink.load(tmp_path / "other")) == other


def test_what_cannot_be_saved_with_a_model(model: jaxsink.Model, tmp_path: Path) -> None:
    with pytest.raises(JaxsinkError, match="ARSampler: a llada model is not autoregressive; "):
        jaxsink.save(model, tmp_path / "x", sampler=ARSampler())
    with pytest.raises(JaxsinkError, match="sampler must be a Sampler or None, not"):
        jaxsink.save(model, tmp_path / "x", sampler={"steps": 3})
    gone = model.with_origin(Origin(str(tmp_path / "gone")))
    with pytest.raises(JaxsinkError, match="gone, which holds the tokenizer of this model, is gone"):
        jaxsink.save(gone, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_manifests_with_a_sampler_that_cannot_be(tmp_path: Path) -> None:
    shutil.copytree(jaxsink.load("mini-llada").origin.place or "", tmp_path / "broken")
    manifest = json.loads((tmp_path / "broken" / "jaxsink.json").read_text())
    for wrong, message in (
        ({"name": "BestSampler"}, "unknown sampler 'BestSampler'"),
        ({"name": "LLaDASampler", "sharpness": 3}, "the sampler LLaDASampler has wrong settings"),
        ({"name": "LLaDASampler", "steps": -1}, "steps must be a whole number from 1"),
        ([1, 2], "jaxsink.json cannot be used"),
    ):
        (tmp_path / "broken" / "jaxsink.json").write_text(json.dumps(manifest | {"sampler": wrong}))
        with pytest.raises(JaxsinkError, match=message):
            jaxsink.load(tmp_path / "broken")
    del manifest["sampler"]  # as older versions wrote them
    (tmp_path / "broken" / "jaxsink.json").write_text(json.dumps(sealed(manifest)))
    assert sampler_for(tmp_path / "broken") == BUILTIN["mini-llada"].sampler


def test_converted_models_get_what_was_published_for_their_name(tmp_path: Path) -> None:
    source = tmp_path / "Dream-v0-Instruct-7B"
    shutil.copytree(GOLDEN / "dream_tiny", source)
    convert(str(source), str(tmp_path / "here"))
    entry = json.loads((tmp_path / "here" / "jaxsink.json").read_text())["sampler"]
    assert (entry["name"], entry["temperature"], entry["top_p"]) == ("DreamSampler", 0.1, 0.9)
    assert sampler_for(jaxsink.load(tmp_path / "here")) == sampler_for(jaxsink.load(source))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("GSAI-ML/LLaDA-8B-Instruct", "llada-8b-instruct"),
        ("models--GSAI-ML--LLaDA-8B-Instruct", "llada-8b-instruct"),
        ("Dream-v0-Instruct-7B", "dream-7b-instruct"),
        ("MMaDA-8B-MixCoT", "mmada-8b-mixcot"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
    ],
)
def test_published_settings_are_found_by_name(name: str, key: str) -> None:
    setting = next(
        get_setting(f"{key}/gsm8k/{end}") for end in ("study", "small") if f"{key}/gsm8k/{end}" in _settings()
    )
    assert published(name) == setting.sampler()


def _settings() -> set[str]:
    from jaxsink.evals.settings import SETTINGS

    return set(SETTINGS)


def test_names_that_say_nothing() -> None:
    assert [published(name) for name in ("llada", "my-llada-8b-instruct", "llada-8b", "")] == [None] * 4
    llama = preset("llama-3.1-8b")
    assert recommended(llama, ["LLaDA-8B-Instruct"]) == ARSampler(256)  # another model under that name
    assert recommended(preset("gpt2").replace(max_positions=64)) == ARSampler(32)


def test_every_preset_has_a_sampler_that_runs_it_and_a_hub_id() -> None:
    assert set(HUB_IDS) == set(PRESETS)
    for name, config in PRESETS.items():
        sampler_for(name).check(config)
    assert sampler_for("llada-1.5") == LLaDASampler(256, 256, 16)
    assert sampler_for("llama-3.1-8b-instruct") == ARSampler(1024)
    assert sampler_for("sdar-4b") == SDARSampler(256)
    assert sampler_for("fast-dllm-v2-7b") == FastDLLMv2Sampler(256, 32, 8, threshold=0.9)
    assert sampler_for("mmada-8b").text_only
    assert sampler_for("bd3lm-owt-block_size8") == AncestralSampler(512, top_p=0.9)  # half of its positions
    assert sampler_for("mdlm-owt") == AncestralSampler(512, 128)
    assert sampler_for("gidd-base-p_unif-0.2") == GIDDSampler(256, 128)
    for family in ("bd3lm", "mdlm", "gidd"):
        sampler = family_sampler(FAMILIES[family])
        sampler.check(FAMILIES[family])
        assert from_dict(to_dict(sampler), FAMILIES[family]) == sampler


def test_other_lengths_keep_the_pace_and_the_blocks() -> None:
    base = LLaDASampler(256, 128, 32)
    assert base.with_length(64) == replace(base, gen_length=64, steps=32)
    assert base.with_length(48) == replace(base, gen_length=48, steps=24, block_length=24)
    assert LLaDASampler(256, 256, 256).with_length(100) == LLaDASampler(100, 100, 100)
    assert DreamSampler(256, 64).with_length(32) == DreamSampler(32, 8)
    assert DreamSampler(256, 64, block_length=64).with_length(128) == DreamSampler(128, 32, block_length=64)
    assert DreamSampler(256, 64, block_length=64).with_length(48) == DreamSampler(48, 12, block_length=24)
    assert FastDLLMv2Sampler(256).with_length(10) == FastDLLMv2Sampler(10)
    assert SDARSampler(256).with_length(10) == SDARSampler(10)


def test_settings_that_came_later_change_no_file_and_no_fingerprint() -> None:
    """Reprs go into the manifests of runs, dictionaries into those of checkpoints."""
    old, new = DreamSampler(8, 4), DreamSampler(8, 4, block_length=4, cache="dual")
    assert repr(old) == (
        "DreamSampler(max_new_tokens=8, steps=4, alg='entropy', alg_temp=None, temperature=0.0, top_p=None, top_k=None, "
        "eps=0.001)"
    )
    assert repr(new) == repr(old)[:-1] + ", block_length=4, cache='dual')"
    assert not {"block_length", "cache"} & to_dict(old).keys() and to_dict(new)["cache"] == "dual"
    for sampler in (old, new):
        assert from_dict(to_dict(sampler), preset("dream-7b-base")) == sampler


def test_a_model_with_other_blocks_gets_a_sampler_that_fits() -> None:
    config = preset("fast-dllm-v2-7b")
    assert family_sampler(config) == FastDLLMv2Sampler(256)
    assert family_sampler(config.replace(block_length=12)) == FastDLLMv2Sampler(256, 12, 4)


def test_what_sampler_for_takes() -> None:
    with pytest.raises(JaxsinkError, match="model must be a Transformer or a text or a path, not 3"):
        sampler_for(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(JaxsinkError, match=r"did you mean mini-llada\?"):
        sampler_for("mini-lada")
    assert sampler_for(jaxsink.init(BUILTIN["mini-dream"].config)) == family_sampler(
        BUILTIN["mini-dream"].config
    ).with_length(128)
