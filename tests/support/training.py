"""Training runs of models in miniature."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxsink.training.data import TaskData
from jaxsink.training.recipe import Recipe
from jaxsink.training.run import Training
from jaxsink.zoo import builtin

TINY = {
    name: replace(model, config=model.config.replace(layers=2, width=16, heads=2, kv_heads=2, head_dim=8, mlp_width=16))
    for name, model in builtin.BUILTIN.items()
}


def tiny_run(out: Path, name: str = "mini-llama", **settings: Any) -> Training:
    known = TINY[name]
    fixed = {"steps": 12, "batch": 8, "checkpoints": 3, "warmup": 3, **settings}
    recipe = Recipe(name, known.config, known.sampler, replace(known.settings, **fixed), TaskData())
    return Training(recipe, out)
