"""Tokenizers rebuilt from GGUF metadata, read back through `Tokenizer.load`."""

import json

import pytest
import tokenizers
from jaxsink_converters.gguf_tokenizer import PRE_TOKENIZERS, build

from jaxsink.errors import JaxsinkError
from jaxsink.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MERGES = ["h e", "l l", "he ll", "hell o", "1 2", "12 3", "123 4", "Ġ Ġ", "! Ċ", "Ġ 1"]


def _gpt2(pre: str | None, **changes) -> dict:
    """Metadata of a byte-level vocabulary: two control tokens, the bytes, the merges, one user-defined, one spare."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = [*letters, *(pair.replace(" ", "") for pair in MERGES)]
    tokens = ["<|endoftext|>", "<|im_start|>", *words, "<tool>", "[PAD9]"]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL, CONTROL, *[NORMAL] * len(words), USER, UNUSED],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": "{{ messages }}",
    }
    return fields | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def _llama(**changes) -> dict:
    """Metadata of a SentencePiece vocabulary: <unk>, bos, eos, the bytes, pieces with falling scores."""
    pieces = ["▁h", "el", "lo", "▁hel", "▁hello", "▁w", "▁", "h", "e", "l", "o", "w", "[", "]", "I"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)],
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return fields | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}


def _load(folder, fields) -> Tokenizer:
    for name, content in build(fields).items():
        (folder / name).write_text(content, encoding="utf-8")
    return Tokenizer.load(folder)


def _pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token(i) for i in tokenizer.encode(text)]


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@pytest.mark.parametrize("text", ["hello  1234!\n\n", "Don't naïve 日本語 😀\t\r\n", "def f(x):\n    return x ** 2\n"])
def test_byte_level_round_trip(tmp_path, pre, text):
    tokenizer = _load(tmp_path, _gpt2(pre))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", ["hello", "␣1", "2", "3", "4", "!", "\\n"]),
        ("default", ["hello", "␣1", "2", "3", "4", "!", "\\n"]),
        ("smollm", ["hello", "␣", "1", "2", "3", "4", "!", "\\n"]),
        ("qwen2", ["hello", "␣", "1", "2", "3", "4", "!\\n"]),
        ("llama-bpe", ["hello", "␣", "123", "4", "!\\n"]),
        ("llada-moe", ["hello", "␣", "1", "2", "3", "4", "!\\n"]),
    ],
)
def test_pre_tokenizers_differ(tmp_path, pre, pieces):
    merges = sorted(MERGES, key="Ġ 1".__ne__)  # the space first, so that only the splitting decides
    assert _pieces(_load(tmp_path, _gpt2(pre, merges=merges)), "hello 1234!\n") == pieces


def test_qwen2_normalizes(tmp_path):
    composed, apart = "é", "e\u0301"
    qwen = _load(tmp_path, _gpt2("qwen2"))
    assert qwen.encode(apart) == qwen.encode(composed)
    smol = _load(tmp_path, _gpt2("smollm"))
    assert smol.encode(apart) != smol.encode(composed)


def test_llama3_takes_whole_words_without_merges(tmp_path):
    fields = _gpt2("llama-bpe")
    fields["tokenizer.ggml.tokens"][-1] = "xyz"  # no merge leads here
    fields["tokenizer.ggml.token_type"][-1] = NORMAL
    assert _pieces(_load(tmp_path, fields), "xyz") == ["xyz"]
    fields["tokenizer.ggml.pre"] = "qwen2"
    assert _pieces(_load(tmp_path, fields), "xyz") == ["x", "y", "z"]


def test_control_and_user_defined_tokens(tmp_path):
    fields = _gpt2("smollm")
    tokenizer = _load(tmp_path, fields)
    size = len(fields["tokenizer.ggml.tokens"])
    ids = tokenizer.encode("hello<|im_start|><tool>[PAD9]")
    assert ids[1:3] == [1, size - 2]
    assert len(ids) > 4  # the spare row is not matched in text
    assert tokenizer.decode(ids) == "hello<tool>[PAD9]"
    assert tokenizer.size == size
    assert tokenizer.declared == {"bos": 1, "eos": 0, "pad": 0}
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"] == "{{ messages }}"


@pytest.mark.parametrize(
    ("pre", "changes", "expected"),
    [
        ("smollm", {}, []),
        ("smollm", {"add_bos_token": True}, [1]),
        ("llama-bpe", {}, [1]),  # what llama.cpp does when the file is silent
        ("llama-bpe", {"add_bos_token": False}, []),
        ("llama-bpe", {"bos_token_id": None}, []),
    ],
)
def test_bos_on_request(tmp_path, pre, changes, expected):
    tokenizer = _load(tmp_path, _gpt2(pre, **changes))
    hello = tokenizer.encode("hello")
    assert len(hello) == 1
    assert tokenizer.encode("hello", add_special_tokens=True) == [*expected, *hello]


def test_eos_on_request(tmp_path):
    tokenizer = _load(tmp_path, _llama(add_eos_token=True))
    assert tokenizer.encode("hello", add_special_tokens=True) == [1, *tokenizer.encode("hello"), 2]


@pytest.mark.parametrize("text", ["hello hello", "hello  wé日本\n", " hello", "x"])
def test_sentencepiece_round_trip(tmp_path, text):
    tokenizer = _load(tmp_path, _llama())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_pieces(tmp_path):
    tokenizer = _load(tmp_path, _llama())
    assert _pieces(tokenizer, "hello hello") == ["␣hello", "␣hello"]
    assert _pieces(tokenizer, "é") == ["␣", "<0xC3>", "<0xA9>"]  # byte fallback
    assert _pieces(tokenizer, "<s>w</s>w") == ["<s>", "␣w", "</s>", "␣w"]


def test_sentencepiece_follows_the_scores(tmp_path):
    """In "ell" either pair can be joined first; the better score wins, wherever the pieces stand in the list."""
    fields = _llama(add_space_prefix=False)
    fields["tokenizer.ggml.tokens"] += ["ll"]
    fields["tokenizer.ggml.token_type"] += [NORMAL]
    for score, pieces in ((-100.0, ["el", "l"]), (5.0, ["e", "ll"])):
        scores = [*_llama()["tokenizer.ggml.scores"], score]
        assert _pieces(_load(tmp_path, fields | {"tokenizer.ggml.scores": scores}), "ell") == pieces


def test_sentencepiece_never_makes_spare_pieces(tmp_path):
    fields = _llama(add_space_prefix=False)
    fields["tokenizer.ggml.tokens"] += ["I]", "[I]"]
    fields["tokenizer.ggml.token_type"] += [NORMAL, UNUSED]
    fields["tokenizer.ggml.scores"] += [1.0, 2.0]
    assert _pieces(_load(tmp_path, fields), "[I]") == ["[", "I]"]


def test_sentencepiece_space_prefix(tmp_path):
    assert _pieces(_load(tmp_path, _llama(add_space_prefix=False)), "w w") == ["w", "␣w"]
    fields = _llama()  # Mistral v0.3: [INST] is a control token, and no space is put after it
    fields["tokenizer.ggml.tokens"][-1] = "[INST]"
    fields["tokenizer.ggml.token_type"][-1] = CONTROL
    tokenizer = _load(tmp_path, fields)
    assert _pieces(tokenizer, "[INST] w") == ["[INST]", "␣w"]
    assert _pieces(tokenizer, "w") == ["␣w"]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        (_gpt2("tekken"), r"tokenizer\.ggml\.pre is 'tekken'"),
        (_gpt2(None), r"tokenizer\.ggml\.pre is missing"),
        (_gpt2("smollm", model="bert"), "only 'gpt2' and 'llama'"),
        (_gpt2("smollm", model=None), r"no tokenizer\.ggml\.model"),
        (_gpt2("smollm", tokens=None), r"no tokenizer\.ggml\.tokens"),
        (_gpt2("smollm", merges=None), r"no tokenizer\.ggml\.merges"),
        (_gpt2("smollm", merges=["h", "e l"]), "has 'h', which joins no two tokens"),
        (_gpt2("smollm", merges=["x y"]), "has 'x y', which joins no two tokens"),
        (_gpt2("smollm", token_type=[1]), "token_type has 1 entries"),
        (_gpt2("smollm", tokens=["a", "a"]), "has 'a' twice"),
        (_gpt2("smollm", eos_token_id=10**6), "eos_token_id is 1000000, outside"),
        (_llama(scores=[0.0]), "scores has 1 entries"),
        (_llama(scores=None), r"no tokenizer\.ggml\.scores"),
    ],
)
def test_what_cannot_be_converted(fields, complaint):
    with pytest.raises(JaxsinkError, match=complaint):
        build(fields)


def test_old_gpt2_file_needs_no_pre(tmp_path):
    fields = _gpt2(None) | {"general.architecture": "gpt2"}
    assert _load(tmp_path, fields).encode("hello") == _load(tmp_path, _gpt2("gpt-2")).encode("hello")
