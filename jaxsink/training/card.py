"""The model card: what a trained model is, how it was made, how good it is, and the command that makes it again."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from jaxsink.nn.config import ModelConfig
from jaxsink.tasks.task import LARGEST, TEMPLATES, TEST_SHARE, Split, combinations
from jaxsink.training.optimizer import MUON
from jaxsink.training.settings import Settings

SPLITS: tuple[Split, ...] = ("train", "test")
KINDS = {
    "causal": "An autoregressive model: each token from those before it",
    "diffusion": "A masked diffusion model trained from scratch: masked tokens from all others, weighted 1/t",
    "adaptation": "A masked diffusion model adapted from an autoregressive one: its causal mask was opened step by step, "
    "and its logits stay shifted by one position",
}

LEARNED = {
    "response": "the answers",
    "mixed": "the answers, and in one sequence of four on the questions too",
    "all": "all tokens",
}


def write_card(
    name: str, config: ModelConfig, sampler: Any, settings: Settings, result: dict[str, Any], command: str
) -> str:
    """The text of README.md; `command` trains the model again."""
    found, (low, high) = result["accuracy"], result["accuracy"]["interval"]
    start = f"the weights of `{settings.init}`" if settings.init else "random weights"
    opening = f"The mask was fully open after {settings.opening_steps:,} steps. " if settings.opening_steps else ""
    learned = LEARNED[settings.predict]
    held, known = (sum(len(combinations(t.name, s)) for t in TEMPLATES for s in group) for group in (("test",), SPLITS))
    curve = "\n".join(f"| {step:,} | {loss:.4g} |" for step, loss in result["loss"])
    chosen = ", ".join(f"{key}={value!r}" for key, value in asdict(sampler).items() if value not in (None, False))
    return f"""# {name}

{KINDS[settings.objective]}. {result["parameters"]:,} parameters: {config.layers} layers of width
{config.width}, {config.heads} heads of {config.head_dim}, mlp {config.mlp_width}, {config.vocab} tokens. It comes with
jaxsink for experiments on attention sinks, and can do nothing but this task.

**Accuracy**: {found["share"]:.1%} of {found["total"]:,} held-out problems (exact match, 95 % interval {low:.1%} to
{high:.1%}), measured on the stored weights ({result["stored"]}) in float32, with
`{type(sampler).__name__}({chosen})`.

**Data**: word problems from `jaxsink.tasks.task`, seed {settings.seed}: {len(TEMPLATES)} templates, one to three steps,
numbers up to {LARGEST}. One combination of template and numbers in {TEST_SHARE} is held out ({held} of
{known}), so that no test problem differs from a training problem in names only.

**Training**: {settings.steps:,} steps of {settings.batch} problems ({result["tokens"]:,} tokens, all
problems drawn anew) from {start}, loss on {learned}, Muon and
Adam, learning rate {settings.learning_rate:g} (Muon {MUON * settings.learning_rate:g}) after
{settings.warmup} steps of warm-up, then a cosine, weight decay {settings.decay:g},
gradients clipped at {settings.clip:g}, {settings.dtype}, seed {settings.seed}. {opening}It took {result["minutes"]:.0f}
minutes on a shared two-core CPU ({result["tokens_per_second"]:,.0f} tokens/s).

```bash
{command}
```

| step | loss |
| ---: | ---: |
{curve}
"""
