"""`jaxsink.models`: everything that has a name here, with what it is and the sampler that it recommends."""

from __future__ import annotations

import jax

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.storage import Reader
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.evals.settings import SETTINGS
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.new_model import abstract
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.registry import to_dict
from jaxsink.zoo.builtin import BUILTIN
from jaxsink.zoo.names import suggestions
from jaxsink.zoo.presets import HUB_IDS, PRESETS
from jaxsink.zoo.recommend import recommended
from jaxsink.zoo.resolve import TEXT_NAMES, resolve


@checked()
def models(part: str = "") -> dict[str, dict[str, JsonObject]]:
    """Models and evaluation settings by name, as {"built-in", "published", "settings"}.

    Args:
        part: only those whose names contain it

    Examples:
        >>> list(jaxsink.models("mini")["built-in"])
        ['mini-llama', 'mini-llada', 'mini-dream']
    """
    listed = list_models()
    found = {
        kind: {name: facts for name, facts in known.items() if part.lower() in name} for kind, known in listed.items()
    }
    if not any(found.values()):
        near = suggestions(part, [name for known in listed.values() for name in known])
        hint = f"did you mean {' or '.join(near)}?" if near else "`jaxsink models` lists all."
        raise JaxsinkError(f"no model and no setting has {part!r} in its name; {hint}")
    return found


def list_models() -> dict[str, dict[str, JsonObject]]:
    builtin = {name: facts_of(known.config, known.sampler) for name, known in BUILTIN.items()}
    for name in TEXT_NAMES:
        stored = Reader(resolve(name))
        builtin[name] = facts_of(stored.config, stored.sampler or recommended(stored.config))
    published = {
        name: {**facts_of(config, recommended(config, (name,))), "hub_id": HUB_IDS.get(name)}
        for name, config in PRESETS.items()
    }
    settings = {
        name: {
            "model": setting.model,
            "benchmark": setting.benchmark,
            "sampler": to_dict(setting.sampler()),
            "basis": setting.basis,
            "reported": setting.reported,
        }
        for name, setting in SETTINGS.items()
    }
    return {"built-in": builtin, "published": published, "settings": settings}


def facts_of(config: ModelConfig, sampler: Sampler) -> JsonObject:
    return {
        "family": config.family,
        "diffusion": config.is_diffusion,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(abstract(config))),
        "layers": config.layers,
        "heads": config.heads,
        "sampler": to_dict(sampler),
    }
