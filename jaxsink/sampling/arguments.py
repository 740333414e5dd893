"""What `generate` is given: is it of the right kind, and does it go together?"""

from __future__ import annotations

from typing import Any

from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling import interventions
from jaxsink.sampling.samplers import ARSampler


def check_arguments(
    config: ModelConfig, sampler: Any, intervene: Any, force: Any, edit_logits: Any, edit_tokens: Any
) -> None:
    """One sentence about the first thing that cannot be."""
    check_sampler(sampler)
    sampler.check(config)
    interventions.check(intervene, config)
    is_ar = isinstance(sampler, ARSampler)
    if not is_ar and config.mask_id is None:
        raise JaxsinkError(f"a {config.family} model has no mask token, so {type(sampler).__name__} cannot run on it.")
    for name, edit in (("edit_logits", edit_logits), ("edit_tokens", edit_tokens)):
        if edit is not None and is_ar:
            raise JaxsinkError("edit_logits and edit_tokens are for diffusion samplers.")
        if edit is not None and not callable(edit):
            raise JaxsinkError(f"{name} must be a function that JAX can trace, not {edit!r}.")
    if force is not None and not is_ar:
        raise JaxsinkError("force is for autoregressive models; masks in the prompt make a diffusion model fill gaps.")


def check_sampler(sampler: Any) -> None:
    """A sampler, or something that offers what the loop needs of one."""
    if isinstance(sampler, type):
        raise JaxsinkError(f"sampler is the class {sampler.__name__}; give one of its objects, {sampler.__name__}(…).")
    if not callable(getattr(sampler, "check", None)) or not hasattr(sampler, "length"):
        raise JaxsinkError(
            "sampler must be a LLaDASampler, DreamSampler, SDARSampler or ARSampler, or None for the one that the model "
            f"recommends, not {type(sampler).__name__}: {sampler!r}."
        )
