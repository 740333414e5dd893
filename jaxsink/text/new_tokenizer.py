"""Tokenizers made for a text: one token per character, or byte-pair encoding learned from it.

new_tokenizer("characters", texts)
new_tokenizer("bpe:4096", texts)
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsink.errors import JaxsinkError
from jaxsink.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

SPECIAL = {"pad": "<|pad|>", "bos": "<|bos|>", "eos": "<|eos|>", "mask": "<|mask|>", "unk": "<|unk|>"}
CHARACTERS, BPE = "characters", "bpe:"
FEWEST = 256 + len(SPECIAL)  # every byte has a token


def is_new(name: str) -> bool:
    """Does this name a tokenizer to be made, and not a checkpoint's?"""
    return name == CHARACTERS or name.startswith(BPE)


def new_tokenizer(name: str, texts: Iterable[str]) -> Tokenizer:
    """Either "characters", or "bpe:N" for a vocabulary of N tokens."""
    if name == CHARACTERS:
        return assembled(characters(texts))
    size = name.removeprefix(BPE)
    if not size.isdigit() or int(size) < FEWEST:
        raise JaxsinkError(f"--tokenizer {name}: give bpe:N with a vocabulary of {FEWEST} tokens or more, as bpe:4096.")
    return assembled(byte_pairs(texts, int(size)))


def characters(texts: Iterable[str]) -> Backend:
    """Special tokens, then every character that occurs, in order of its code."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    known = sorted({char for text in texts for char in text})
    ids = {piece: number for number, piece in enumerate([*SPECIAL.values(), *known])}
    backend = Backend(models.WordLevel(ids, unk_token=SPECIAL["unk"]))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def byte_pairs(texts: Iterable[str], size: int) -> Backend:
    """Byte-level, so that every text can be written with it."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(SPECIAL.values()), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def assembled(backend: Backend) -> Tokenizer:
    """With its special tokens; texts begin with bos where special tokens are asked for."""
    from tokenizers import AddedToken

    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL.values()])
    vocabulary = backend.get_vocab(with_added_tokens=True)
    ids = {name: vocabulary[text] for name, text in SPECIAL.items()}
    begin_with(backend, ids["bos"])
    return Tokenizer(backend, ids, ids)


def begin_with(backend: Backend, bos: int) -> None:
    """Texts begin with this token from now on, where special tokens are asked for."""
    from tokenizers import processors

    text = backend.id_to_token(bos)
    backend.post_processor = processors.TemplateProcessing(single=f"{text} $A", special_tokens=[(text, bos)])


def rewrite_with_first(folder: Path, bos: int) -> None:
    """The tokenizer in a folder, for a model that was trained on texts that begin with this token; unless it does so."""
    from tokenizers import Tokenizer as Backend

    path = folder / "tokenizer.json"
    backend = Backend.from_file(str(path))
    if backend.encode("a", add_special_tokens=True).ids[:1] != [bos]:
        begin_with(backend, bos)
        backend.save(str(path))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """The files that `Tokenizer.load` reads."""
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": tokenizer.backend.id_to_token(number) for name, number in tokenizer.special.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")
