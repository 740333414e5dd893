"""Files at random: whatever a checkpoint, a tokenizer or a run says, the answer is a model, figures or one sentence.

Every test damages a sound file in two ways: bytes anywhere, and values of other kinds in the places of its JSON. It must
end in time, without a panic, a traceback, or memory that a value asked for.

JAXSINK_FUZZ=SECONDS shares that time among the tests, instead of the few examples that a quick run has: each stops by itself
when its part is over, says how many it tried, and a failure is shrunk and shown however long that takes.
"""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.checkpoints import config_of, make, random_model
from support.damage import Edit, damage, edits, places
from support.fuzzing import fuzzed
from support.made_evaluation import ANSWER, SPEED, make_evaluation
from support.made_evaluation import MANIFEST as MANIFEST_OF_A_RUN

import jaxsink
from jaxsink.checkpoints.integrity import sealed
from jaxsink.checkpoints.load import describe_checkpoint
from jaxsink.checkpoints.storage import MANIFEST, Reader
from jaxsink.errors import JaxsinkError
from jaxsink.evals.prepare import sum_up
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.record_file import flatten, read_record
from jaxsink.tasks.vocabulary import tokenizer as task_tokenizer
from jaxsink.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quick_compilation")
MORE_MEMORY = 2 << 30  # bytes that a test may take beyond what the process has
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [0, -1, 1, 2, 3, 7, 10**9, 10**18, 10**40, -(10**18), 0.0, 1.5, 1e9, 1e308, float("nan"), float("inf")]
    ),
    st.sampled_from(["", "causal", "foo", "\x00", "💥" * 50, "../../etc/passwd"]),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-3, 300), max_size=3),
    st.dictionaries(st.sampled_from(["kind", "factor", "count", "type"]), st.integers(-3, 300), max_size=2),
)
CHANGE = st.tuples(st.integers(0, 10**6), st.sampled_from(["set", "remove", "add"]), VALUES)
CHANGES = st.lists(CHANGE, min_size=1, max_size=3)


def changed(value: Any, changes: list[tuple[int, str, Any]]) -> Any:
    """A copy with other values in some places."""
    value = json.loads(json.dumps(value))
    for number, what, new in changes:
        known = list(places(value))
        if not known:
            return value
        *outer, last = known[number % len(known)]
        node = value
        for key in outer:
            node = node[key]
        if what == "set":
            node[last] = new
        elif what == "remove":
            del node[last]
        elif isinstance(node, dict):
            node["strange"] = new
        else:
            node.append(new)
    return value


@contextmanager
def bounded() -> Iterator[None]:
    """With so much memory more at most: what asks for it gets an error, and the test fails."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + MORE_MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def answer(call: Callable[[], Any]) -> Any:
    """What a call gives, or None if it says what is wrong in one sentence; everything else is a failure."""
    try:
        with bounded():
            return call()
    except JaxsinkError as error:
        text = str(error)
        if "\n" in text or len(text) > 1500:
            raise AssertionError(text) from error
        return None


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "model"
    jaxsink.save(random_model(config_of("llama", vocab_size=48)), path)
    return path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("source") / "model", "llama")[0]


@fuzzed
@given(CHANGES)
def test_configurations(changes: list[tuple[int, str, Any]]) -> None:
    sound = jaxsink.PRESETS["llada-8b-instruct"].to_dict()
    config = answer(lambda: ModelConfig.from_dict(changed(sound, changes)))
    if config is not None:
        assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        jaxsink.abstract(config)


@fuzzed
@given(CHANGES)
def test_manifests(saved: Path, changes: list[tuple[int, str, Any]]) -> None:
    """A manifest that is accepted fits the arrays that are there. Its seal fits, or its fields would not be looked at."""
    with copied(saved, MANIFEST) as (folder, manifest):
        values = changed(json.loads(manifest.read_text()), changes)
        fits = isinstance(values.get("checksums"), dict)
        manifest.write_text(json.dumps(sealed(values) if fits else values))
        reader = answer(lambda: Reader(folder))
        if reader is not None and answer(lambda: reader.check_arrays() or True):
            model = answer(lambda: jaxsink.load(folder))
            assert model is None or model.config.layers == 2


@fuzzed
@given(edits)
def test_bytes_of_manifests(saved: Path, changes: list[Edit]) -> None:
    with copied(saved, MANIFEST) as (folder, manifest):
        manifest.write_bytes(damage(manifest.read_bytes(), changes))
        answer(lambda: jaxsink.load(folder))


@pytest.mark.slow
@fuzzed
@given(edits, st.integers(0, 10**6))
def test_bytes_of_weights(saved: Path, changes: list[Edit], which: int) -> None:
    """Whatever loads is what was saved."""
    files = sorted(str(path.relative_to(saved)) for path in (saved / "weights").rglob("*") if path.is_file())
    with copied(saved, files[which % len(files)]) as (folder, file):
        file.write_bytes(damage(file.read_bytes(), changes))
        model = answer(lambda: jaxsink.load(folder))
        if model is not None:
            sound = jaxsink.load(saved)
            assert all((a == b).all() for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(sound), strict=True))


@fuzzed
@given(CHANGES, st.sampled_from(["config.json", "model.safetensors.index.json"]))
def test_hugging_face_settings(source: Path, changes: list[tuple[int, str, Any]], name: str) -> None:
    if name != "config.json":
        index = {"weight_map": dict.fromkeys(("a", "b"), "model.safetensors")}
        with copied(source, name) as (folder, file):
            file.write_text(json.dumps(changed(index, changes)))
            (folder / "model.safetensors").rename(folder / "model-1.safetensors")
            answer(lambda: describe_checkpoint(folder))
        return
    with copied(source, name) as (folder, file):
        file.write_text(json.dumps(changed(json.loads(file.read_text()), changes)))
        answer(lambda: describe_checkpoint(folder))


TOKENIZER = Path(jaxsink.__file__).parent / "tasks" / "tokenizer" / "tokenizer.json"


@fuzzed
@given(CHANGES, st.booleans(), edits)
def test_tokenizers(
    tmp_path_factory: pytest.TempPathFactory, changes: Any, as_bytes: bool, byte_edits: list[Edit]
) -> None:
    folder = tmp_path_factory.mktemp("tokenizer")
    sound = json.loads(TOKENIZER.read_text(encoding="utf-8"))
    sound["model"]["vocab"] = dict(list(sound["model"]["vocab"].items())[:20]) | {"<|unk|>": 20}
    if as_bytes:
        (folder / "tokenizer.json").write_bytes(damage(json.dumps(sound).encode(), byte_edits))
    else:
        (folder / "tokenizer.json").write_text(json.dumps(changed(sound, changes)))
    tokenizer = answer(lambda: Tokenizer.load(folder))
    if tokenizer is not None:
        ids = answer(lambda: tokenizer.encode("Tom has 11 flowers. 💥"))
        answer(lambda: tokenizer.decode(ids or [0, 1]))
    shutil.rmtree(folder)


ONLY_CONDITION = list(places(MANIFEST_OF_A_RUN)).index(("conditions", "K = 0"))


@fuzzed
@given(CHANGES, st.sampled_from(["manifest", "results", "speed"]))
@example([(ONLY_CONDITION, "remove", None)], "manifest")
@example([(0, "set", None)], "manifest")  # no exam
def test_results(tmp_path_factory: pytest.TempPathFactory, changes: Any, which: str) -> None:
    """Lines whose checksum is right, so that only their values are wrong."""
    folder = tmp_path_factory.mktemp("run")
    parts = {"manifest": MANIFEST_OF_A_RUN, "results": ANSWER, "speed": SPEED}
    parts[which] = changed(parts[which], changes)
    make_evaluation(folder, **parts)
    results = answer(lambda: sum_up(folder, "task", task_tokenizer()))
    if results is not None:  # what is accepted fits
        line, speed = parts["results"], parts["speed"]
        exam, known = parts["manifest"]["exam"], parts["manifest"]["conditions"]
        assert line["condition"] in known and is_count(line["index"]) and is_count(exam["questions"])
        assert all(is_count(line[name]) for name in ("steps", "tokens") if name in line)
        assert all(isinstance(line[name], str) for name in ("task_id", "found") if name in line)
        sinks = line.get("sinks")
        assert sinks is None or all(map(is_count, (*sinks["layers"], *sinks["tokens"].values(), sinks["total"])))
        assert isinstance(speed["first"], bool) and is_count(speed["tokens"])
        assert all(0 <= speed[name] < 1e16 for name in ("seconds", "questions"))
    shutil.rmtree(folder)


ARRAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "gone": lambda v: None,
    "NaN": lambda v: np.full(v.shape, np.nan),
    "one number": lambda v: np.int64(3),
    "empty": lambda v: v[:0] if v.ndim else np.zeros(0),
    "a text": lambda v: np.array("x[/b]"),
    "texts": lambda v: np.full(v.shape, "\ud800"),
    "half": lambda v: v[..., : v.shape[-1] // 2] if v.ndim else v,
    "negative": lambda v: -np.nan_to_num(v).astype(int) - 5 if v.dtype.kind != "U" else np.array("-"),
    "huge": lambda v: v + 10**9 if v.dtype.kind in "if" else np.array("y" * 10**6),
    "another axis": lambda v: v[None],
    "an axis less": lambda v: v[0] if v.ndim and len(v) else v,
    "the other way round": lambda v: v.T,
    "truth values": lambda v: v != v.flat[0] if v.size else v.astype(bool),
    "JSON": lambda v: np.array("3"),
    "floats": lambda v: v.astype(float) if v.dtype.kind != "U" else np.zeros(v.shape),
}
CHANGED = st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(ARRAYS)))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "sound.npz"
    what = "received,by_query,lens,top"
    jaxsink.respond("mini-llada", "Mia has 4 apples.", tokens=4, steps=4, record=path, record_what=what)
    return path


@fuzzed
@given(st.lists(CHANGED, min_size=1, max_size=2), st.booleans(), edits)
def test_recorded_generations(
    recorded: Path, changes: list[tuple[int, str]], as_bytes: bool, byte_edits: list[Edit]
) -> None:
    path = recorded.with_name("damaged.npz")
    if as_bytes:
        path.write_bytes(damage(recorded.read_bytes(), byte_edits))
    else:
        with np.load(recorded) as file:
            arrays = {name: file[name] for name in file.files}
        for number, how in changes:
            name = sorted(arrays)[number % len(arrays)]
            arrays[name] = ARRAYS[how](arrays[name])
            arrays = {name: value for name, value in arrays.items() if value is not None}
        np.savez(path, allow_pickle=False, **arrays)
    if answer(lambda: jaxsink.report.report(path, out=path.with_suffix(".html"))) is not None:
        generation, texts, settings = read_record(path)
        assert generation.tokens.dtype == generation.committed_at.dtype == np.int32 and generation.mask.any()
        assert np.shape(texts) == generation.tokens.shape and isinstance(settings, dict)
        assert all(np.isfinite(leaf).all() for leaf in flatten(generation.record).values())


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= 1 << 53


@contextmanager
def copied(sound: Path, name: str) -> Iterator[tuple[Path, Path]]:
    """(a copy of a directory, the file in it that is to be damaged), gone afterwards."""
    folder = sound.with_name("damaged")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sound, folder)
    try:
        yield folder, folder / name
    finally:
        shutil.rmtree(folder)
