"""Tokenizers made for a text: characters, byte pairs, and their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxsink.errors import JaxsinkError
from jaxsink.text.new_tokenizer import SPECIAL, is_new, new_tokenizer, save_tokenizer
from jaxsink.text.tokenizer import Tokenizer

TEXT = "To be, or not to be:\nthat is the question. " * 20


def test_characters() -> None:
    made = new_tokenizer("characters", [TEXT])
    assert made.size == len(SPECIAL) + len(set(TEXT)) and made.decode(made.encode(TEXT)) == TEXT
    assert len(made.encode("be\n")) == 3 and made.encode("€") == [made.special["unk"]]
    assert made.encode("o", add_special_tokens=True)[0] == made.special["bos"]


def test_byte_pairs_write_any_text_and_learn_from_theirs() -> None:
    made = new_tokenizer("bpe:300", [TEXT])
    assert made.size <= 300 and made.decode(made.encode("naïve €\n")) == "naïve €\n"
    assert len(made.encode(TEXT)) < 0.6 * len(TEXT) and new_tokenizer("bpe:300", [TEXT]).encode(TEXT) == made.encode(
        TEXT
    )


@pytest.mark.parametrize("name", ["characters", "bpe:280"])
def test_the_files_are_read_like_any_checkpoint(tmp_path: Path, name: str) -> None:
    made = new_tokenizer(name, [TEXT])
    save_tokenizer(made, tmp_path)
    found = Tokenizer.load(tmp_path)
    assert found.special == made.special and found.encode(TEXT) == made.encode(TEXT) and found.size == made.size


@pytest.mark.parametrize("name", ["bpe:", "bpe:10", "bpe:many"])
def test_impossible_sizes(name: str) -> None:
    assert is_new(name) and not is_new("./model")
    with pytest.raises(JaxsinkError, match="give bpe:N with a vocabulary of 261 tokens or more"):
        new_tokenizer(name, [TEXT])
