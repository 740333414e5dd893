"""Broken config.json and tokenizer files: one sentence that names the file and the key, exit code 2, nothing left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import CONFIGS, assert_refused, config_of, make, run, tokenizer_files

import jaxsink
from jaxsink import JaxsinkError

pytestmark = pytest.mark.usefixtures("quick_compilation")

# What stands in config.json instead of a sound one, and words of the sentence.
TEXTS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "cut": ('{"architectures": ["LlamaForCausalLM"], "hid', ("not valid JSON",)),
    "empty": ("", ("not valid JSON",)),
    "list": ('["LlamaForCausalLM"]', ("JSON object", "list")),
    "number": ("3", ("JSON object", "int")),
    "nested": ("[" * 100_000 + "]" * 100_000, ("not valid JSON", "recursion")),
    "nested object": ('{"a":' * 100_000 + "1" + "}" * 100_000, ("not valid JSON", "recursion")),
    "huge number": ('{"vocab_size": ' + "9" * 10_000 + "}", ("not valid JSON",)),
    "not text": (b"\xff\xfe\x00{}", ("not valid JSON",)),
    "no architecture": ("{}", ("'architectures'",)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_config_that_is_no_config(name: str, tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    text, words = TEXTS[name]
    (source / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", str(source / "config.json"), *words)


# (key, value, word of the sentence besides the key); `...` removes the key
VALUES: list[tuple[str, Any, str]] = [
    ("architectures", ["MambaForCausalLM"], "MambaForCausalLM"),
    ("architectures", ["LlamaForCausalLM", "Qwen2ForCausalLM"], "one model class"),
    ("architectures", [], "one model class"),
    ("architectures", "LlamaForCausalLM", "one model class"),
    ("architectures", [{"name": 1}], "one model class"),
    ("hidden_size", ..., "missing"),
    ("hidden_size", "24", "type int"),
    ("hidden_size", 24.0, "type int"),
    ("hidden_size", True, "type int"),
    ("hidden_size", [24], "type int"),
    ("hidden_size", 0, "from 1 to"),
    ("hidden_size", -24, "from 1 to"),
    ("hidden_size", 10**30, "from 1 to"),
    ("num_hidden_layers", 0, "from 1 to"),
    ("num_hidden_layers", 10**9, "from 1 to"),
    ("num_hidden_layers", 3000, "has only 21 tensors"),
    ("num_attention_heads", 5, "shared evenly"),
    ("num_attention_heads", 0, "from 1 to"),
    ("num_key_value_heads", 3, "kv heads"),
    ("head_dim", 7, "even head size"),
    ("vocab_size", 51, "[51, 24]"),
    ("vocab_size", -1, "from 1 to"),
    ("rms_norm_eps", "small", "type float"),
    ("rms_norm_eps", 0, "above 0"),
    ("rms_norm_eps", float("nan"), "above 0"),
    ("rms_norm_eps", float("inf"), "above 0"),
    ("rope_theta", -5.0, "1.01"),
    ("rope_theta", 10**400, "type float"),
    ("rope_scaling", "linear", "type dict"),
    ("rope_scaling", {"rope_type": ["linear"], "factor": 2.0}, "rope_type"),
    ("rope_scaling", {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}, "below"),
    ("tie_word_embeddings", "yes", "type bool"),
    ("eos_token_id", "</s>", "token id"),
    ("eos_token_id", 50, "outside the vocabulary"),
    ("bos_token_id", 1.5, "token id"),
    ("pad_token_id", 5000, "outside the vocabulary"),
    ("some_new_trick", {"deep": list(range(1000))}, "does not know the setting"),
]
OURS = {
    "architectures": "architecture",
    "eos_token_id": "eos_ids",
    "pad_token_id": "pad_id",
    "head_dim": "head size",
    "num_key_value_heads": "kv heads",
    "vocab_size": "",
    "num_attention_heads": "heads",
    "num_hidden_layers": "layers",
}


@pytest.mark.parametrize(("key", "value", "word"), VALUES)
def test_config_with_a_wrong_value(key: str, value: Any, word: str, tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    (source / "config.json").write_text(json.dumps(config_of("llama", **{key: value})))
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", str(source), word)
    assert key in result[2] or OURS[key] in result[2]
    code, out, err = run(capsys, "inspect", source)
    assert (code, out, err) == result


@pytest.mark.parametrize("family", ["llada", "mmada", "dream", "sdar"])
def test_mask_outside_the_vocabulary(family: str, tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", family)
    (source / "config.json").write_text(json.dumps(config_of(family, mask_token_id=126336)))
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", "config.json", "mask_id 126336", "outside the vocabulary of 50 rows")


HARMLESS = ("n_ctx", "partial_rotary_factor", "max_window_layers")


@pytest.mark.parametrize("family", CONFIGS)
def test_sizes_that_are_not_there(family: str, tmp_path: Path, capsys: Any) -> None:
    """Every whole number of a config is checked: none of them may be a billion."""
    source, _ = make(tmp_path / "source", family)
    for key, value in CONFIGS[family].items():
        if isinstance(value, int) and not isinstance(value, bool) and key not in HARMLESS:
            (source / "config.json").write_text(json.dumps(config_of(family) | {key: 10**9}))
            code, _, err = run(capsys, "convert", source, tmp_path / "out")
            assert (code, err.count("\n")) == (2, 1), (key, err)


GENERATION = {"list": "[]", "cut": '{"eos_token_id": ', "text": '{"eos_token_id": "</s>"}'}


@pytest.mark.parametrize("name", GENERATION)
def test_generation_config(name: str, tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    (source / "generation_config.json").write_text(GENERATION[name])
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", "generation_config.json")


TOKENIZER = {
    "tokenizer.json": {
        "cut": '{"version": "1.0", "model": {',
        "of another kind": '{"version": "1.0", "model": {"type": "Mind"}}',
        "list": "[]",
        "empty": "",
    },
    "tokenizer_config.json": {
        "cut": "{",
        "list": "[1]",
        "nested": '{"a":' * 100_000 + "1" + "}" * 100_000,
        "broken added tokens": '{"added_tokens_decoder": {"x": {}}}',
    },
    "added_tokens.json": {"wrong type": '{"<a>": "b"}', "other id": '{"w3": 7}'},
}


@pytest.mark.parametrize(("file", "name"), [(file, name) for file, kinds in TOKENIZER.items() for name in kinds])
def test_broken_tokenizer(file: str, name: str, tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "llama")
    tokenizer_files(source)
    (source / file).write_text(TOKENIZER[file][name])
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", "w3" if name == "other id" else file)
    assert ".out.partial" not in result[2]  # the sentence is about the source


def test_tokenizer_of_another_model(tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "dream")
    tokenizer_files(source, size=51, mask=40)
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", str(source), "ids up to 50", "50 vocabulary rows")
    tokenizer_files(source, mask=39)
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", str(source), "mask id 40", "39")
    tokenizer_files(source, size=30)
    result = run(capsys, "convert", source, tmp_path / "out")
    assert_refused(result, tmp_path / "out", str(source), "mask id 40", "no token")


def test_load_says_the_same(tmp_path: Path) -> None:
    source, _ = make(tmp_path / "source", "llama")
    (source / "config.json").write_text(json.dumps(config_of("llama", hidden_size=-1)))
    with pytest.raises(JaxsinkError, match="hidden_size"):
        jaxsink.load(source)
    for dtype in ("int4", "float64", "complex64", "nonsense", object()):
        with pytest.raises(JaxsinkError, match="one of float32, bfloat16, float16, int8"):
            jaxsink.load(source, dtype=dtype)
