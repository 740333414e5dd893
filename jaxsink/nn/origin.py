"""What comes along with weights: where they are from, the tokenizer, and the sampler that the model was made for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxsink.errors import JaxsinkError

if TYPE_CHECKING:
    from jaxsink.text.tokenizer import Tokenizer

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json", "generation_config.json",
)  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """Where a model comes from.

    place: the checkpoint's directory (or GGUF file), which holds its tokenizer. names: what the model is called: its
    directory, and the source it was converted from. sampler: the one that the checkpoint recommends.
    """

    place: str | None = None
    names: tuple[str, ...] = ()
    sampler: Any = None

    def tokenizer(self, family: str) -> Tokenizer:
        """The checkpoint's own tokenizer, read once."""
        if self.place is None:
            raise JaxsinkError(
                "this model has no tokenizer, because it was not loaded from a checkpoint; give token ids, or load "
                "one with jaxsink.Tokenizer.load."
            )
        return _read_tokenizer(self.place, family)


class Luggage:
    """Holds the origin in a model's tree. All luggage is equal: it makes no two trees, and no two programs, different."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Luggage)

    def __hash__(self) -> int:
        return hash(Luggage)

    def __repr__(self) -> str:
        return repr(self.origin)


@lru_cache(maxsize=8)
def _read_tokenizer(place: str, family: str) -> Tokenizer:
    from jaxsink.text.tokenizer import Tokenizer

    return Tokenizer.load(place, family)


def origin_of(place: Path, source: Mapping[str, Any], sampler: Any) -> Origin:
    """The origin of the checkpoint at `place`, whose manifest or files say that it comes from `source`."""
    path = str(place.absolute())
    paths = [path, str(source.get("path") or "")]
    return Origin(path, tuple(dict.fromkeys(name for one in paths for name in model_names(one))), sampler)


def model_names(path: str) -> list[str]:
    """The last part of a path; a hub cache names the model further up (models--owner--name/snapshots/commit)."""
    parts = Path(path).parts
    return [part for part in parts[:-1] if part.startswith("models--")] + list(parts[-1:])
