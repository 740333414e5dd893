"""Prompts as text: through the model's own tokenizer, with or without its chat template, and what it did not know."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from numpy.typing import ArrayLike

from jaxsink.errors import JaxsinkError
from jaxsink.nn.transformer import Model
from jaxsink.text.tokenizer import Tokenizer, check_special_ids

Prompts = str | Sequence[str] | Sequence[Sequence[int]] | ArrayLike
Ids = Sequence[Sequence[int]] | ArrayLike


def encode_prompts(model: Model, prompts: Prompts, mask: ArrayLike | None, chat: bool) -> Ids:
    """Token ids of prompts that are text, one list per text; anything else as it is.

    Warns of words that the tokenizer does not know.
    """
    given = [prompts] if isinstance(prompts, str) else list(prompts) if isinstance(prompts, (list, tuple)) else []
    texts = [text for text in given if isinstance(text, str)]
    if not texts:
        if chat:
            raise JaxsinkError("chat=True needs prompts as text; token ids are taken as they are.")
        return prompts
    if len(texts) < len(given):
        raise JaxsinkError("prompts must be all text or all token ids, not some of each.")
    if mask is not None:
        raise JaxsinkError("prompts given as text need no mask.")
    tokenizer = model.tokenizer
    check_special_ids(tokenizer, model.config)
    unknown = [word for text in texts for word in unknown_words(tokenizer, text)]
    if unknown:
        warnings.warn(unknown_note(tokenizer, unknown), stacklevel=3)
    return [encode_text(tokenizer, text, chat) for text in texts]


def encode_text(tokenizer: Tokenizer, text: str, chat: bool) -> list[int]:
    """Ids of one prompt: as a question in the chat template, or as text with the special tokens that belong to it."""
    ids = tokenizer.chat(text) if chat else tokenizer.encode(text, add_special_tokens=True)
    if not ids:
        raise JaxsinkError("the prompt is empty; give some text.")
    return ids


def known_tokenizer(model: Model) -> Tokenizer | None:
    """The model's tokenizer, if it has one that can be read."""
    try:
        return model.tokenizer
    except JaxsinkError:
        return None


def unknown_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The parts of a text that the tokenizer reads as its token for unknown words, each once."""
    unknown = tokenizer.special.get("unk")
    if unknown is None:
        return []
    name = tokenizer.token(unknown)
    found = tokenizer.encoding(text)
    parts = [
        text[start:end].strip()
        for token, (start, end) in zip(found.ids, found.offsets, strict=True)
        if token == unknown and text[start:end] != name
    ]
    return [part for part in dict.fromkeys(parts) if part]


def unknown_note(tokenizer: Tokenizer, words: list[str]) -> str:
    """One sentence about unknown words."""
    words = list(dict.fromkeys(words))
    shown = ", ".join(words[:10]) + (f" and {len(words) - 10} more" if len(words) > 10 else "")
    return (
        f"the model does not know these words, and reads {tokenizer.token(tokenizer.special['unk'])} instead: {shown}."
    )
