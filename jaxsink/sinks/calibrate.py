"""ε of Eq. 3 calibrated to a number of keys: the second reading of the study's Table 1.

Its rows are labelled ε₀, ε₁, ε₂, "selected to mask the top 1, 5, 10": exactly K keys of every head, or one ε per model, such
that K keys pass on average.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Shaped

from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.recording.margin import margin
from jaxsink.sinks.rules import with_mask


@checked(k=at_least(0))
def calibrate_eps(
    received: Float[ArrayLike, "*axes S"], k: float, mask: Shaped[ArrayLike, "..."] | None = None
) -> float:
    """ε such that k keys per head, on average, pass Eq. 3 on these records.

    ε lies half-way between the last margin that is to pass and the next one. Maps that received nothing, those of steps
    that a sequence did not take, do not count.

    Args:
        received: attention that each key receives, with any leading axes, as for `detect`
        mask: as for `detect`

    Examples:
        >>> eps = jaxsink.sinks.calibrate_eps(out.record, 1.0, out.mask)
        >>> sinks = jaxsink.sinks.detect(out.record, jaxsink.sinks.Threshold(eps), out.mask)
        >>> round(float(sinks.sum(axis=-1).mean()), 2)
        1.0
    """
    scores, real = with_mask(received, mask)
    real = jnp.broadcast_to(real, scores.shape)
    counts = np.asarray((jnp.where(real, scores, 0.0) > 0).any(axis=-1))
    margins = np.sort(np.asarray(margin(scores, real), np.float64)[np.asarray(real) & counts[..., None]])[::-1]
    passing = round(k * counts.sum())
    if not 0 < passing < len(margins):
        keys = len(margins) / max(1, counts.sum())
        raise JaxsinkError(
            f"calibrate_eps: {k:g} keys per head cannot be singled out of {counts.sum()} maps with {keys:.3g} keys on "
            "average."
        )
    return float((margins[passing - 1] + margins[passing]) / 2)
