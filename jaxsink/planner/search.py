"""The largest batch that fits, in a few compiles: memory grows nearly linearly, so each guess is close."""

from __future__ import annotations

import math
from collections.abc import Callable

TRIES = 4


def largest_batch(
    need: Callable[[int], float],
    limit: float,
    known: dict[int, float],
    multiple: int,
    tries: int = TRIES,
    most: int | None = None,
) -> int | None:
    """The largest multiple of `multiple` that was seen to fit; None if none was. More than `most` are not tried.

    need(batch): bytes, above `limit` or inf where it does not fit. known: what has been tried. The answer is compiled, not
    extrapolated; what lies between it and the first that failed is at most an eighth.
    """
    known = dict(known)
    for _ in range(tries):
        guess = next_guess(known, limit, multiple, most)
        if guess is None:
            break
        known[guess] = need(guess)
    fitting = [batch for batch, size in known.items() if size <= limit and batch % multiple == 0]
    return max(fitting, default=None)


def next_guess(known: dict[int, float], limit: float, multiple: int, most: int | None = None) -> int | None:
    """Where the line through what is known meets the limit; None when that is settled."""
    fits = max((batch for batch, size in known.items() if size <= limit), default=0)
    fails = min((batch for batch, size in known.items() if size > limit), default=None)
    if fails is not None and fails - fits <= max(multiple, fits // 8):
        return None
    points = sorted((batch, size) for batch, size in known.items() if math.isfinite(size))
    near = sorted(points, key=lambda point: abs(point[1] - limit))[:2]
    if len(near) == 2 and near[0][1] != near[1][1]:
        (a, size_a), (b, size_b) = near
        wanted = a + (limit - size_a) * (b - a) / (size_b - size_a)
        wanted = wanted * 0.97 if fails is None or wanted < fails else wanted
    else:
        wanted = 4.0 * fits if fails is None else (fits + fails) / 2
    low, high = fits + multiple, (64 * max(fits, multiple) if fails is None else fails - multiple)
    high = high if most is None else min(high, most)
    guess = round_down(min(max(wanted, low), high), multiple)
    return None if guess in known or guess < multiple else guess


def round_down(value: float, multiple: int) -> int:
    return int(value // multiple) * multiple
