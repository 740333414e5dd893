"""What a training run is: everything that, with the model's configuration, decides its result."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from jaxsink.errors import JaxsinkError

Objective = Literal["causal", "diffusion", "adaptation"]


@dataclass(frozen=True)
class Settings:
    """objective: "causal" (next token), "diffusion" (masked tokens, from scratch), or "adaptation" (the same from the
    weights of an autoregressive model, while its causal mask is opened).

    predict: "response" takes the question as given (fine-tuning), "all" learns to write it too (pre-training), "mixed" does
    so in one sequence of four: where the question is masked as well, a sum can only be done from the tokens around it.
    noise: how tokens are chosen to be masked, see losses.py. ramp: part of the run over which the largest noise level
    grows from LEAST to 1. opening: part of the run over which a causal mask opens.
    decay: weight decay, on matrices of the layers only. checkpoints: how many models are kept along the way.
    """

    objective: Objective
    steps: int
    batch: int = 32
    learning_rate: float = 2e-3
    warmup: int = 100
    decay: float = 0.1
    clip: float = 1.0
    seed: int = 0
    dtype: str = "float32"
    predict: Literal["response", "mixed", "all"] = "response"
    noise: Literal["count", "bernoulli"] = "count"
    ramp: float = 0.0
    opening: float = 0.2
    init: str | None = None
    checkpoints: int = 12

    def check(self, devices: int = 1) -> None:
        for name in ("steps", "batch", "checkpoints"):
            if getattr(self, name) < 1:
                raise JaxsinkError(f"training: {name} must be at least 1, and is {getattr(self, name)}.")
        for name in ("warmup", "decay"):
            if getattr(self, name) < 0:
                raise JaxsinkError(f"training: {name} must not be negative, and is {getattr(self, name)}.")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise JaxsinkError(f"training: {name.replace('_', ' ')} must be above 0, and is {getattr(self, name)}.")
        if not 0 <= self.opening <= 1:
            raise JaxsinkError(f"training: opening is a part of the run, from 0 to 1, and is {self.opening}.")
        if self.batch % devices:
            raise JaxsinkError(f"training: a batch of {self.batch} cannot be shared evenly by {devices} devices.")
        if (self.objective == "adaptation") and self.init is None:
            raise JaxsinkError("training: an adaptation starts from an autoregressive model; name one (--init).")

    @property
    def opening_steps(self) -> int:
        """Steps at the beginning during which some pairs of tokens are still hidden from each other."""
        return int(self.opening * self.steps) if self.objective == "adaptation" else 0

    def milestones(self) -> tuple[int, ...]:
        """Steps after which a model is kept: close together at first, where sinks appear, and at the end."""
        wanted = {round(self.steps * 2.0 ** (n - self.checkpoints + 1)) for n in range(self.checkpoints)}
        even = {round(self.steps * (n + 1) / 4) for n in range(4)}
        return tuple(sorted(step for step in wanted | even if 0 < step <= self.steps))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
