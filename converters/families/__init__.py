"""One table per model family, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxsink.errors import JaxsinkError

from ..table import Family
from .gpt2 import GPT2
from .llada import LLADA, LLADA_MOE, MMADA
from .llama import LLAMA, MISTRAL
from .qwen import DREAM, QWEN2, QWEN3, SDAR

FAMILIES: tuple[Family, ...] = (LLADA, MMADA, LLADA_MOE, DREAM, SDAR, LLAMA, MISTRAL, QWEN2, QWEN3, GPT2)


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """By `architectures`, because LLaDA and LLaDA-MoE have the same model_type."""
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise JaxsinkError(f"{where}: 'architectures' must name one model class, not {named!r}.")
    for family in FAMILIES:
        if named[0] in family.architectures:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise JaxsinkError(f"{where}: the architecture {named[0]!r} is not supported; supported are {known}.")
