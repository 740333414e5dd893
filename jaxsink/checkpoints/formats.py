"""The plug-in that reads other people's checkpoints: it imports jaxsink, and jaxsink finds it by its entry point."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jaxsink.errors import JaxsinkError

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jaxsink.nn.config import ModelConfig
    from jaxsink.nn.transformer import Model

JsonObject = dict[str, Any]
"""What a JSON file holds, or is to hold."""


class ForeignFormats(Protocol):
    """What the plug-in offers. A directory has safetensors or PyTorch files; a GGUF file may stand for one."""

    def load_directory(
        self, path: Path, dtype: str | None, mesh: Mesh | None, mask_id: int | None, ignore_settings: Iterable[str]
    ) -> Model: ...

    def describe_directory(
        self, path: Path, mask_id: int | None, ignore_settings: Iterable[str]
    ) -> tuple[ModelConfig, str | None, JsonObject]: ...

    def tokenizer_files(self, path: Path) -> Mapping[str, str]: ...

    def newest_commit(self, repository: str) -> str: ...

    def fetch_settings(self, repository: str, commit: str) -> Path: ...

    def convert_from_hub(self, repository: str, commit: str, target: Path) -> None: ...


def foreign_formats(path: str | os.PathLike[str]) -> ForeignFormats:
    """The module behind the entry point `jaxsink.formats`; `path` is what it is wanted for."""
    found = list(entry_points(group="jaxsink.formats"))
    if not found:
        raise JaxsinkError(f"{path} is not a converted checkpoint, and the converters are not installed.")
    return found[0].load()
