"""Other places that weights come from and go to: meshes, PyTorch files, the hub; and settings we cannot honour."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from support.checkpoints import (
    assert_refused,
    assert_same,
    config_of,
    converted,
    make,
    random_model,
    run,
    save_torch,
    tensors_of,
    write,
)
from support.reference import transformer as reference

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.checkpoints.storage import MANIFEST

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("family", ["llama", "dream", "gpt2", "llada_moe"])
def test_load_straight_into_a_mesh(family: str, tmp_path: Path, capsys: Any) -> None:
    """8-way, and 2 x 4; what does not divide stays whole; both kinds of checkpoint, cast and not."""
    source, model = make(
        tmp_path / "source", family, **({"vocab_size": 48} if family != "gpt2" else {"n_embd": 32, "n_head": 8})
    )
    converted(capsys, source, tmp_path / "out")
    for shape in ((1, 8), (2, 4)):
        mesh = jaxsink.parallel.make_mesh(*shape)
        for path in (source, tmp_path / "out"):
            assert_same(jaxsink.load(path, mesh=mesh), model)
            loaded = jaxsink.load(path, dtype="bfloat16", mesh=mesh)
            assert_same(loaded, model.astype("bfloat16"))
            shards = {shard.data.shape for shard in loaded.layers.mlp.up.weight[...].addressable_shards}
            whole = model.layers.mlp.up.weight[...].shape
            if whole[-2] % shape[1] == 0 and family != "llada_moe":
                assert shards == {(*whole[:-2], whole[-2] // shape[1], whole[-1])}


def test_nan_is_found_on_a_mesh_too(tmp_path: Path) -> None:
    source, model = make(tmp_path / "source", "llama", vocab_size=48)
    tensors = tensors_of(model)
    tensors["model.embed_tokens.weight"][47, 1] = np.nan
    write(source, config_of("llama", vocab_size=48), tensors)
    with pytest.raises(JaxsinkError, match=r"embed_tokens.*NaN"):
        jaxsink.load(source, mesh=jaxsink.parallel.make_mesh(1, 8))


class TestTorchFiles:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")

    @pytest.mark.parametrize(("dtype", "shards"), [("float32", 1), ("bfloat16", 2), ("float16", 3)])
    def test_single_and_sharded(self, dtype: str, shards: int, tmp_path: Path, capsys: Any) -> None:
        config = config_of("sdar")
        model = random_model(config, dtype)
        source = write(tmp_path / "source", config, tensors_of(model), shards, "bin")
        report = converted(capsys, source, tmp_path / "out", "--verify")
        assert report["dtype"] == dtype
        assert_same(jaxsink.load(tmp_path / "out"), model)
        assert_same(jaxsink.load(source, mesh=jaxsink.parallel.make_mesh(1, 8)), model)

    def test_files_from_before_the_zip_format(self, tmp_path: Path, capsys: Any) -> None:
        config = config_of("gpt2")
        model = random_model(config)
        source = write(tmp_path / "source", config, tensors_of(model, ""), kind="bin")
        save_torch(tensors_of(model, ""), source / "pytorch_model.bin", _use_new_zipfile_serialization=False)
        converted(capsys, source, tmp_path / "out")
        assert_same(jaxsink.load(tmp_path / "out"), model)

    def test_safetensors_are_preferred(self, tmp_path: Path, capsys: Any) -> None:
        source, model = make(tmp_path / "source", "llama")
        (source / "pytorch_model.bin").write_bytes(b"never opened")
        converted(capsys, source, tmp_path / "out")
        assert_same(jaxsink.load(tmp_path / "out"), model)

    def test_without_torch(self, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
        source = write(
            tmp_path / "source", config_of("llama"), tensors_of(random_model(config_of("llama"))), kind="bin"
        )
        monkeypatch.setitem(sys.modules, "torch", None)
        result = run(capsys, "convert", source, tmp_path / "out")
        assert_refused(result, tmp_path / "out", "pytorch_model.bin", "pip install '.[convert]'")


# (family, key, value) that would change what the model computes; each must be refused by its name.
UNSUPPORTED = [
    ("llama", "hidden_act", "gelu"),
    ("llama", "quantization_config", {"bits": 4}),
    ("llama", "rope_scaling", {"rope_type": "longrope", "factor": 2.0}),
    ("llama", "rope_scaling", {"rope_type": "dynamic", "factor": 2.0}),
    ("llama", "rope_scaling", {"rope_type": "linear"}),
    ("llama", "rope_scaling", {"rope_type": "linear", "factor": 0.5}),
    ("llama", "rope_scaling", {"rope_type": "yarn", "factor": 2.0, "mscale": 0.7}),
    ("llama", "rope_scaling", {"rope_type": "yarn", "factor": 2.0, "truncate": False}),
    ("llama", "rope_parameters", {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}),
    ("llama", "rope_interleaved", True),
    ("llama", "rope_theta", 0.0),
    ("llama", "partial_rotary_factor", 0.5),
    ("llama", "add_cross_attention", True),
    ("llama", "is_encoder_decoder", True),
    ("llama", "pruned_heads", {"0": [1]}),
    ("llama", "logit_scale", 0.5),
    ("mistral", "layer_types", ["full_attention", "sliding_attention"]),
    ("qwen2", "use_mrope", True),
    ("qwen2", "layer_types", ["full_attention", "sliding_attention"]),
    ("qwen2", "layer_types", ["full_attention"]),
    ("qwen3", "layer_types", ["full_attention", "linear_attention"]),
    ("dream", "attention_bias", False),
    ("sdar", "shared_expert_intermediate_size", 8),
    ("llada", "alibi", True),
    ("llada", "attention_layer_norm", True),
    ("llada", "block_type", "sequential"),
    ("llada", "include_bias", True),
    ("llada", "input_emb_norm", True),
    ("llada", "layer_norm_type", "default"),
    ("llada", "scale_logits", True),
    ("mmada", "rope", False),
    ("llada_moe", "moe_router_score_function", "sigmoid"),
    ("llada_moe", "norm_topk_prob", True),
    ("llada_moe", "moe_layer_freq", [1, 0]),
    ("llada_moe", "routed_scaling_factor", 2.5),
    ("llada_moe", "clip_qkv", 8.0),
    ("gpt2", "activation_function", "relu"),
    ("gpt2", "scale_attn_by_inverse_layer_idx", True),
    ("gpt2", "scale_attn_weights", False),
]


@pytest.mark.parametrize(
    ("family", "key", "value"), UNSUPPORTED, ids=[f"{f}-{k}-{i}" for i, (f, k, _) in enumerate(UNSUPPORTED)]
)
def test_settings_that_cannot_be_honoured(family: str, key: str, value: Any, tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", family)
    (source / "config.json").write_text(json.dumps(config_of(family) | {key: value}))
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", str(source / "config.json"), key)
    with pytest.raises(JaxsinkError, match=key):
        jaxsink.load(source)


def test_a_setting_can_be_ignored_by_name(tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "llama")
    (source / "config.json").write_text(json.dumps(config_of("llama") | {"fancy": [1], "fancier": 2}))
    result = run(capsys, "convert", source, tmp_path / "out", "--ignore-setting", "fancy")
    assert_refused(result, tmp_path / "out", "--ignore-setting fancier")
    converted(capsys, source, tmp_path / "out", "--ignore-setting", "fancy", "--ignore-setting", "fancier")
    assert_same(jaxsink.load(tmp_path / "out"), model)


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("mistral", {"sliding_window": ...}, {"window": 4096}),
        ("mistral", {"sliding_window": None}, {"window": None}),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
            {"window": 9, "window_layers": (False, True)},
        ),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 9}, {"window": None, "window_layers": None}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 9, "max_window_layers": 0}, {"window": None}),
        ("qwen3", {"head_dim": ...}, {"head_dim": 128}),
        ("llama", {"rope_parameters": {"rope_theta": 7e5}, "rope_theta": ...}, {"rope_theta": 7e5}),
        ("llama", {"num_key_value_heads": None}, {"kv_heads": 4}),
        ("llama", {"eos_token_id": [4, 5]}, {"eos_ids": (4, 5)}),
        ("llada", {"embedding_size": 60}, {"vocab": 60, "bos_id": None}),
        ("llada", {"bos_token_id": 7, "eot_token_id": 8}, {"bos_id": 7, "eot_id": 8}),
        ("llada", {"mlp_hidden_size": None}, {"mlp_width": 96}),
        ("llada", {"n_kv_heads": None}, {"kv_heads": 4}),
        ("llada", {"n_kv_heads": None, "multi_query_attention": False}, {"kv_heads": 4}),
        ("llada", {"n_kv_heads": 2, "multi_query_attention": None}, {"kv_heads": 2}),
        ("mmada", {"n_kv_heads": 1, "multi_query_attention": True}, {"kv_heads": 1}),
        ("gpt2", {"n_inner": 40}, {"mlp_width": 40, "tied": True}),
    ],
)
def test_what_settings_mean(family: str, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    """Defaults of the original configuration classes, and keys with several spellings."""
    from jaxsink_converters.families import family_of
    from jaxsink_converters.table import Settings

    values = config_of(family, **changes)
    config = family_of(values, "test").configure(Settings(values, "test"))
    assert {name: getattr(config, name) for name in expected} == expected


def test_llada_whose_heads_share_one_key(tmp_path: Path, capsys: Any) -> None:
    """`multi_query_attention`, in the words of the original: one kv head, if `n_kv_heads` does not say something else."""
    source, model = make(tmp_path / "source", "llada", multi_query_attention=True, n_kv_heads=None)
    config = model.config
    assert config.kv_heads == 1 and model.layers.attention.k.weight[...].shape == (2, 6, 24)
    converted(capsys, source, tmp_path / "out", "--verify")
    tokens = np.random.default_rng(4).integers(4, 40, (2, 9))
    mask = np.arange(9) >= np.array([[0], [3]])
    logits, maps = reference.run(config, model.params, tokens, mask)
    for loaded in (jaxsink.load(source), jaxsink.load(tmp_path / "out")):
        assert_same(loaded, model)
        out = jaxsink.forward(loaded, tokens, mask, record=jaxsink.record.maps())
        np.testing.assert_allclose(np.asarray(out.logits)[mask], logits[mask], atol=1e-4)
        np.testing.assert_allclose(out.record, maps, atol=1e-5)


@pytest.mark.parametrize(("shares", "count"), [(True, 4), (True, 2), (False, 2), (False, 1)])
def test_kv_heads_that_contradict_each_other(shares: bool, count: int, tmp_path: Path) -> None:
    source, _ = make(tmp_path / "source", "llada")
    changed = config_of("llada", multi_query_attention=shares, n_kv_heads=count)
    (source / "config.json").write_text(json.dumps(changed))
    words = rf"'multi_query_attention' = {shares} stands for .*, but 'n_kv_heads' is {count}"
    with pytest.raises(JaxsinkError, match=words):
        jaxsink.load(source)


class Hub:
    """A hub that holds one repository, and remembers what was asked of it."""

    def __init__(self, folder: Path, names: list[str]):
        self.folder, self.names, self.asked = folder, names, []

    def model_info(self, repository: str, revision: str | None = None, timeout: float | None = None) -> Any:
        self.asked.append((repository, revision))
        return SimpleNamespace(sha="c0ffee" * 6, siblings=[SimpleNamespace(rfilename=name) for name in self.names])

    def snapshot_download(self, repository: str, revision: str, allow_patterns: list[str]) -> str:
        self.asked.append((repository, revision, allow_patterns))
        return str(self.folder)


def use(monkeypatch: Any, hub: Any) -> None:
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)


def test_hub_pins_the_commit(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    source, model = make(tmp_path / "cache", "llama")
    hub = Hub(source, ["config.json", "model.safetensors", "pytorch_model.bin", "original/consolidated.00.pth"])
    use(monkeypatch, hub)
    monkeypatch.chdir(tmp_path)
    report = converted(capsys, "someone/tiny-llama", tmp_path / "out", "--revision", "main")
    assert report["revision"] == "c0ffee" * 6
    recorded = json.loads((tmp_path / "out" / MANIFEST).read_text())["source"]
    assert (recorded["path"], recorded["revision"]) == ("someone/tiny-llama", "c0ffee" * 6)
    assert hub.asked[0] == ("someone/tiny-llama", "main")
    assert hub.asked[1][:2] == ("someone/tiny-llama", "c0ffee" * 6)
    patterns = hub.asked[1][2]
    assert "model*.safetensors" in patterns
    assert not any(pattern.endswith(".bin") for pattern in patterns)  # the same weights are not fetched twice
    assert_same(jaxsink.load(tmp_path / "out"), model)


def test_hub_without_network(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    class Offline(Hub):
        def model_info(self, repository: str, revision: str | None = None, timeout: float | None = None) -> Any:
            raise ConnectionError("name resolution failed\nwith a second line")

    use(monkeypatch, Offline(tmp_path, []))
    monkeypatch.chdir(tmp_path)
    result = run(capsys, "convert", "someone/tiny-llama", tmp_path / "out")
    assert_refused(result, tmp_path / "out", "someone/tiny-llama", "name resolution failed", "local path")


def test_revision_is_for_the_hub(tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    result = run(capsys, "convert", source, tmp_path / "out", "--revision", "main")
    assert_refused(result, tmp_path / "out", "--revision", str(source))
