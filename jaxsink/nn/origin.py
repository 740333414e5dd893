"""What comes along with weights: where they are from, and the sampler that the model was made for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxsink.errors import JaxsinkError

if TYPE_CHECKING:
    from jaxsink.sampling.base import Sampler
    from jaxsink.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Origin:
    """Where a model comes from.

    place: the checkpoint's directory (or GGUF file), which holds its tokenizer. names: what the model is called: its
    directory, and the source it was converted from. sampler: the one that the checkpoint recommends. read_tokenizer: reads
    the tokenizer at a place, for a family; checkpoints know how.
    """

    place: str | None = None
    names: tuple[str, ...] = ()
    sampler: Sampler | None = None
    read_tokenizer: Callable[[str, str], Tokenizer] | None = field(default=None, compare=False, repr=False)

    def tokenizer(self, family: str) -> Tokenizer:
        """The checkpoint's own tokenizer."""
        if self.place is None or self.read_tokenizer is None:
            raise JaxsinkError(
                "this model has no tokenizer, because it was not loaded from a checkpoint; give token ids, or load "
                "one with jaxsink.Tokenizer.load."
            )
        return self.read_tokenizer(self.place, family)


class OriginHolder:
    """Holds the origin in a model's tree. All holders are equal, so models that differ in origin alone share programs."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OriginHolder)

    def __hash__(self) -> int:
        return hash(OriginHolder)

    def __repr__(self) -> str:
        return repr(self.origin)
