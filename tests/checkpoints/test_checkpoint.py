"""Saving and loading our own checkpoints: round trips, meshes, damage, runs that were killed; and `jaxsink inspect`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from support.checkpoints import CONFIGS, assert_same, config_of, make, random_model, run

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.checkpoints import streaming as loading
from jaxsink.checkpoints import writer as writing
from jaxsink.checkpoints.integrity import sealed
from jaxsink.checkpoints.load import size_on_disk
from jaxsink.checkpoints.storage import MANIFEST, WEIGHTS
from jaxsink.nn.parameters import named_leaves
from jaxsink.parallel import make_mesh
from jaxsink.runs import atomic, locks

pytestmark = pytest.mark.usefixtures("quick_compilation")


def save_and_load(model: jaxsink.Model, folder: Path, **options: Any) -> jaxsink.Model:
    jaxsink.save(model, folder / "saved")
    return jaxsink.load(folder / "saved", **options)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that every test may copy."""
    path = tmp_path_factory.mktemp("saved") / "model"
    jaxsink.save(random_model(config_of("llama", vocab_size=48)), path, source={"kind": "test", "path": "memory"})
    return path


@pytest.mark.parametrize("family", ["llada", "gpt2", "llada_moe"])
def test_round_trip(family: str, tmp_path: Path) -> None:
    model = random_model(config_of(family))
    assert_same(save_and_load(model, tmp_path), model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_round_trip_in_other_types(dtype: str, tmp_path: Path) -> None:
    model = random_model(config_of("qwen3"), dtype)
    assert_same(save_and_load(model, tmp_path), model)
    assert_same(jaxsink.load(tmp_path / "saved", dtype="float32"), model.astype("float32"))


def test_unrolled_models_are_saved_stacked(tmp_path: Path) -> None:
    model = random_model(config_of("llama"))
    assert_same(save_and_load(model.unrolled(), tmp_path), model)


def test_models_of_mixed_types_lose_nothing(tmp_path: Path) -> None:
    model = random_model(config_of("llama"))
    mixed = jax.tree.map(lambda x: x if x.ndim < 3 else np.asarray(x).astype("bfloat16"), model)
    assert_same(save_and_load(mixed, tmp_path), mixed.astype("float32"))


def test_every_published_setting_survives_the_manifest() -> None:
    for config in jaxsink.PRESETS.values():
        assert jaxsink.ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("shape", [(1, 8), (2, 4), (8, 1)])
def test_restore_onto_meshes(shape: tuple[int, int], saved: Path, tmp_path: Path) -> None:
    """Saved from one mesh, restored onto another: the same bits, each device with its part."""
    model = jaxsink.load(saved)
    mesh = make_mesh(*shape)
    spread = jaxsink.load(saved, mesh=mesh)
    assert_same(spread, model)
    for name, leaf in named_leaves(spread)[0]:
        assert leaf.sharding == jaxsink.parallel.sharding_of(name, leaf.ndim, model.config, mesh), name
    assert spread.embedding[...].addressable_shards[0].data.shape == (48 // shape[1], 24)
    jaxsink.save(spread, tmp_path / "spread")
    assert_same(jaxsink.load(tmp_path / "spread"), model)
    assert_same(jaxsink.load(tmp_path / "spread", mesh=make_mesh(4, 2)), model)


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 3000, 10_000])
def test_large_parameters_are_rounded_in_groups(size: int, saved: Path, monkeypatch: Any) -> None:
    """With groups of a few KB: one layer, several layers, all layers at a time."""
    model = jaxsink.load(saved, dtype="int8")
    monkeypatch.setattr(loading, "GROUP_BYTES", size)
    assert_same(jaxsink.load(saved, dtype="int8"), model)
    assert_same(jaxsink.load(saved, dtype="int8", mesh=make_mesh(1, 8)), model)


def test_writing_in_groups_and_chunks(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(writing, "GROUP_BYTES", 3000)
    monkeypatch.setattr(writing, "CHUNK_BYTES", 1000)
    model = random_model(config_of("dream"))
    assert_same(save_and_load(model, tmp_path), model)
    assert_same(jaxsink.load(tmp_path / "saved", mesh=make_mesh(2, 4)), model)


def test_save_does_not_overwrite_unless_asked(saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "model"
    shutil.copytree(saved, target)
    other = random_model(config_of("qwen2"))
    with pytest.raises(JaxsinkError, match="exists already"):
        jaxsink.save(other, target)
    assert_same(jaxsink.load(target), jaxsink.load(saved))
    jaxsink.save(other, target, overwrite=True)
    assert_same(jaxsink.load(target), other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def manifest(folder: Path, **changes: Any) -> None:
    """Edit it and make its seal fit, so that what is noticed are its fields."""
    values = json.loads((folder / MANIFEST).read_text())
    for key, value in changes.items():
        values.pop(key) if value is ... else values.update({key: value})
    (folder / MANIFEST).write_text(json.dumps(sealed(values)))


def config_with(folder: Path, **changes: Any) -> None:
    manifest(folder, config=json.loads((folder / MANIFEST).read_text())["config"] | changes)


DAMAGE: dict[str, tuple[Any, str]] = {
    "cut": (lambda f: os.truncate(f / MANIFEST, 200), MANIFEST),
    "empty": (lambda f: (f / MANIFEST).write_text(""), MANIFEST),
    "a list": (lambda f: (f / MANIFEST).write_text("[]"), MANIFEST),
    "nested": (lambda f: (f / MANIFEST).write_text("[" * 100_000), MANIFEST),
    "not text": (lambda f: (f / MANIFEST).write_bytes(b"\xff\xfe"), MANIFEST),
    "a later format": (lambda f: manifest(f, format=3), "format 3"),
    "no format": (lambda f: manifest(f, format=...), "format must be"),
    "no config": (lambda f: manifest(f, config=...), "'config' is missing"),
    "no source": (lambda f: manifest(f, source=...), "'source' is missing"),
    "config of another kind": (lambda f: manifest(f, config=3), MANIFEST),
    "type": (lambda f: manifest(f, dtype="int8"), "int8"),
    "unknown field": (lambda f: config_with(f, telepathy=True), "'telepathy'"),
    "missing field": (lambda f: manifest(f, config={"family": "llama"}), MANIFEST),
    "wrong value": (lambda f: config_with(f, heads="four"), "heads"),
    "a format of another kind": (lambda f: manifest(f, format=True), "format must be"),
    "a version of another kind": (lambda f: manifest(f, jaxsink=3), "jaxsink must be"),
    "a version that is none": (lambda f: manifest(f, jaxsink=None), "jaxsink must be"),
    "a version with words": (lambda f: manifest(f, jaxsink="of late"), "jaxsink must be the version"),
    "no version": (lambda f: manifest(f, jaxsink=...), "'jaxsink' is missing"),
    "parameters of another kind": (lambda f: manifest(f, parameters="x" * 10_000), "parameters must be"),
    "parameters that are none": (lambda f: manifest(f, parameters=None), "parameters must be"),
    "no parameters": (lambda f: manifest(f, parameters=...), "'parameters' is missing"),
    "an empty source": (lambda f: manifest(f, source={}), "source: kind is missing"),
    "a source without a path": (lambda f: manifest(f, source={"kind": "a", "path": None}), "source: path must be"),
    "a source with an empty path": (lambda f: manifest(f, source={"kind": "a", "path": " "}), "source: path is empty"),
    "positions without end": (lambda f: config_with(f, max_positions=10**9), "max_positions must be"),
    "a window without end": (lambda f: config_with(f, window=10**9), "window must be"),
    "half a character": (lambda f: manifest(f, dtype="\ud800"), "surrogates not allowed"),
    "a family of no name": (lambda f: config_with(f, family=""), "family must be one word"),
    "a family with markup": (lambda f: config_with(f, family="a[/b]"), "family must be one word"),
    "no epsilon": (lambda f: config_with(f, norm_eps=0), "norm_eps must be"),
    "a large epsilon": (lambda f: config_with(f, norm_eps=1.0), "norm_eps must be"),
    "no rotation": (lambda f: config_with(f, rope_theta=1e-300), "rope_theta must be"),
    "a mask that ends texts": (lambda f: config_with(f, mask_id=3, eos_ids=[3]), "cannot be the mask and the end"),
    "a sampler without a mask": (
        lambda f: manifest(f, sampler={"name": "LLaDASampler"}),
        "has no mask token, so LLaDASampler cannot run",
    ),
    "another size": (lambda f: config_with(f, mlp_width=40), "damaged"),
    "more layers": (lambda f: config_with(f, layers=3), "damaged"),
    "no weights": (lambda f: shutil.rmtree(f / WEIGHTS), "damaged"),
    "weights cut": (lambda f: [os.truncate(p, 0) for p in f.rglob("d/*")], "damaged"),
    "weights without metadata": (lambda f: [p.unlink() for p in f.rglob("_METADATA")], "damaged"),
    "weights without their list": (lambda f: [p.unlink() for p in f.rglob("manifest.ocdbt")], "damaged"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged(name: str, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    damage, word = DAMAGE[name]
    damage(folder)
    with pytest.raises(JaxsinkError, match=word) as error:
        jaxsink.load(folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(JaxsinkError, match="there is no checkpoint at"):
        jaxsink.load(tmp_path / "nothing")
    with pytest.raises(JaxsinkError, match=r"no config\.json"):
        jaxsink.load(tmp_path)


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "/etc/passwd/model"])
def test_paths_that_cannot_be(path: str) -> None:
    for call in (jaxsink.load, jaxsink.sampler_for, jaxsink.Tokenizer.load):
        with pytest.raises(JaxsinkError) as error:
            call(path)
        assert "\n" not in str(error.value) and len(str(error.value)) < 400


def test_only_a_checkpoint_is_measured_before_it_is_loaded(tmp_path: Path) -> None:
    """A directory may hold anything else, a whole machine for instance."""
    for place in ("weights/d", "other/deep"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "file").write_bytes(bytes(1 << 20))
    assert size_on_disk(tmp_path) == "1.00 MiB"


class TestCompleteOrNotAtAll:
    """The directory behind every checkpoint, in jaxsink.runs.atomic."""

    def test_what_a_killed_run_left_is_cleaned(self, tmp_path: Path) -> None:
        partial = tmp_path / ".model.partial"
        (partial / "weights" / "deep").mkdir(parents=True)
        (partial / MANIFEST).write_text("{}")
        (partial / "link").symlink_to(tmp_path)
        with atomic.new_directory(tmp_path / "model", MANIFEST) as folder:
            assert folder == partial
            assert list(folder.iterdir()) == []
            (folder / "new").touch()
        assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["model", "model/new"]

    def test_failure_leaves_nothing(self, tmp_path: Path) -> None:
        def fail() -> None:
            with atomic.new_directory(tmp_path / "a" / "b" / "model", MANIFEST) as folder:
                (folder / "half").touch()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert list(tmp_path.iterdir()) == []

    def test_killed_between_the_two_renames(self, tmp_path: Path) -> None:
        """The old checkpoint stands aside and the new one is not yet in its place: the next run brings it back."""
        old = tmp_path / ".model.old"
        old.mkdir()
        (old / MANIFEST).write_text("old")
        with pytest.raises(JaxsinkError, match="exists already"), atomic.new_directory(tmp_path / "model", MANIFEST):
            pass
        assert (tmp_path / "model" / MANIFEST).read_text() == "old"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]

    def test_killed_before_the_old_one_was_removed(self, tmp_path: Path) -> None:
        for name in ("model", ".model.old"):
            (tmp_path / name).mkdir()
            (tmp_path / name / MANIFEST).write_text(name)
        with atomic.new_directory(tmp_path / "model", MANIFEST, overwrite=True) as folder:
            assert (tmp_path / "model" / MANIFEST).read_text() == "model"
            (folder / MANIFEST).write_text("new")
        assert (tmp_path / "model" / MANIFEST).read_text() == "new"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]

    def test_one_at_a_time(self, tmp_path: Path) -> None:
        with atomic.new_directory(tmp_path / "model", MANIFEST) as folder:
            (folder / "mine").touch()
            with (
                pytest.raises(JaxsinkError, match=f"process {os.getpid()} on .* is writing"),
                atomic.new_directory(tmp_path / "model", MANIFEST),
            ):
                pass
            assert (folder / "mine").exists()
        assert (tmp_path / "model" / "mine").exists()

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_another_run_ends_just_before_ours_begins(self, overwrite: bool, tmp_path: Path, monkeypatch: Any) -> None:
        """It takes the very file away that we are about to lock: ours must see that."""
        original, model = locks.fcntl.flock, tmp_path / "model"

        def flock(handle: int, kind: int) -> None:
            if not model.exists():
                model.mkdir()
                (tmp_path / ".model.partial.lock").unlink()
                (model / MANIFEST).write_text("theirs")
            original(handle, kind)

        def ours() -> None:
            with atomic.new_directory(model, MANIFEST, overwrite) as folder:
                (folder / MANIFEST).write_text("ours")

        monkeypatch.setattr(locks.fcntl, "flock", flock)
        if overwrite:
            ours()
        else:
            with pytest.raises(JaxsinkError, match="exists already"):
                ours()
        assert (model / MANIFEST).read_text() == ("ours" if overwrite else "theirs")
        assert sorted(path.name for path in tmp_path.rglob("*")) == [MANIFEST, "model"]

    def test_writes_under_way_end_before_the_folder_goes(self, tmp_path: Path) -> None:
        model = random_model(config_of("llama"))
        writers = []

        def fail() -> None:
            with writing.writer(tmp_path / "model", model.config, "float32", {}) as out:
                writers.append(out)
                out.add("embedding", np.zeros((3000, 3000), np.float32))
                out.flush()
                assert out.writing is not None
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert writers[0].writing is None
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("family", CONFIGS)
def test_inspect_a_directory_and_a_checkpoint(family: str, tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", family, "bfloat16")
    jaxsink.save(model, tmp_path / "saved")
    for path in (source, tmp_path / "saved"):
        code, out, err = run(capsys, "inspect", path, "--json")
        assert (code, err) == (0, "")
        facts = json.loads(out)
        assert jaxsink.ModelConfig.from_dict(facts["config"]) == model.config
        assert facts["parameters"] == sum(leaf.size for leaf in jax.tree.leaves(model))
        assert facts["bytes"] == {"float32": 4 * facts["parameters"], "bfloat16": 2 * facts["parameters"]}
        assert facts["dtype"] == "bfloat16"


def test_inspect_for_people(saved: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, "inspect", saved)
    assert code == 0
    for words in (
        "llama (autoregressive)",
        "2 layers x 24, 4 heads of 6, 2 kv heads, mlp 36",
        "48 rows",
        "causal",
        "rotary, theta 500",
        "as float32",
        "test memory",
    ):
        assert words in out, words
    code, out, _ = run(capsys, "inspect", "llada-8b-instruct")
    assert code == 0
    for words in ("llada (diffusion)", "8,015,581,184", "29.86 GiB as float32", "126336", "no weights"):
        assert words in out, words


def test_inspect_nothing(tmp_path: Path, capsys: Any) -> None:
    code, out, err = run(capsys, "inspect", tmp_path / "nothing")
    assert (code, out) == (2, "")
    assert (
        err
        == f"jaxsink: there is no checkpoint at {tmp_path / 'nothing'}; give a converted one, a Hugging Face directory, a "
        "hub id (owner/name), or a name that `jaxsink models` lists.\n"
    )
