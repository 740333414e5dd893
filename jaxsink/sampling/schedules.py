"""Schedules that are sensitive to the last bit, computed on the host."""

from __future__ import annotations

from functools import cache

import numpy as np


def torch_linspace(start: float, end: float, count: int) -> np.ndarray:
    """f32[count], equal to torch.linspace bit for bit: float32 ends and step, from the start for the first half and from
    the end for the second, rounded once."""
    first, last = np.float32(start), np.float32(end)
    step = np.float64((last - first) / np.float32(count - 1))
    index = np.arange(count)
    upward, downward = np.float64(first) + step * index, np.float64(last) - step * (count - 1 - index)
    return np.where(index < count // 2, upward, downward).astype(np.float32)


@cache
def _ratios(steps: int, eps: float) -> tuple[float, ...]:
    times = torch_linspace(1.0, eps, steps + 1)
    ratio = np.float32(1) - times[1:] / times[:-1]
    ratio[-1] = 1
    return tuple(ratio.tolist())


def dream_ratios(steps: int, eps: float) -> np.ndarray:
    """f32[steps]: the share of the remaining masks that each of Dream's steps commits; 1 at the last."""
    return np.array(_ratios(steps, eps), np.float32)


def linear_quotas(most: int, steps: int) -> np.ndarray:
    """i32[most + 1, steps]: how many of a block's masks each step commits, by how many the block had at first.

    Times run linearly from 1 to 0; the float32 arithmetic is that of dllm's schedule, because halves are rounded, to even.
    Steps that would commit nothing are left out, so that zeros stand at the end.
    """
    left, shares = np.arange(most + 1), np.zeros((most + 1, steps), np.int32)
    for index, step in enumerate(range(steps, 0, -1)):
        before, after = (np.float32(1) - np.float32(n / steps) for n in (step, step - 1))
        kept = float((np.float32(1) - after) / (np.float32(1) - before))
        shares[:, index] = np.minimum(left, np.rint(left * (1 - kept)))
        left = left - shares[:, index]
    return np.take_along_axis(shares, np.argsort(shares == 0, axis=1, kind="stable"), axis=1)
