"""Bit rot is noticed: flipped bits and moved sectors of a checkpoint, on one device, on a mesh, in another type."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import reduce
from itertools import combinations
from operator import getitem
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.checkpoints import assert_same, config_of, random_model, run
from support.damage import places

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.checkpoints.checksums import BLOCK_BYTES, KINDS, NEWEST, Checksums, all_finite, checksum, crc_of_sums
from jaxsink.checkpoints.integrity import FORMAT, sealed
from jaxsink.checkpoints.storage import MANIFEST, Reader
from jaxsink.nn.parameters import named_leaves
from jaxsink.parallel import make_mesh
from jaxsink.zoo.resolve import resolve

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    jaxsink.save(random_model(config_of("llama", vocab_size=48)), path)
    return path


Damage = Callable[[bytearray, int, int], object]
"""What happens to the bytes of a file, in which an array has so many from there on."""


def one_flip(bit: int) -> Damage:
    def flip(data: bytearray, start: int, size: int) -> None:
        data[start + bit // 8] ^= 1 << bit % 8

    return flip


def swap_sectors(data: bytearray, start: int, size: int) -> None:
    """Of 512 bytes, side by side."""
    middle = start + 512
    data[start : middle + 512] = data[middle : middle + 512] + data[start:middle]


def flip_oppositely(data: bytearray, start: int, size: int) -> None:
    """One bit of a word of eight bytes from 0 to 1, and the same bit of another word of its block from 1 to 0."""
    words = np.frombuffer(data, "<u8", BLOCK_BYTES // 8, start)
    one = next(one for one in range(1, len(words)) if (words[0] ^ words[one]) >> np.uint64(20) & np.uint64(1))
    for word in (0, one):
        one_flip(64 * word + 20)(data, start, size)


def hurt(folder: Path, array: np.ndarray, damage: Damage) -> None:
    """Damage a stored array, wherever its bytes lie."""
    content = array.tobytes()
    for file in folder.rglob("d/*"):
        data = bytearray(file.read_bytes())
        if (start := data.find(content)) >= 0:
            damage(data, start, array.nbytes)
            file.write_bytes(data)
            return
    raise AssertionError("the array is in none of the files")


def piece_of(folder: Path, name: str) -> tuple[str, np.ndarray]:
    """A parameter, or its second layer: what it is called in a checkpoint, and its numbers."""
    leaf = dict(named_leaves(jaxsink.load(folder))[0])[name]
    return (f"{name}.01", np.asarray(leaf[1])) if name.startswith("layers.") else (name, np.asarray(leaf))


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
    piece, array = piece_of(saved, name)
    hurt(folder, array, one_flip(8 * array.nbytes // 2 + 30))  # the exponent's highest bit: 1e38 more
    with pytest.raises(JaxsinkError, match=f"damaged .*{piece}.* are not those that were written"):
        LOADS[how](folder)
    jaxsink.load(folder, verify=False)


@pytest.mark.parametrize("damage", [swap_sectors, flip_oppositely], ids=["sectors", "flips"])
def test_damage_that_a_plain_sum_does_not_see_is_named(damage: Damage, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    piece, array = piece_of(saved, "embedding")
    assert array.nbytes >= BLOCK_BYTES  # so that the first kind would be blind
    hurt(folder, array, damage)
    with pytest.raises(JaxsinkError, match=f"damaged .*{piece}.* are not those that were written"):
        jaxsink.load(folder)


def cut_end(data: bytearray, start: int, size: int) -> None:
    del data[start + size // 2 :]


def cut_word(data: bytearray, start: int, size: int) -> None:
    del data[start + size // 2 : start + size // 2 + 8]


def insert_word(data: bytearray, start: int, size: int) -> None:
    data[start + size // 2 : start + size // 2] = bytes(8)


@pytest.mark.parametrize("damage", [cut_end, cut_word, insert_word])
def test_shorter_and_longer_files_are_damaged(damage: Damage, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    hurt(folder, piece_of(saved, "layers.mlp.up.weight")[1], damage)
    with pytest.raises(JaxsinkError, match=r"is damaged \("):
        jaxsink.load(folder)


def test_bytes_after_the_last_belong_to_no_array(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    for file in folder.rglob("d/*"):
        file.write_bytes(file.read_bytes() + b"more")
    assert_same(jaxsink.load(folder), jaxsink.load(saved))


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_counts(kind: str) -> None:
    """Also in the last bytes, which fill no block."""
    value = np.random.default_rng(0).integers(0, 256, 2 * BLOCK_BYTES + 13, np.uint8)
    found, sound = KINDS[kind].of, KINDS[kind].of(value)
    bits = [*range(64), 8 * BLOCK_BYTES - 1, 8 * BLOCK_BYTES, *range(8 * value.size - 120, 8 * value.size)]
    for bit in [*bits, *np.random.default_rng(1).integers(0, 8 * value.size, 500).tolist()]:
        other = value.copy()
        other[bit // 8] ^= 1 << bit % 8
        assert found(other) != sound, bit
    swapped = np.concatenate([value[BLOCK_BYTES : 2 * BLOCK_BYTES], value[:BLOCK_BYTES], value[2 * BLOCK_BYTES :]])
    assert found(swapped) != sound


def test_the_order_of_sectors_counts() -> None:
    """Any two of 512 bytes; the first kind sees none of these, which is why there is another."""
    sectors = np.random.default_rng(0).integers(0, 256, (BLOCK_BYTES // 512, 512), np.uint8)
    for one, other in combinations(range(len(sectors)), 2):
        swapped = sectors.copy()
        swapped[[one, other]] = sectors[[other, one]]
        assert checksum(swapped) != checksum(sectors), (one, other)
        assert crc_of_sums(swapped) == crc_of_sums(sectors)


def test_flips_that_cancel_in_a_sum_count() -> None:
    """The same bit of two words, once up and once down; of the highest two in any way, as a sum loses what they carry."""
    words = np.random.default_rng(0).integers(0, 2**63, BLOCK_BYTES // 8, np.uint64)
    for bit in range(64):
        mask = np.uint64(1 << bit)
        words[:2] = words[:2] & ~mask
        words[1] |= mask
        flipped = words.copy()
        flipped[:2] ^= mask
        assert checksum(flipped) != checksum(words), bit
        assert crc_of_sums(flipped) == crc_of_sums(words)
    flipped = words.copy()
    flipped[[5, 300]] ^= np.uint64(1 << 63)
    assert checksum(flipped) != checksum(words)


def test_the_length_counts() -> None:
    zeros = np.zeros(3 * BLOCK_BYTES, np.uint8)
    sizes = [*range(300), BLOCK_BYTES - 8, BLOCK_BYTES, BLOCK_BYTES + 8, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES]
    assert len({checksum(zeros[:size]) for size in sizes}) == len(sizes)


def test_a_checksum_does_not_change_between_versions() -> None:
    """Files keep them for years."""
    assert checksum(np.arange(3000, dtype=np.float32)) == "3d210d2ec6cdc5d2"
    assert checksum(np.zeros((0, 4), np.float32)) == "2d06800538d394c2"  # as the authors of XXH3 give it for no bytes
    assert crc_of_sums(np.arange(3000, dtype=np.float32)) == "29b21c1c"
    assert crc_of_sums(np.zeros((0, 4), np.float32)) == "00000000"
    transposed = np.arange(6000, dtype=np.float32).reshape(60, 100).T
    assert checksum(transposed) == checksum(np.ascontiguousarray(transposed))


def edit(folder: Path, change: Callable[[dict[str, Any]], Any], seal: bool = True) -> None:
    """seal: make it fit, so that it is not what is noticed."""
    values = json.loads((folder / MANIFEST).read_text())
    change(values)
    fits = seal and isinstance(values.get("checksums"), dict) and values["format"] == FORMAT
    (folder / MANIFEST).write_text(json.dumps(sealed(values) if fits else values))


def first_format(manifest: dict[str, Any]) -> None:
    """As it was written before the tokenizer's files and the manifest itself had checksums."""
    manifest["format"] = 1
    del manifest["checksums"]["files"], manifest["checksums"]["manifest"]


def test_checkpoints_without_checksums_load_with_a_note(saved: Path, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    edit(folder, lambda manifest: (first_format(manifest), manifest.pop("checksums")))
    assert_same(jaxsink.load(folder), jaxsink.load(saved))
    for path, words in ((folder, True), (saved, False)):
        code, out, _ = run(capsys, "inspect", path)
        assert code == 0
        assert ("checksums" in out) == words


def test_checksums_of_the_first_kind_are_verified(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    leaves = dict(named_leaves(jaxsink.load(saved))[0])

    def first_kind(manifest: dict[str, Any]) -> None:
        names = {piece: piece.rpartition(".") for piece in manifest["checksums"]["arrays"]}
        arrays = {
            piece: np.asarray(leaves[piece] if piece in leaves else leaves[name][int(layer)])
            for piece, (name, _, layer) in names.items()
        }
        sums = {piece: crc_of_sums(array) for piece, array in arrays.items()}
        first_format(manifest)
        manifest["checksums"] = Checksums(sums, "crc32 of 4 KB sums").to_manifest()

    edit(folder, first_kind)
    assert_same(jaxsink.load(folder), jaxsink.load(saved))
    _, array = piece_of(saved, "layers.mlp.up.weight")
    hurt(folder, array, one_flip(30))
    with pytest.raises(JaxsinkError, match=r"damaged .*layers\.mlp\.up\.weight\.01.* are not those that were written"):
        jaxsink.load(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda m: m["checksums"].update(kind="md5"),
            "of the kind 'md5', and this jaxsink knows xxh3-64, crc32 of 4 KB sums",
        ),
        (lambda m: m["checksums"].update(kind=[]), r"of the kind \[\]"),
        (lambda m: m["checksums"].update(files=[]), "checksums of files are not one for each"),
        (lambda m: m["checksums"].update(files={"../a": "0" * 16}), "checksums of files are not one for each"),
        (lambda m: m["checksums"].update(files={"tokenizer.json": "0"}), "'tokenizer.json' is '0', not 16"),
        (lambda m: m.update(checksums=[1]), "not a kind and one for each array"),
        (lambda m: m["checksums"].update(arrays=3), "not a kind and one for each array"),
        (lambda m: m["checksums"]["arrays"].update(embedding=12), "'embedding' is 12, not 16"),
        (lambda m: m["checksums"]["arrays"].update(embedding="29b21c1c"), "'embedding' is '29b21c1c', not 16"),
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
        checksums = Reader(resolve(name)).checksums
        assert checksums is not None and checksums.kind == NEWEST
        assert Reader(resolve(name)).manifest["format"] == FORMAT
        assert sorted(Reader(resolve(name)).manifest["checksums"]["files"]) == [
            "tokenizer.json",
            "tokenizer_config.json",
        ]


def test_every_edit_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    """Each of its values replaced or removed, checksums among them; `verify=False` is for those who mean it."""
    folder = tmp_path / "model"
    shutil.copytree(resolve("mini-llada"), folder)
    sound = json.loads((folder / MANIFEST).read_text())
    for *outer, last in places(sound):
        for new in (None, 7, ...):
            values = json.loads(json.dumps(sound))
            node = reduce(getitem, outer, values)
            if node[last] == new:
                continue
            node.__delitem__(last) if new is ... else node.__setitem__(last, new)
            (folder / MANIFEST).write_text(json.dumps(values))
            with pytest.raises(JaxsinkError, match=MANIFEST):
                Reader(folder)
    for seal in (False, True):  # one that means something, and is allowed
        (folder / MANIFEST).write_text(json.dumps(sound))
        edit(folder, lambda manifest: manifest["config"].update(family="mine"), seal)
        if not seal:
            with pytest.raises(JaxsinkError, match=r"damaged, or edited: .* verify=False reads it all the same"):
                jaxsink.load(folder)
    edited = jaxsink.load(folder, verify=False)
    assert edited.config.family == "mine"
    jaxsink.save(edited, tmp_path / "mine")
    assert_same(jaxsink.load(tmp_path / "mine"), edited)


def test_the_first_format_has_no_checksums_of_the_second(saved: Path, tmp_path: Path) -> None:
    """So that one edit of a number does not turn verification off."""
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    edit(folder, lambda manifest: manifest.update(format=1))
    with pytest.raises(JaxsinkError, match="format 1 has no checksums of its files"):
        jaxsink.load(folder)
    shutil.copy(saved / MANIFEST, folder / MANIFEST)
    edit(folder, lambda manifest: (first_format(manifest), manifest.pop("jaxsink"), manifest.pop("parameters")))
    assert_same(jaxsink.load(folder), jaxsink.load(saved))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_flipped_bit_of_a_tokenizer_is_named(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(resolve("mini-llada"), folder)
    data = bytearray((folder / name).read_bytes())
    for place in np.random.default_rng(0).integers(0, 8 * len(data), 50).tolist():
        one_flip(place)(data, 0, len(data))
        (folder / name).write_bytes(data)
        with pytest.raises(JaxsinkError, match=rf"{name} is damaged \(it is not what was written"):
            jaxsink.Tokenizer.load(folder)
        one_flip(place)(data, 0, len(data))
    with pytest.raises(JaxsinkError, match=f"{name} is damaged"):
        _ = jaxsink.load(folder).tokenizer
    with pytest.raises(JaxsinkError, match=f"{name} is damaged"):
        jaxsink.save(jaxsink.load(folder), tmp_path / "again")
    (folder / name).unlink()
    with pytest.raises(JaxsinkError, match=f"{name} is missing"):
        jaxsink.Tokenizer.load(folder)


def test_a_tokenizer_that_was_edited_on_purpose(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(resolve("mini-llada"), folder)
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(text)))
    model = jaxsink.load(folder, verify=False)
    jaxsink.save(model, tmp_path / "again")
    assert jaxsink.load(tmp_path / "again").tokenizer.size == model.tokenizer.size
    assert jaxsink.Tokenizer.load(folder, verify=False).size == model.tokenizer.size


def test_tokenizer_files_that_were_put_there_later_are_used(saved: Path, tmp_path: Path) -> None:
    """Errors tell people to: a model that was saved without a tokenizer has none."""
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    shutil.copy(resolve("mini-llada") / "tokenizer.json", folder)
    assert jaxsink.load(folder).tokenizer.size == jaxsink.load("mini-llada").tokenizer.size


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
