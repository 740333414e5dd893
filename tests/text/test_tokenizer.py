"""Tokenizer files in their various shapes, with small vocabularies made on the spot."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers

from jaxsink.errors import JaxsinkError
from jaxsink.text.tokenizer import Tokenizer, check_special_ids

HEADER = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
SPECIALS = ["<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", *HEADER]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ċ", "Ċ"), ("1", "2")]


def _vocab() -> dict[str, int]:
    """All 256 bytes as characters, then one token for each merge."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    return {text: i for i, text in enumerate([*letters, *(left + right for left, right in MERGES)])}


def _write(folder, declared=None, specials=SPECIALS, **files):
    """A directory with tokenizer.json, tokenizer_config.json and further JSON files."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=_vocab(), merges=MERGES))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(specials)
    backend.enable_truncation(3)  # left over from training, as in some published files
    backend.enable_padding(length=8)
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    for name, content in {"tokenizer_config": declared or {}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return backend


def _write_merges(folder, vocab=None, **files):
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in MERGES), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    for name, content in {"vocab": vocab or _vocab(), **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


LLADA = {"bos_token": "<|startoftext|>", "eos_token": {"content": "<|endoftext|>"}, "pad_token": "<|endoftext|>"}


@pytest.fixture
def llada(tmp_path) -> Tokenizer:
    _write(tmp_path, LLADA)
    return Tokenizer.load(tmp_path)


def _config(tokenizer: Tokenizer, **changes) -> SimpleNamespace:
    """A model config that agrees with the tokenizer, but for the changes."""
    known = tokenizer.special
    ids = {f"{name}_id": known.get(name) for name in ("bos", "pad", "mask", "eot")}
    return SimpleNamespace(**{"vocab": tokenizer.size, "eos_ids": (known["eos"],), **ids, **changes})


@pytest.mark.parametrize("text", ["hello world\n\n", "  naïve 日本語 😀\t\r\n", "x = {'a': 12}  # ok", "", " "])
def test_round_trip(llada, text):
    assert llada.decode(llada.encode(text)) == text
    assert llada.encode_batch([text, "hello"]) == [llada.encode(text), llada.encode("hello")]


def test_encode(llada):
    vocab = _vocab()
    assert llada.encode("hello") == [vocab["hello"]]  # neither truncated nor padded
    assert len(llada.encode("hello hello hello")) == 5
    mask = llada.special["mask"]
    assert llada.encode("hello<|mdm_mask|>") == [vocab["hello"], mask]
    assert llada.size == len(vocab) + len(SPECIALS)


def test_decode(llada):
    ids = np.array([_vocab()["hello"], llada.special["mask"], 10**6])
    assert llada.decode(ids) == "hello"
    assert llada.decode(ids, skip_special=False) == "hello<|mdm_mask|>"


def test_token_is_readable(llada):
    vocab = _vocab()
    assert llada.token(vocab["hello"]) == "hello"
    assert llada.token(vocab["Ġw"]) == "␣w"
    assert llada.token(vocab["ĊĊ"]) == "\\n\\n"
    assert llada.token(np.int32(llada.special["mask"])) == "<|mdm_mask|>"
    assert [llada.token(i) for i in llada.encode("é")] == ["<0xC3>", "<0xA9>"]
    assert llada.token(vocab["Ā"]) == "\\u0000"  # the byte 0
    assert llada.token(10**6) == "<id 1000000>"
    assert llada.token(-1) == "<id -1>"


def test_token_of_sentencepiece(tmp_path):
    vocab = {"<unk>": 0, "<0xE2>": 1, "<0x0A>": 2, "▁the": 3}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert [tokenizer.token(i) for i in range(1, 4)] == ["<0xE2>", "\\n", "␣the"]


def test_special_and_declared(llada):
    ids = dict(zip(SPECIALS, range(len(_vocab()), llada.size), strict=True))
    start, end, mask, eot = (ids[t] for t in ("<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", "<|eot_id|>"))
    assert llada.special == {"bos": start, "eos": end, "pad": end, "mask": mask, "eot": eot}
    assert llada.declared == {"bos": start, "eos": end, "pad": end}


def test_special_from_other_files(tmp_path):
    _write(
        tmp_path,
        special_tokens_map={"bos_token": {"content": "<|startoftext|>"}},
        generation_config={"eos_token_id": [7, 8]},
        config={"eos_token_id": 9, "pad_token_id": 5},
        specials=["<|startoftext|>"],
    )
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.special == {"bos": len(_vocab()), "eos": 7, "pad": 5}
    assert tokenizer.declared == {"bos": len(_vocab())}


def test_chat(llada):
    assert llada.template == "llada"
    text = "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nhello<|eot_id|>"
    answer = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    assert llada.decode(llada.chat(" hello "), skip_special=False) == text + answer
    assert llada.chat([{"role": "user", "content": "hello"}], add_generation_prompt=False) == llada.encode(text)
    assert llada.chat("hello", template="mmada") == llada.encode((text + answer).replace("\n\n", "\n"))


def test_chat_needs_the_template_and_its_tokens(tmp_path, llada):
    with pytest.raises(JaxsinkError, match=r"needs the token <\|im_start\|>"):
        llada.chat("hello", template="qwen3")
    _write(tmp_path / "plain", specials=["<|endoftext|>"])
    with pytest.raises(JaxsinkError, match=r"no chat template is known .* one of dream, llada"):
        Tokenizer.load(tmp_path / "plain").chat("hello")


def test_template_by_family_config_and_text(tmp_path):
    folder = tmp_path / "m"
    _write(folder, LLADA, config={"model_type": "mmada"})
    assert Tokenizer.load(folder).template == "mmada"
    assert Tokenizer.load(folder, family="llada").template == "llada"
    _write(folder, {**LLADA, "chat_template": "{{ something else }}"}, config={})
    assert Tokenizer.load(folder).template is None
    chatml = "<|im_start|>system\\nYou are a helpful assistant.<|im_end|>"
    _write(folder, specials=["<|im_start|>", "<|im_end|>"])
    (folder / "chat_template.jinja").write_text(chatml)
    assert Tokenizer.load(folder).template == "qwen2"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": chatml}]
    _write(folder, {"chat_template": named}, specials=["<|im_start|>", "<|im_end|>"])
    (folder / "chat_template.jinja").unlink()
    assert Tokenizer.load(folder).template == "qwen2"


def test_converted_checkpoint(tmp_path):
    """The manifest names the family and the ids; the tokenizer files lie beside it or in their own folder."""
    config = {"family": "mmada", "eos_ids": [7, 8], "mask_id": 3, "pad_id": None}
    _write(tmp_path / "root", jaxsink={"format": 1, "config": config})
    tokenizer = Tokenizer.load(tmp_path / "root")
    assert tokenizer.template == "mmada"
    mask, eot = (tokenizer.encode(text)[0] for text in ("<|mdm_mask|>", "<|eot_id|>"))
    assert tokenizer.special == {"eos": 7, "mask": mask, "eot": eot}  # a token's name goes before the manifest's id
    _write(tmp_path / "root", jaxsink={"config": config})
    with pytest.raises(JaxsinkError, match=r"jaxsink\.json cannot be used \(format must be a whole number, not None\)"):
        Tokenizer.load(tmp_path / "root")
    _write(tmp_path / "folder" / "tokenizer", LLADA)
    (tmp_path / "folder" / "config.json").write_text(json.dumps({"model_type": "mmada"}))
    assert Tokenizer.load(tmp_path / "folder").template == "mmada"


def test_added_tokens_beside_tokenizer_json(tmp_path):
    size = len(_vocab())
    decoder = {str(size): {"content": "<|mask|>", "special": True}}
    _write(tmp_path, {"added_tokens_decoder": decoder, "mask_token": "<|mask|>"}, specials=[])
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("hello<|mask|>") == [_vocab()["hello"], size]
    assert tokenizer.declared["mask"] == size
    decoder = {str(size + 5): {"content": "<|mask|>", "special": True}}
    _write(tmp_path, {"added_tokens_decoder": decoder}, specials=[])
    with pytest.raises(JaxsinkError, match=r"disagree about '<\|mask\|>'"):
        Tokenizer.load(tmp_path)


def test_dream_vocab_and_merges(tmp_path):
    """Dream ships no tokenizer.json. Digits stand alone and the text is brought to NFC, unlike GPT-2's rules."""
    size = len(_vocab())
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|beginoftext|>", "<|mask|>"]
    added = {name: size + 10 + i for i, name in enumerate(names)}  # after a gap
    config = {
        "tokenizer_class": "DreamTokenizer",
        "added_tokens_decoder": {str(i): {"content": name, **special} for name, i in added.items()},
        "bos_token": "<|beginoftext|>",
        "eos_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
    }
    _write_merges(tmp_path, tokenizer_config=config, added_tokens={**added, "<tool>": size + 15})
    dream = Tokenizer.load(tmp_path)
    vocab = _vocab()
    assert dream.special == {"bos": size + 13, "eos": size + 10, "mask": size + 14, "eot": size + 12}
    assert dream.template == "dream"
    assert dream.encode("hello 12") == [vocab["hello"], vocab["Ġ"], vocab["1"], vocab["2"]]
    assert dream.encode("e\u0301") == dream.encode("é")
    assert dream.encode("<tool>hello<|mask|>") == [size + 15, vocab["hello"], size + 14]
    assert dream.decode([size + 15, size + 14]) == "<tool>"  # not special, so kept
    text = "hello\n\n  world 12!\n"
    assert dream.decode(dream.encode(text)) == text
    assert dream.chat("hello")[0] == added["<|im_start|>"]


def test_gpt2_vocab_and_merges(tmp_path):
    vocab = _vocab()
    end = len(vocab)
    _write_merges(tmp_path, vocab={**vocab, "<|endoftext|>": end}, config={"model_type": "gpt2", "eos_token_id": end})
    gpt2 = Tokenizer.load(tmp_path)
    assert gpt2.encode("hello 12<|endoftext|>") == [vocab["hello"], vocab["Ġ"], vocab["12"], end]
    assert gpt2.encode("e\u0301") != gpt2.encode("é")
    assert gpt2.special == {"eos": end}
    assert gpt2.template is None


def test_other_vocab_and_merges_are_refused(tmp_path):
    _write_merges(tmp_path, tokenizer_config={"tokenizer_class": "RobertaTokenizer"})
    with pytest.raises(JaxsinkError, match="how 'RobertaTokenizer' splits words"):
        Tokenizer.load(tmp_path)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(JaxsinkError, match="is not a directory"):
        Tokenizer.load(tmp_path / "none")
    with pytest.raises(JaxsinkError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\x00")
    with pytest.raises(JaxsinkError, match=r"SentencePiece tokenizer\.model"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(JaxsinkError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(JaxsinkError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.load(tmp_path)
    _write(tmp_path)
    for content, complaint in (("{", "is not valid JSON"), ("[]", "must hold a JSON object, not list")):
        (tmp_path / "tokenizer_config.json").write_text(content)
        with pytest.raises(JaxsinkError, match=complaint):
            Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"added_tokens_decoder": {"x": 3}}')
    with pytest.raises(JaxsinkError, match="malformed"):
        Tokenizer.load(tmp_path)


def test_merges_that_do_not_fit(tmp_path):
    _write_merges(tmp_path, vocab={"a": 0})
    with pytest.raises(JaxsinkError, match=r"vocab\.json is not a tokenizer"):
        Tokenizer.load(tmp_path)


def test_check_accepts_a_match(llada):
    assert check_special_ids(llada, _config(llada)) == []
    assert check_special_ids(llada, _config(llada, vocab=llada.size + 115)) == []  # spare rows, as in LLaDA
    assert check_special_ids(llada, _config(llada, mask_id=None, bos_id=None, pad_id=None, eot_id=None)) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"vocab": 200}, "only 200 vocabulary rows"),
        ({"mask_id": 5000, "vocab": 9000}, "mask id 5000 .* no token"),
        ({"mask_id": -1}, "mask id -1"),
        ({"eos_ids": (1, 9000)}, "eos id 9000 .* outside"),
    ],
)
def test_check_refuses(llada, changes, complaint):
    with pytest.raises(JaxsinkError, match=complaint):
        check_special_ids(llada, _config(llada, **changes))


def test_check_refuses_another_mask(tmp_path):
    _write(tmp_path, {**LLADA, "mask_token": "<|mdm_mask|>"})
    tokenizer = Tokenizer.load(tmp_path)
    with pytest.raises(JaxsinkError, match=r"mask id 3 .* differs from"):
        check_special_ids(tokenizer, _config(tokenizer, mask_id=3))


def test_check_warns(llada):
    bos, eos = llada.special["bos"], llada.special["eos"]
    (warning,) = check_special_ids(llada, _config(llada, bos_id=eos))
    assert f"bos id {bos}, the config {eos}" in warning
    (warning,) = check_special_ids(llada, _config(llada, eos_ids=(3,)))
    assert f"declares eos id {eos}, which is not among the config's (3,)" in warning
    rows = llada.size + 10
    (warning,) = check_special_ids(llada, _config(llada, vocab=rows, eos_ids=(eos, rows - 1)))
    assert f"eos id {rows - 1} of the config is no token" in warning


def test_tokenizers_is_imported_late():
    code = "import sys, jaxsink.text.tokenizer; sys.exit('tokenizers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
