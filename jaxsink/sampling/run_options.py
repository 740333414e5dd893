"""The further keywords of `generate`: when records are kept and moved, what is replayed or edited, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypedDict

from jax import Array
from jaxtyping import Int
from numpy.typing import ArrayLike

from jaxsink.arrays import check_array
from jaxsink.checks import at_least, check_fields
from jaxsink.errors import JaxsinkError, check_keywords
from jaxsink.parallel.mesh import Device
from jaxsink.sampling.rng import DrawName
from jaxsink.sampling.run import EditLogits, EditTokens

RANGES = {"every": at_least(1, 1 << 31), "stream": at_least(1, 1 << 31), "pad_to": at_least(1, 1 << 20)}

# (steps done, tokens, committed_at); one that has a parameter `record` also gets that of the last steps
Listener = Callable[..., None]


class Options(TypedDict, total=False):
    """The types of the further keywords of `generate`, for editors."""

    every: int
    stream: int | None
    pad_to: int | None
    backend: str | None
    draws: Mapping[DrawName, ArrayLike] | None
    force: Sequence[Sequence[int]] | None
    edit_logits: EditLogits | None
    edit_tokens: EditTokens | None
    listener: Listener | None
    devices: Sequence[Device] | None
    policies: Sequence[int] | None
    targets: ArrayLike | None


@dataclass(frozen=True)
class RunOptions:
    """The further keywords of `generate`, and what they are if not given."""

    every: int = 1
    stream: int | None = None
    pad_to: int | None = None
    backend: str | None = None
    draws: Mapping[DrawName, ArrayLike] | None = None
    force: Sequence[Sequence[int]] | None = None
    edit_logits: EditLogits | None = None
    edit_tokens: EditTokens | None = None
    listener: Listener | None = None
    devices: Sequence[Device] | None = None
    policies: Sequence[int] | None = None
    targets: ArrayLike | None = None

    def __post_init__(self) -> None:
        check_fields(self, "generate", RANGES)
        if self.targets is not None:
            check_array("generate: targets", self.targets, Int[Array, "B S"])
        if self.stream is not None and self.stream % self.every:
            raise JaxsinkError(f"stream must be a multiple of every ({self.every}), and is {self.stream}.")
        if self.listener is not None and self.stream is None:
            raise JaxsinkError("a listener is called after every `stream` steps; give stream=1 or more.")

    @classmethod
    def make(cls, given: Options) -> RunOptions:
        """Of the caller's keywords, or one sentence about one that does not exist."""
        check_keywords("generate", given, (field.name for field in fields(cls)))
        return cls(**given)
