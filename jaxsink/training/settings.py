"""What a training run is: everything that, with the model's configuration and the data, decides its result."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from jaxsink.checks import Range, above, at_least, check_fields
from jaxsink.errors import JaxsinkError

Objective = Literal["causal", "diffusion", "adaptation", "block_diffusion"]
Optimizer = Literal["adamw", "muon"]
Predict = Literal["response", "mixed", "all"]
Noise = Literal["count", "bernoulli"]


RANGES = {
    **dict.fromkeys(("steps", "batch", "accumulate", "checkpoints"), at_least(1)),
    **dict.fromkeys(("warmup", "decay", "lora", "ramp"), at_least(0)),
    **dict.fromkeys(("learning_rate", "clip"), above(0)),
    "opening": Range(0, 1),
    "length": at_least(2),
    "validation": Range(0, 1, frozenset({0, 1})),
}
"""Of the settings of a run, and of its data (data.py)."""


@dataclass(frozen=True)
class Settings:
    """objective: "causal" (next token), "diffusion" (masked tokens), "adaptation" (the same from the weights of an
    autoregressive model, while its causal mask is opened), or "block_diffusion" (masked tokens of a block, given the
    blocks before it).

    accumulate: parts of a batch that run one after another, for memory; it changes nothing but the order of sums.
    optimizer: Muon for the matrices of the layers, or AdamW for everything. lora: rank of the adapters that are trained
    instead of the weights; 0 trains the weights.
    predict: "response" takes the question as given (fine-tuning), "all" learns to write it too (pre-training), "mixed" does
    so in one sequence of four: where the question is masked as well, a sum can only be done from the tokens around it.
    Plain text has no questions.
    noise: how tokens are chosen to be masked, see examples.py. ramp: part of the run over which the largest noise level
    grows from LEAST to 1. opening: part of the run over which a causal mask opens.
    decay: weight decay, on matrices of the layers only. init: the checkpoint that the weights are from; None: random ones.
    checkpoints: how many models are kept along the way.
    """

    objective: Objective
    steps: int
    batch: int = 32
    accumulate: int = 1
    optimizer: Optimizer = "muon"
    learning_rate: float = 2e-3
    warmup: int = 100
    decay: float = 0.1
    clip: float = 1.0
    lora: int = 0
    seed: int = 0
    dtype: str = "float32"
    predict: Predict = "response"
    noise: Noise = "count"
    ramp: float = 0.0
    opening: float = 0.2
    init: str | None = None
    checkpoints: int = 12

    def check(self, devices: int = 1) -> None:
        """Raise a JaxsinkError if there is no such run."""
        check_fields(self, "training", RANGES)
        together = devices * self.accumulate
        parts = f"{devices} devices" + (f" in {self.accumulate} parts" if self.accumulate > 1 else "")
        require(self.batch % together == 0, f"a batch of {self.batch} cannot be shared evenly by {parts}.")
        require(
            self.objective != "adaptation" or self.init is not None,
            "an adaptation starts from an autoregressive model; name one (--init).",
        )
        require(
            not self.lora or self.optimizer == "adamw",
            "Muon is for whole matrices; train adapters (lora) with optimizer='adamw'.",
        )

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


def require(condition: bool, message: str) -> None:
    if not condition:
        raise JaxsinkError(f"training: {message}")
