"""Where a checkpoint comes from: its names, and the tokenizer that lies in it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from jaxsink.nn.origin import Origin
from jaxsink.text.tokenizer import Tokenizer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


@lru_cache(maxsize=8)
def read_tokenizer(place: str, family: str, verify: bool = True) -> Tokenizer:
    """The tokenizer of the checkpoint at `place`, read once."""
    return Tokenizer.load(place, family, verify=verify)


def origin_of(place: Path, source: Mapping[str, Any], sampler: Any, verify: bool = True) -> Origin:
    """The origin of the checkpoint at `place`, whose manifest or files say that it comes from `source`."""
    path = str(place.absolute())
    paths = [path, str(source.get("path") or "")]
    names = tuple(dict.fromkeys(name for one in paths for name in model_names(one)))
    return Origin(path, names, sampler, read_tokenizer if verify else partial(read_tokenizer, verify=False), verify)


def model_names(path: str) -> list[str]:
    """The last part of a path; a hub cache names the model further up (models--owner--name/snapshots/commit)."""
    parts = Path(path).parts
    return [part for part in parts[:-1] if part.startswith("models--")] + list(parts[-1:])
