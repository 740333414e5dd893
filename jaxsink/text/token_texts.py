"""Single tokens as people read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxsink.text.tokenizer import Tokenizer


def token_texts(tokenizer: Tokenizer | None, ids: Sequence[int] | np.ndarray) -> list[str]:
    """What each token looks like; the ids themselves where there is no tokenizer."""
    return [f" {token}" if tokenizer is None else token_text(tokenizer, int(token)) for token in ids]


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token's own text; parts of characters as <0xE2>, and a space in front that decoding alone would lose."""
    text, readable = tokenizer.decode([token], skip_special=False), tokenizer.token(token)
    if not text or "�" in text:
        return readable
    return f" {text}" if readable.startswith("␣") and not text.startswith(" ") else text
