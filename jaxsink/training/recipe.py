"""From what a user calls a model to what is trained: configuration, sampler, first weights and data.

mini-llada            a built-in model, on its word problems, with its own settings
6x384x6               layers x width x heads of a Llama-like transformer
llama-3.2-1b          a published configuration (a preset), from random weights
config.json           a configuration of your own: the fields of jaxsink.ModelConfig
./checkpoint          a converted checkpoint, a Hugging Face directory or a GGUF file, from its weights
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from jaxsink.checkpoints.load import describe
from jaxsink.checkpoints.storage import MANIFEST
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.origin import Origin
from jaxsink.runs.files import refuse_special, user_path
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.registry import family_sampler
from jaxsink.tasks.word_tasks import SUMS
from jaxsink.text.tokenizer import Tokenizer
from jaxsink.training.data import TASKS, DataSettings, TaskData, TextData, TrainingData, text_data
from jaxsink.training.settings import Objective, Settings
from jaxsink.zoo.builtin import builtin
from jaxsink.zoo.presets import PRESETS
from jaxsink.zoo.resolve import NAMES, resolve

SIZES = re.compile(r"(\d+)x(\d+)x(\d+)")
RANDOM = "random"
"""`init` of a checkpoint that is to be trained from scratch."""

TEXT = {"batch": 16, "optimizer": "adamw", "learning_rate": 1e-3, "predict": "all"}
"""Settings of a run on text, where none are given."""

TUNED = {**TEXT, "learning_rate": 3e-4}
"""The same from the weights of a checkpoint."""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run."""

    name: str
    config: ModelConfig
    sampler: Sampler
    settings: Settings
    data: TrainingData


def builtin_recipe(name: str, given: dict[str, Any], extra_sink: bool = False) -> Recipe:
    """As the shipped model was trained, but for what is given."""
    known = builtin(name)
    config = known.config.replace(extra_sink=extra_sink)
    return Recipe(name, config, known.sampler, replace(known.settings, **given), TaskData())


def text_recipe(model: str, data: DataSettings, given: dict[str, Any], extra_sink: bool, block_length: int) -> Recipe:
    """Any model on text, or on word problems."""
    config, origin = described(model)
    is_checkpoint = origin is not None and origin.place is not None
    own = origin.tokenizer(config.family) if origin is not None and is_checkpoint else None
    found = TaskData(TASKS[data.sources[0]]) if is_task(data.sources) else text_data(data, own, origin)
    given = {**(TUNED if is_checkpoint else TEXT), **given}
    given.setdefault("objective", usual_objective(config))
    if is_checkpoint:
        given.setdefault("init", model)
    if given.get("init") == RANDOM:
        given["init"] = None
    found = with_mask(found, config, given["objective"])
    config = fitted(config, given["objective"], found, block_length).replace(extra_sink=extra_sink)
    if is_checkpoint and config.vocab < found.tokenizer.size:
        raise JaxsinkError(
            f"the tokenizer has {found.tokenizer.size} tokens, and {model} {config.vocab} rows; take its own tokenizer."
        )
    sampler = family_sampler(config)
    longest = max(1, found.length - found.prompt if found.prompt else found.length // 2)
    sampler = sampler.with_length(longest) if sampler.response_length > longest else sampler
    return Recipe(Path(model).name, config, sampler, Settings(**given), found)


def described(model: str) -> tuple[ModelConfig, Origin | None]:
    """(configuration, origin of a checkpoint or of a published name)."""
    if match := SIZES.fullmatch(model):
        return llama_like(*map(int, match.groups())), None
    path = user_path(model)
    if path.suffix == ".json" and path.is_file():
        return own_config(path), None
    config, origin = describe(model)
    has_weights = model not in PRESETS or resolve(model, weights=False).exists()
    return config, origin if has_weights else None


def llama_like(layers: int, width: int, heads: int) -> ModelConfig:
    """A Llama with an mlp of 8/3 of its width; the vocabulary is the tokenizer's."""
    if not heads or width % heads or (width // heads) % 2:
        raise JaxsinkError(f"a width of {width} cannot be shared by {heads} heads of an even size; choose others.")
    mlp_width = -(-8 * width // 3 // 64) * 64
    size = width // heads
    return ModelConfig("llama", layers, width, heads, heads, size, mlp_width, vocab=1, max_positions=2048)


def own_config(path: Path) -> ModelConfig:
    """A JSON object of ModelConfig's fields; what the tokenizer knows may be left out."""
    refuse_special(path)
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
        given = given.get("config", given)  # as in jaxsink.json
        return ModelConfig.from_dict({"family": "llama", "vocab": 1, **given})
    except (OSError, ValueError, AttributeError, TypeError, JaxsinkError) as error:
        needed = ", ".join(field.name for field in fields(ModelConfig)[1:7])
        raise JaxsinkError(
            f"{path} is no configuration to train ({error}); it needs at least {needed}. A Hugging Face config.json is read "
            "by giving its directory."
        ) from error


def usual_objective(config: ModelConfig) -> Objective:
    if not config.is_diffusion:
        return "causal"
    return "block_diffusion" if config.attention == "block_causal" else "diffusion"


def with_mask(data: TaskData | TextData, config: ModelConfig, objective: Objective) -> TaskData | TextData:
    """With a mask token, if the objective needs one: the model's, the tokenizer's, or a special token that is not used."""
    if objective == "causal" or isinstance(data, TaskData):  # word problems have one
        return data
    special = data.tokenizer.special
    mask = config.mask_id if config.is_diffusion else special.get("mask")
    mask = data.unused_special() if mask is None else mask
    if mask is None:
        raise JaxsinkError(
            "training: the tokenizer has neither a mask token nor a special token that the text does not use; add one to "
            "its tokenizer.json."
        )
    old = data.tokenizer
    template = (old.template, old.source, old.brings_template)
    return replace(data, tokenizer=Tokenizer(old.backend, {**special, "mask": mask}, old.declared, *template))


def fitted(config: ModelConfig, objective: Objective, data: TrainingData, block_length: int) -> ModelConfig:
    """The configuration under which the objective trains, with the tokenizer's ids where it has none of its own."""
    special = data.tokenizer.special
    changes: dict[str, Any] = {"mask_id": None if objective == "causal" else special["mask"]}
    if config.vocab == 1:  # not known before the tokenizer is
        ids = {"bos_id": special.get("bos"), "pad_id": special.get("pad"), "eos_ids": (special["eos"],)}
        changes |= {"vocab": data.tokenizer.size, **ids}
    changes["max_positions"] = max(config.max_positions, data.length)
    if objective == usual_objective(config) and config.is_diffusion:
        return config.replace(**changes)
    block = block_length if objective == "block_diffusion" else None
    if block is not None and data.length % block:
        raise JaxsinkError(f"training: a sequence of {data.length} tokens is not a whole number of blocks of {block}.")
    kind = {
        "causal": {"family": "llama" if config.is_diffusion else config.family, "attention": "causal"},
        "diffusion": {"family": "llada", "attention": "bidirectional", "skip_gaps": False},
        "adaptation": {"family": "dream", "attention": "bidirectional", "shift_logits": True},
        "block_diffusion": {"family": "sdar", "attention": "block_causal"},
    }[objective]
    return config.replace(**{"shift_logits": False, **kind, "block_length": block, **changes})


def is_task(sources: tuple[str, ...]) -> bool:
    """Word problems by their name, unless a file or directory here has it."""
    return len(sources) == 1 and sources[0] in TASKS and not Path(sources[0]).exists()


def is_builtin(model: str, sources: tuple[str, ...]) -> bool:
    """A built-in name without text of one's own, unless a checkpoint here has that name."""
    return model in NAMES and sources in ((), (SUMS.name,)) and not (Path(model) / MANIFEST).is_file()
