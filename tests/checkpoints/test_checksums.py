"""Bit rot is noticed: every flipped bit of a converted checkpoint, on one device, on a mesh, in another type."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.checkpoints import assert_same, config_of, random_model, run

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.checkpoints.checksums import BLOCK_BYTES, all_finite, checksum
from jaxsink.checkpoints.storage import MANIFEST
from jaxsink.nn.parameters import named_leaves
from jaxsink.parallel import make_mesh

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    jaxsink.save(random_model(config_of("llama", vocab_size=48)), path)
    return path


def flip(folder: Path, array: np.ndarray, bit: int) -> None:
    """Flip one bit of a stored array, wherever its bytes lie."""
    content = array.tobytes()
    for file in folder.rglob("d/*"):
        data = bytearray(file.read_bytes())
        if (at := data.find(content)) >= 0:
            data[at + bit // 8] ^= 1 << bit % 8
            file.write_bytes(data)
            return
    raise AssertionError("the array is in none of the files")


LOADS: dict[str, Callable[[Path], jaxsink.Model]] = {
    "as stored": jaxsink.load,
    "another type": lambda path: jaxsink.load(path, dtype="bfloat16"),
    "int8": lambda path: jaxsink.load(path, dtype="int8"),
    "on a mesh": lambda path: jaxsink.load(path, mesh=make_mesh(2, 4)),
}


@pytest.mark.parametrize("how", LOADS)
@pytest.mark.parametrize("name", ["embedding", "layers.mlp.up.weight"])
def test_a_flipped_bit_is_named(name: str, how: str, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    leaves = dict(named_leaves(jaxsink.load(saved))[0])
    array = np.asarray(leaves[name][1] if name.startswith("layers.") else leaves[name])
    flip(folder, array, 8 * array.nbytes // 2 + 30)  # the exponent's highest bit: 1e38 more
    piece = f"{name}.01" if name.startswith("layers.") else name
    with pytest.raises(JaxsinkError, match=f"damaged .*{piece}.* are not those that were written"):
        LOADS[how](folder)
    jaxsink.load(folder, verify=False)


def test_every_bit_counts() -> None:
    """Also in the last bytes, which fill no block."""
    value = np.random.default_rng(0).integers(0, 256, 2 * BLOCK_BYTES + 13, np.uint8)
    sound = checksum(value)
    bits = [*range(64), 8 * BLOCK_BYTES - 1, 8 * BLOCK_BYTES, *range(8 * value.size - 120, 8 * value.size)]
    for bit in bits:
        other = value.copy()
        other[bit // 8] ^= 1 << bit % 8
        assert checksum(other) != sound, bit
    swapped = np.concatenate([value[BLOCK_BYTES : 2 * BLOCK_BYTES], value[:BLOCK_BYTES], value[2 * BLOCK_BYTES :]])
    assert checksum(swapped) != sound


def test_a_checksum_does_not_change_between_versions() -> None:
    """Files keep them for years."""
    assert checksum(np.arange(3000, dtype=np.float32)) == "29b21c1c"
    assert checksum(np.zeros((0, 4), np.float32)) == "00000000"
    transposed = np.arange(6000, dtype=np.float32).reshape(60, 100).T
    assert checksum(transposed) == checksum(np.ascontiguousarray(transposed))


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads((folder / MANIFEST).read_text())
    change(values)
    (folder / MANIFEST).write_text(json.dumps(values))


def test_checkpoints_without_checksums_load_with_a_note(saved: Path, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    edit(folder, lambda manifest: manifest.pop("checksums"))
    assert_same(jaxsink.load(folder), jaxsink.load(saved))
    for path, words in ((folder, True), (saved, False)):
        code, out, _ = run(capsys, "inspect", path)
        assert code == 0
        assert ("checksums" in out) == words


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m["checksums"].update(kind="md5"), "not of the kind"),
        (lambda m: m.update(checksums=[1]), "not of the kind"),
        (lambda m: m["checksums"].update(arrays=3), "not of the kind"),
        (lambda m: m["checksums"]["arrays"].update(embedding=12), "'embedding' is 12, not eight"),
        (lambda m: m["checksums"]["arrays"].pop("embedding"), "no checksum of 'embedding'"),
    ],
)
def test_wrong_checksums(change: Callable[[dict[str, Any]], Any], words: str, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    edit(folder, change)
    with pytest.raises(JaxsinkError, match=words):
        jaxsink.load(folder)


def test_the_built_in_models_have_checksums() -> None:
    for name in ("mini-llada", "mini-dream", "mini-llama"):
        assert "notes" not in jaxsink.describe(name)["summary"]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_models_with_nan_are_not_saved(wrong: float, dtype: str, tmp_path: Path) -> None:
    model = random_model(config_of("llama"), dtype)
    leaves, treedef = named_leaves(model)
    for number, (name, leaf) in enumerate(leaves):
        if name == "layers.mlp.up.weight":
            leaves[number] = (name, jnp.asarray(leaf).at[1, 2, 3].set(wrong))
    broken = jax.tree.unflatten(treedef, [leaf for _, leaf in leaves])
    with pytest.raises(JaxsinkError, match=r"'layers\.mlp\.up\.weight' of the model holds NaN or infinite numbers"):
        jaxsink.save(broken, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    assert all_finite(np.full(3, jnp.finfo(dtype).max, dtype))
