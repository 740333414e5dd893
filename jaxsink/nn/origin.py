"""What comes along with weights: where they are from, and the sampler that the model was made for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jaxsink.checks import check_value
from jaxsink.errors import JaxsinkError

if TYPE_CHECKING:
    from jaxsink.sampling.base import Sampler
    from jaxsink.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Origin:
    """Where a model comes from.

    Attributes:
        place: the checkpoint's directory (or GGUF file), which holds its tokenizer
        names: what the model is called: its directory, and the source it was converted from
        sampler: the one that the checkpoint recommends
        read_tokenizer: reads the tokenizer at a place, for a family; checkpoints know how
        verify: compare the tokenizer's files with the checksums of the checkpoint, where they are copied too

    Examples:
        >>> model.origin.names
        ('mini-llada',)
        >>> model.origin.sampler == jaxsink.sampler_for(model)
        True
        >>> model.origin.tokenizer("llada").size == model.tokenizer.size
        True
    """

    place: str | None = None
    names: tuple[str, ...] = ()
    sampler: Sampler | None = None
    read_tokenizer: Callable[[str, str], Tokenizer] | None = field(default=None, compare=False, repr=False)
    verify: bool = field(default=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        from jaxsink.sampling.base import Sampler  # which is made of models

        check_value("Origin: place", self.place, str | None)
        object.__setattr__(self, "names", check_value("Origin: names", self.names, tuple[str, ...]))
        check_value("Origin: sampler", self.sampler, Sampler | None)
        check_value("Origin: read_tokenizer", self.read_tokenizer, Callable | None)
        check_value("Origin: verify", self.verify, bool)

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
