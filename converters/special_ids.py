"""The special tokens of a checkpoint, as its own files name them.

    mask      config.json, generation_config.json, what the tokenizer's files declare, a token with a known name
              (<|mdm_mask|>, <|mask|>, <|MASK|>), `mask_id=`, and last the id of the published vocabulary
    eos       every id that config.json, generation_config.json or the tokenizer's files name, in this order
    bos, pad  what the tokenizer's files declare, because it writes the prompts; config.json; generation_config.json
    eot       config.json, generation_config.json, the tokenizer's declaration, a known name (<|eot_id|>, <|im_end|>, …)

Files that name two different masks are an error, because every result would be wrong; other disagreements are notes. The
published vocabulary (`Family.published_ids`) is used only where there is no tokenizer file and nothing contradicts it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxsink.errors import JaxsinkError, a_model
from jaxsink.nn.config import ModelConfig
from jaxsink.text.tokenizer import Tokenizer

from .source import Source
from .table import Family, Settings

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer"
NAMES = ("mask", "eos", "bos", "pad", "eot")


@dataclass(frozen=True)
class Named:
    """The ids that each file names, by token, and the tokenizer behind the last of them, or why it cannot be read."""

    path: Path
    by_file: Mapping[str, Mapping[str, tuple[int, ...]]]
    tokenizer: Tokenizer | None
    problem: str | None

    def where(self, file: str) -> str:
        if file == TOKENIZER:
            return f"the tokenizer in {self.path}"
        return str(self.path / file if self.path.is_dir() else self.path)

    def all(self, name: str) -> list[tuple[str, int]]:
        """(file, id) in the order of the files."""
        return [(file, index) for file, ids in self.by_file.items() for index in ids.get(name, ())]

    def known(self, name: str) -> int | None:
        """The id of a token that plays this part by its name alone."""
        return None if self.tokenizer is None else self.tokenizer.known(name)


def complete_ids(
    family: Family, config: ModelConfig, source: Source, path: Path, mask_id: int | None = None
) -> tuple[ModelConfig, tuple[str, ...]]:
    """(the config, which has the ids of config.json, with those of all other files; what these disagree about)."""
    named = read_named(family, config, source, path)
    notes = [] if named.problem is None else [named.problem]
    found: dict[str, Any] = {"eos_ids": tuple(dict.fromkeys(index for _, index in named.all("eos")))}
    first = {index for file, index in named.all("eos") if file != TOKENIZER}
    if first and (more := set(found["eos_ids"]) - first):
        notes.append(f"{named.where(TOKENIZER)} declares eos id {more.pop()}, besides {sorted(first)} of the configs.")
    for name in ("bos", "pad"):
        found[f"{name}_id"] = choose(named, name, notes)
    eot = next((index for _, index in named.all("eot")), named.known("eot"))
    found["eot_id"] = eot if eot is None or eot < config.vocab else None
    mask = find_mask(family, named, mask_id)
    published = published_ids(family, config.replace(**found), mask, named)
    found = {key: published.get(key.removesuffix("_id")) if value is None else value for key, value in found.items()}
    mask = published.get("mask") if mask is None else mask
    if family.is_diffusion and mask is None:
        raise JaxsinkError(
            named.problem
            or f"no file of {path} names the mask token; pass --mask-id ID (in Python, mask_id=ID), the id that the model "
            "was trained with."
        )
    return config.replace(mask_id=mask, **found), tuple(notes)


def read_named(family: Family, config: ModelConfig, source: Source, path: Path) -> Named:
    tokenizer, problem = read_tokenizer(family, path)
    ids = {name: getattr(config, f"{name}_id", None) for name in NAMES}
    of_config = {name: () if index is None else (index,) for name, index in ids.items()} | {"eos": config.eos_ids}
    settings = Settings(source.generation, str(path / GENERATION))
    of_generation = {name: settings.ids(f"{name}_token_id") for name in NAMES}
    declared = {} if tokenizer is None else {name: (index,) for name, index in tokenizer.declared.items()}
    others = {GENERATION: of_generation, TOKENIZER: declared}
    for file, named in others.items():  # a spare token of the tokenizer may have no row; a mask must have one
        kept = {name: tuple(i for i in named.get(name, ()) if i < config.vocab or name == "mask") for name in NAMES}
        others[file] = kept
    return Named(path, {CONFIG: of_config, **others}, tokenizer, problem)


def read_tokenizer(family: Family, path: Path) -> tuple[Tokenizer | None, str | None]:
    """(the tokenizer of a directory if it has one, what is wrong with it); a GGUF file names its ids itself.

    A tokenizer that cannot be read is no reason not to load the weights, as long as other files name the ids.
    """
    has = {name for name in ("tokenizer.json", "vocab.json", "merges.txt") if os.path.lexists(path / name)}
    if "tokenizer.json" not in has and not {"vocab.json", "merges.txt"} <= has:
        return None, None
    try:
        return Tokenizer.load(path, family.name), None
    except JaxsinkError as error:
        return None, str(error)


def choose(named: Named, name: str, notes: list[str]) -> int | None:
    """The tokenizer's id, else the first that is named; a note if they are not the same."""
    found = sorted(named.all(name), key=lambda item: item[0] != TOKENIZER)
    if not found:
        return None
    file, index = found[0]
    other = next((item for item in found if item[1] != index), None)
    if other is not None:
        notes.append(
            f"{named.where(file)} has {name} id {index}, and {named.where(other[0])} {other[1]}; {index} is used."
        )
    return index


def find_mask(family: Family, named: Named, wanted: int | None) -> int | None:
    """The mask that the files name, or the one that is wanted where they name none."""
    if wanted is not None:
        try:
            wanted = operator.index(wanted)
        except TypeError as error:
            raise JaxsinkError(f"mask_id must be a token id, not {wanted!r}.") from error
    if not family.is_diffusion:
        if wanted is not None:
            raise JaxsinkError(
                f"{named.path} holds {a_model(family.name)}, which has no mask token: leave mask_id out."
            )
        return None
    found = named.all("mask")
    if not found and (index := named.known("mask")) is not None:
        found = [(TOKENIZER, index)]
    for file, index in found[1:]:
        if index != found[0][1]:
            raise JaxsinkError(
                f"{named.where(found[0][0])} has mask id {found[0][1]}, and {named.where(file)} declares {index}; take "
                "all files from one model."
            )
    if not found:
        return wanted
    file, index = found[0]
    if wanted not in (None, index):
        raise JaxsinkError(f"{named.where(file)} has mask id {index}, not {wanted}: leave mask_id out.")
    return index


def published_ids(family: Family, config: ModelConfig, mask: int | None, named: Named) -> Mapping[str, int]:
    """The ids of the family's published vocabulary, if this can be it: the eos is the same, and nothing else differs."""
    published = family.published_ids
    if named.tokenizer is not None or published.get("eos") not in config.eos_ids:
        return {}
    given = {"mask": mask, "bos": config.bos_id, "eot": config.eot_id}
    differs = any(given[name] not in (None, index) for name, index in published.items() if name in given)
    return {} if differs else published
