"""How the GPU kernel cuts its work: blocks of queries and keys that fit into registers and shared memory of every chip."""

from __future__ import annotations

from typing import NamedTuple

SMALLEST = 16  # side of what tensor cores multiply
WARPS = 8


class Blocks(NamedTuple):
    """Powers of two, as Triton wants them. width: the head size, rounded up."""

    queries: int
    keys: int
    width: int
    warps: int
    stages: int  # loads of the next blocks run beside the products of this one


# (width, bytes of a number): queries x keys, stages. The largest of those tried for which the compiler spills no register on
# any chip (benchmarks/gpu_kernel.py).
CHOSEN = {
    (64, 2): (128, 64, 2),
    (128, 2): (128, 64, 2),
    (256, 2): (64, 32, 2),
    (64, 4): (64, 32, 2),
    (128, 4): (32, 32, 2),
    (256, 4): (32, 16, 1),
}


def choose_blocks(queries: int, head_dim: int, item: int) -> Blocks:
    """item: the size of a number in bytes. Short sequences take smaller blocks."""
    width = power_of_two(head_dim)
    most, keys, stages = CHOSEN[max(64, min(width, 256)), 2 if item <= 2 else 4]
    return Blocks(min(most, power_of_two(queries)), keys, width, WARPS, stages)


def power_of_two(size: int) -> int:
    """The next one, at least SMALLEST."""
    return max(SMALLEST, 1 << (size - 1).bit_length())
