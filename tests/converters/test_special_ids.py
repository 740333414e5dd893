"""Special tokens come from the checkpoint's own files, in a fixed order; contradictions are errors or notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import assert_refused, converted, make, run, tokenizer_files

import jaxsink
from jaxsink import JaxsinkError

pytestmark = pytest.mark.usefixtures("quick_compilation")


def add_tokens(folder: Path, declared: dict[str, str] | None = None, **texts: int) -> None:
    """A tokenizer of w0 … w49, of which some have other texts; `declared` goes into tokenizer_config.json."""
    tokenizer_files(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    ids = {index: text for text, index in texts.items()}
    vocab = tokenizer["model"]["vocab"].items()
    tokenizer["model"]["vocab"] = {ids.get(index, text): index for text, index in vocab}
    path.write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(declared or {}))


def generation(folder: Path, **ids: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps(ids))


@pytest.mark.parametrize("family", ["llada", "mmada", "llada_moe", "dream", "sdar", "fast_dllm"])
class TestMask:
    def test_config_first(self, family: str, tmp_path: Path) -> None:
        source, _ = make(tmp_path / "source", family, mask_token_id=5)
        assert jaxsink.load(source).config.mask_id == 5
        add_tokens(source, **{"<|mask|>": 6})  # a name alone contradicts nobody
        assert jaxsink.load(source).config.mask_id == 5

    def test_then_the_generation_settings(self, family: str, tmp_path: Path) -> None:
        source, _ = make(tmp_path / "source", family, mask_token_id=...)
        generation(source, mask_token_id=7)
        assert jaxsink.load(source).config.mask_id == 7

    def test_then_the_tokenizer(self, family: str, tmp_path: Path, capsys: Any) -> None:
        source, _ = make(tmp_path / "source", family, mask_token_id=...)
        add_tokens(source, {"mask_token": "w8"}, **{"<|mask|>": 9})
        assert jaxsink.load(source).config.mask_id == 8
        for text in ("<|mdm_mask|>", "<|mask|>", "<|MASK|>", "|<MASK>|"):
            add_tokens(source, **{text: 9})
            assert jaxsink.load(source).config.mask_id == 9
        converted(capsys, source, tmp_path / "out")
        assert jaxsink.load(tmp_path / "out").config.mask_id == 9

    def test_then_the_user(self, family: str, tmp_path: Path, capsys: Any) -> None:
        source, _ = make(tmp_path / "source", family, mask_token_id=...)
        result = run(capsys, "convert", source, tmp_path / "out")
        assert_refused(result, tmp_path / "out", str(source), "names the mask token", "--mask-id", "mask_id=")
        with pytest.raises(JaxsinkError, match=r"no file of .* names the mask token"):
            jaxsink.load(source)
        assert jaxsink.load(source, mask_id=11).config.mask_id == 11
        converted(capsys, source, tmp_path / "out", "--mask-id", "11")
        assert jaxsink.load(tmp_path / "out", mask_id=11).config.mask_id == 11
        with pytest.raises(JaxsinkError, match="has mask id 11, not 12: leave mask_id out"):
            jaxsink.load(tmp_path / "out", mask_id=12)
        code, out, _ = run(capsys, "inspect", source, "--mask-id", "11", "--json")
        assert code == 0 and json.loads(out)["config"]["mask_id"] == 11
        with pytest.raises(JaxsinkError, match=r"config\.json: mask_id 50 is outside the vocabulary of 50 rows"):
            jaxsink.load(source, mask_id=50)
        with pytest.raises(JaxsinkError, match=r"mask_id must be a whole number of 0 or more or None, not 1\.5"):
            jaxsink.load(source, mask_id=1.5)  # pyright: ignore[reportArgumentType]

    def test_the_user_cannot_contradict_the_files(self, family: str, tmp_path: Path) -> None:
        source, _ = make(tmp_path / "source", family)
        assert jaxsink.load(source, mask_id=40).config.mask_id == 40
        with pytest.raises(JaxsinkError, match=r"config\.json has mask id 40, not 41: leave mask_id out"):
            jaxsink.load(source, mask_id=41)
        source, _ = make(tmp_path / "source", family, mask_token_id=...)
        add_tokens(source, **{"<|mask|>": 9})
        with pytest.raises(JaxsinkError, match=r"the tokenizer in .* has mask id 9, not 41"):
            jaxsink.load(source, mask_id=41)

    def test_files_that_disagree(self, family: str, tmp_path: Path) -> None:
        source, _ = make(tmp_path / "source", family)
        generation(source, mask_token_id=39)
        with pytest.raises(
            JaxsinkError, match=r"config\.json has mask id 40, and .*generation_config\.json declares 39"
        ):
            jaxsink.load(source)
        generation(source, mask_token_id=None)
        add_tokens(source, {"mask_token": "w38"})
        with pytest.raises(JaxsinkError, match=r"mask id 40, and the tokenizer in .* declares 38"):
            jaxsink.load(source)


def test_a_model_without_masks(tmp_path: Path) -> None:
    source, _ = make(tmp_path / "source", "llama")
    add_tokens(source, {"mask_token": "w8"})
    assert not jaxsink.load(source).config.is_diffusion
    with pytest.raises(JaxsinkError, match="holds a llama model, which has no mask token"):
        jaxsink.load(source, mask_id=8)


# (family, vocabulary rows, changes of config.json) -> mask, bos, eot where there is no tokenizer file
PUBLISHED = [
    ("llada", 126464, {"mask_token_id": 126336, "eos_token_id": 126081, "pad_token_id": ...}, (126336, 126080, 126348)),
    ("llada", 126464, {"mask_token_id": 5, "eos_token_id": 126081, "pad_token_id": ...}, (5, None, None)),
    ("llada", 155136, {"mask_token_id": 5, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1}, (5, 0, None)),
    ("llada_moe", 157184, {"mask_token_id": ..., "eos_token_id": 156892}, (156895, None, None)),
    ("sdar", 151936, {"mask_token_id": ..., "eos_token_id": 151643}, (151669, None, None)),
    ("fast_dllm", 151936, {"mask_token_id": ..., "eos_token_id": 151645}, (151665, None, None)),
]


@pytest.mark.parametrize(("family", "rows", "changes", "expected"), PUBLISHED)
def test_the_published_vocabulary_is_the_last_resort(
    family: str, rows: int, changes: dict[str, Any], expected: tuple[int | None, ...], tmp_path: Path
) -> None:
    sizes = {"embedding_size": rows} if family == "llada" else {}
    width = "d_model" if family == "llada" else "hidden_size"
    source, _ = make(tmp_path / "source", family, vocab_size=rows, **sizes, **changes, **{width: 8})
    config = jaxsink.load(source).config
    assert (config.mask_id, config.bos_id, config.eot_id) == expected
    if family == "sdar":  # another vocabulary of the same size
        source, _ = make(tmp_path / "source", family, vocab_size=rows, **changes | {"eos_token_id": 2}, **{width: 8})
        with pytest.raises(JaxsinkError, match="names the mask token"):
            jaxsink.load(source)


def test_every_end_token_counts(tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "sdar", eos_token_id=13)
    generation(source, eos_token_id=[15, 13], bos_token_id=12, pad_token_id=14)
    config = jaxsink.load(source).config
    assert (config.eos_ids, config.bos_id, config.pad_id) == ((13, 15), 12, 14)
    add_tokens(source, {"eos_token": "w17"})
    assert jaxsink.load(source).config.eos_ids == (13, 15, 17)
    report = converted(capsys, source, tmp_path / "out")
    assert report["warnings"] == [f"the tokenizer in {source} declares eos id 17, besides [13, 15] of the configs."]
    generation(source, eos_token_id=99)  # the original has rows to spare, this model has not
    assert jaxsink.load(source).config.eos_ids == (13, 17)


def test_the_tokenizer_names_the_tokens_of_prompts(tmp_path: Path, capsys: Any) -> None:
    """bos and pad as the tokenizer writes them: Dream-Coder's first token, DiffuCoder's padding."""
    source, _ = make(tmp_path / "source", "dream", bos_token_id=20, pad_token_id=21)
    add_tokens(source, {"bos_token": "w22", "pad_token": "w23", "eos_token": "w3"}, **{"<|im_end|>": 24})
    config = jaxsink.load(source).config
    assert (config.bos_id, config.pad_id, config.eot_id) == (22, 23, 24)
    report = converted(capsys, source, tmp_path / "out")
    assert report["warnings"] == [
        f"the tokenizer in {source} has {name} id {ours}, and {source / 'config.json'} {theirs}; {ours} is used."
        for name, ours, theirs in (("bos", 22, 20), ("pad", 23, 21))
    ]
    code, out, _ = run(capsys, "inspect", source, "--json")
    assert code == 0 and json.loads(out)["source"]["notes"] == report["warnings"]


def test_ids_of_llada_by_its_tokenizer(tmp_path: Path) -> None:
    source, _ = make(tmp_path / "source", "llada")
    add_tokens(source, {"bos_token": "w30"}, **{"<|eot_id|>": 31})
    config = jaxsink.load(source).config
    assert (config.bos_id, config.eot_id) == (30, 31)


# Other vocabularies under known architectures: (family, ids of config.json, tokens that the tokenizer declares)
FOREIGN = {
    "iLLaDA": ("llada", {"mask": 5, "eos": 2, "bos": 0, "pad": 1}, {"mask_token": "w5", "eos_token": "w2"}),
    "iLLaDA by its tokenizer": ("llada", {"mask": ..., "eos": 2, "bos": 0, "pad": 1}, {"mask_token": "w5"}),
    "Dream-Coder": ("dream", {"mask": 5, "eos": 2, "bos": 4, "pad": 1}, {"bos_token": "w4"}),
    "Dream-Coder by its tokenizer": ("dream", {"mask": 5, "eos": 2, "bos": ..., "pad": 1}, {"bos_token": "w4"}),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_models_of_known_code_with_ids_of_their_own(name: str, tmp_path: Path, capsys: Any) -> None:
    """The mask is filled and never written, texts end at their own eos, and prompts begin with their own bos."""
    family, ids, declared = FOREIGN[name]
    source, _ = make(tmp_path / "source", family, **{f"{key}_token_id": value for key, value in ids.items()})
    add_tokens(source, declared)
    converted(capsys, source, tmp_path / "out")
    for model in (jaxsink.load(source), jaxsink.load(tmp_path / "out")):
        config = model.config
        assert (config.mask_id, config.eos_ids, config.pad_id) == (5, (2,), 1)
        assert config.bos_id == (0 if family == "llada" else 4)
        out = jaxsink.generate(model, [[7, 8, 9], [6, 5, 9]], jaxsink.sampler_for(model).with_length(8))
        assert not (out.tokens == 5).any() and (out.committed_at[:, 3:] >= 0).all() and out.committed_at[1, 1] >= 0


def test_a_broken_tokenizer_does_not_keep_the_weights_away(tmp_path: Path, capsys: Any) -> None:
    source, _ = make(tmp_path / "source", "dream", eos_token_id=3)
    (source / "tokenizer.json").write_text("{}")
    assert jaxsink.load(source).config.mask_id == 40
    code, out, _ = run(capsys, "inspect", source, "--json")
    assert code == 0 and "not a tokenizer that can be read" in json.loads(out)["source"]["notes"][0]
    source, _ = make(tmp_path / "source", "dream", mask_token_id=...)
    with pytest.raises(JaxsinkError, match="not a tokenizer that can be read"):
        jaxsink.load(source)


def test_settings_can_be_ignored_wherever_a_model_is_read(tmp_path: Path, capsys: Any) -> None:
    source, model = make(tmp_path / "source", "llama")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"fancy": 1}))
    commands = {"inspect": [], "generate": ["--ids", "1,2", "--tokens", "2"], "convert": [tmp_path / "out"]}
    for command, options in commands.items():
        result = run(capsys, command, source, *options)
        assert_refused(result, tmp_path / "out", "--ignore-setting fancy", "ignore_settings=['fancy']")
        assert run(capsys, command, source, *options, "--ignore-setting", "fancy")[0] == 0
    with pytest.raises(JaxsinkError, match=r"in Python, ignore_settings=\['fancy'\]"):
        jaxsink.load(source)
    for ignored in (["fancy"], "fancy", {"fancy"}):
        assert jaxsink.load(source, ignore_settings=ignored).config == model.config


@pytest.mark.parametrize("command", ["convert", "inspect", "generate", "evaluate", "plan", "study"])
def test_the_options_of_every_command(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        run(capsys, command, "--help")
    shown = capsys.readouterr().out
    assert "--ignore-setting KEY" in shown and "--mask-id ID" in shown
