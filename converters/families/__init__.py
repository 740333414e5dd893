"""One table per model family, and the choice among them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jaxsink.errors import JaxsinkError

from ..table import Family
from .a2d import A2D_LLAMA, A2D_QWEN2, A2D_QWEN3
from .bd3lm import BD3LM, MDLM
from .fast_dllm import FAST_DLLM
from .gidd import GIDD
from .gpt2 import GPT2
from .llada import LLADA
from .llada2 import LLADA2
from .llada_moe import LLADA_MOE
from .llama import LLAMA, MISTRAL
from .mmada import MMADA
from .nemotron import NEMOTRON
from .qwen import DREAM, QWEN2, QWEN3, SDAR, SDAR_MOE

FAMILIES: tuple[Family, ...] = (
    *(LLADA, MMADA, LLADA_MOE, DREAM, SDAR, LLAMA, MISTRAL, QWEN2, QWEN3, GPT2),
    *(NEMOTRON, A2D_QWEN3, A2D_QWEN2, A2D_LLAMA),
    *(FAST_DLLM, BD3LM, MDLM, GIDD, LLADA2, SDAR_MOE),
)


REFUSED = {
    "DiffusionGemmaForBlockDiffusion": "its layers have heads of two sizes, and its canvas has no mask token; "
    "docs/diffusion-gemma.md says what it would take",
}
SUPPORTED = f"supported are {', '.join(family.name for family in FAMILIES)}"
_KIND = re.compile(
    r"(For[A-Z]\w*|LMHeadModel|ModelLM|PreTrainedModel|Model)$"
)  # what follows the family in a class name


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """By `architectures`, because LLaDA and LLaDA-MoE have the same model_type."""
    named = config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise JaxsinkError(f"{where}: 'architectures' must name one model class, not {named!r}.")
    for family in FAMILIES:
        if named[0] in family.architectures:
            check_auto_map(config.get("auto_map"), named[0], where)
            return family
    why = f" ({REFUSED[named[0]]})" if named[0] in REFUSED else ""
    raise JaxsinkError(
        f"{where}: the architecture {named[0]!r} is of a family that is not supported{why}; {SUPPORTED}."
    )


def check_auto_map(auto_map: Any, architecture: str, where: str) -> None:
    """The code that comes with a checkpoint must be of the class that it claims to be, or of its bare model.

    Some diffusion models call themselves Llama, whose weights they have, and are made bidirectional by their code.
    """
    if not isinstance(auto_map, dict | None):
        raise JaxsinkError(f"{where}: 'auto_map' must be an object, not {auto_map!r}.")
    for key, value in (auto_map or {}).items():
        for code in value if isinstance(value, list) else [value]:
            if not key.startswith("AutoModel") or not isinstance(code, str):
                continue
            if _KIND.sub("", code.rsplit(".", 1)[-1]) != _KIND.sub("", architecture):
                raise JaxsinkError(
                    f"{where}: 'architectures' says {architecture}, but 'auto_map' runs {code}, another model, of a "
                    f"family that is not supported; {SUPPORTED}."
                )
