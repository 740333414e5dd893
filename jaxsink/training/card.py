"""The model card: what a trained model is, how it was made, how good it is, and the command that makes it again."""

from __future__ import annotations

import textwrap

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.sampling.registry import to_dict
from jaxsink.training.data import TaskData
from jaxsink.training.optimizer import MUON
from jaxsink.training.recipe import Recipe
from jaxsink.training.settings import Objective, Settings

KINDS: dict[Objective, str] = {
    "causal": "An autoregressive model: each token from those before it",
    "diffusion": "A masked diffusion model: masked tokens from all others, weighted 1/t",
    "adaptation": "A masked diffusion model adapted from an autoregressive one: its causal mask was opened step by step, "
    "and its logits stay shifted by one position",
    "block_diffusion": "A block diffusion model: masked tokens of a block from that block and those before it, weighted 1/t",
}
LEARNED = {
    "response": "the answers",
    "mixed": "the answers, and in one sequence of four on the questions too",
    "all": "all tokens",
}


def write_card(recipe: Recipe, result: JsonObject, command: str) -> str:
    """The text of README.md; `command` trains the model again."""
    config, settings = recipe.config, recipe.settings
    curve = "\n".join(f"| {step:,} | {loss:.4g} |" for step, loss in result["loss"])
    looks = "\n".join(
        f"| {look['step']:,} | {look['validation_loss']:.4g} | {look['alpha_first']:.2f} | {look['heads_above']:.0%} | "
        f"{look['sinks_per_head']:.2f} |"
        for look in result["sinks"]
    )
    return f"""# {recipe.name}

{KINDS[settings.objective]}. {result["parameters"]:,} parameters: {config.layers} layers of width
{config.width}, {config.heads} heads of {config.head_dim}, mlp {config.mlp_width}, {config.vocab} tokens. Trained with
jaxsink for experiments on attention sinks; it can do nothing but what it was trained on.

{quality(recipe, result)}

**Data**: {data(recipe)}

**Training**: {training(recipe, result)}

```bash
{command}
```

| step | loss |
| ---: | ---: |
{curve}

Along the way, on held-out sequences: the loss, the attention that the first token receives (mean over heads; share of heads
above 0.3), and keys per head that pass Eq. 3 with ε = 3.

| step | loss | first token | heads above 0.3 | sinks per head |
| ---: | ---: | ---: | ---: | ---: |
{looks}
"""


def quality(recipe: Recipe, result: JsonObject) -> str:
    """The loss on held-out data, and accuracy where there is one."""
    loss = held_out(recipe, result["validation_loss"], result["stored"])
    if "accuracy" not in result:
        return loss
    found, (low, high) = result["accuracy"], result["accuracy"]["interval"]
    said = {
        key: value for key, value in to_dict(recipe.sampler).items() if value not in (None, False) and key != "name"
    }
    chosen = ", ".join(f"{key}={value!r}" for key, value in said.items())
    share = f"{found['share']:.1%} of {found['total']:,} held-out problems"
    return f"""**Accuracy**: {share} (exact match, 95 % interval {low:.1%} to
{high:.1%}), measured on the stored weights ({result["stored"]}) in float32, with
`{type(recipe.sampler).__name__}({chosen})`.

{loss}"""


def held_out(recipe: Recipe, loss: float, stored: str) -> str:
    what = "next tokens" if recipe.settings.objective == "causal" else "the bound on log p"
    return f"**Loss on held-out data**: {loss:.4f} nats per token ({what}, {stored} weights)."


def data(recipe: Recipe) -> str:
    if not isinstance(recipe.data, TaskData):
        facts = recipe.data.facts
        return (
            f"{', '.join(facts['sources'])}: {facts['tokens']:,} tokens to train on, in windows of {facts['length']} at\n"
            f"random places (seed {recipe.settings.seed}); its end is held out. SHA-256 of the tokens: `{facts['digest']}`."
        )
    task = recipe.data.task
    text = f"word problems ({task.name}), seed {recipe.settings.seed}: {task.about()}"
    return textwrap.fill(text, 110)


def training(recipe: Recipe, result: JsonObject) -> str:
    settings = recipe.settings
    start = f"the weights of `{settings.init}`" if settings.init else "random weights"
    what = f"adapters of rank {settings.lora}" if settings.lora else "all weights"
    opening = f"The mask was fully open after {settings.opening_steps:,} steps. " if settings.opening_steps else ""
    size = f"{settings.batch} sequences of {recipe.data.length}"
    return f"""{settings.steps:,} steps of {size} ({result["tokens"]:,} tokens) from
{start}, {what}, loss on {LEARNED[settings.predict]}, {optimizer(settings)} after
{settings.warmup} steps of warm-up, then a cosine, weight decay {settings.decay:g}, gradients clipped at {settings.clip:g},
{settings.dtype}, seed {settings.seed}. {opening}It took {result["minutes"]:.0f} minutes on {result["machine"]}
({result["tokens_per_second"]:,.0f} tokens/s, {result["gflops"]:.0f} GFLOP/s)."""


def optimizer(settings: Settings) -> str:
    rate = settings.learning_rate
    if settings.optimizer == "adamw":
        return f"AdamW, learning rate {rate:g}"
    return f"Muon and Adam, learning rate {rate:g} (Muon {MUON * rate:g})"
