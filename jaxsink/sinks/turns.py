"""Several masking policies in one batch, so that all conditions of an experiment share one compiled program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxsink.errors import JaxsinkError
from jaxsink.record import received
from jaxsink.sampling.intervene import Previous, ranks_on_clean
from jaxsink.sinks.mask import MaskSinks


@dataclass(frozen=True)
class Turns:
    """An `intervene` for generate: row b follows policies[b modulo their number]; None hides nothing.

    Rows do not notice each other, so each gets what it would get under its policy alone. Every device needs whole
    turns: its share of the batch must be a multiple of the number of policies.
    """

    policies: tuple[MaskSinks | None, ...]

    needs = received()

    def __post_init__(self) -> None:
        object.__setattr__(self, "policies", tuple(self.policies))
        if not self.policies:
            raise JaxsinkError("Turns needs at least one policy.")
        if len({ranks_on_clean(policy) for policy in self.policies if policy is not None}) > 1:
            raise JaxsinkError("Turns: some policies rank on clean maps and some do not; run them apart.")

    @property
    def rank_on(self) -> str:
        return "clean" if any(ranks_on_clean(policy) for policy in self.policies) else "masked"

    def __call__(self, previous: Previous) -> Array:
        batch, turns = previous.tokens.shape[0], len(self.policies)
        if batch % turns:
            raise JaxsinkError(
                f"a device has {batch} rows, which is no multiple of the {turns} policies that take turns."
            )
        parts = [self.part(number, previous) for number in range(turns)]
        if any(jnp.issubdtype(part.dtype, jnp.floating) for part in parts):
            parts = [jnp.where(part, 0.0, 1.0) if part.dtype == bool else part for part in parts]
        together = jnp.stack(parts, axis=2)  # [L,B/turns,turns,H,S]
        return together.reshape(together.shape[0], batch, *together.shape[3:])

    def part(self, number: int, previous: Previous) -> Array:
        """What the policy does to its own rows."""
        policy, turns = self.policies[number], len(self.policies)

        def by_row(x: Any) -> Any:
            return x[number::turns]

        def by_layer(x: Any) -> Any:
            return x[:, number::turns]

        mine = Previous(
            jax.tree.map(by_layer, previous.record), previous.step, by_row(previous.tokens), by_row(previous.mask),
            by_row(previous.prompt), by_row(previous.keys), by_layer(previous.drop),
        )  # fmt: skip
        return jnp.zeros(mine.drop.shape, bool) if policy is None else policy(mine)
