"""How the attention kernel cuts its work: blocks of queries, tiles of keys, and what of it fits into VMEM."""

from __future__ import annotations

from typing import NamedTuple

from jaxsink.errors import JaxsinkError

LANES = 128  # the last axis of everything in VMEM lies in rows of this many numbers
PIECES = ((256, 2048), (128, 2048), (64, 1024), (32, 1024), (16, 1024))  # queries x keys, the fastest first
SMALLEST_BLOCK = 16  # rows of bfloat16 numbers that the hardware moves at once
MIB = 1 << 20
SMALL_VMEM, LARGE_VMEM = 13 * MIB, 48 * MIB  # what the kernel may plan with, of 16 MiB and of 64 MiB or more
SMALL_CHIPS = ("TPU v2", "TPU v3", "TPU v4")  # how the names of devices with 16 MiB begin


class Tiles(NamedTuple):
    """Sizes that are multiples of what the hardware moves; the number of blocks times their size covers everything."""

    query_block: int
    query_blocks: int
    key_tile: int
    key_tiles: int

    @property
    def queries(self) -> int:
        return self.query_block * self.query_blocks

    @property
    def keys(self) -> int:
        return self.key_tile * self.key_tiles


def up_to(size: int, multiple: int) -> int:
    """The size, rounded up."""
    return -(-size // multiple) * multiple


def cut(size: int, largest: int, multiple: int) -> tuple[int, int]:
    """(size of a part, number of parts): as few parts as `largest` allows, and as equal as `multiple` allows."""
    parts = -(-size // largest)
    return up_to(-(-size // parts), multiple), parts


def choose_tiles(queries: int, keys: int, head_dim: int, item: int, budget: int, statistics: bool) -> Tiles:
    """The fastest pieces that the budget of VMEM bytes allows; `item` is the size of a number in bytes."""
    for rows, widest in PIECES:
        tile, tiles = cut(keys, widest, LANES)
        if vmem_bytes(rows, tile, tiles, head_dim, item, statistics) <= budget:
            one = rows >= queries
            block, blocks = (up_to(queries, SMALLEST_BLOCK), 1) if one else cut(queries, rows, min(rows, LANES))
            return Tiles(block, blocks, tile, tiles)
    raise JaxsinkError(f"{keys} keys are too many for the attention kernel on this chip; take backend='blocked'.")


def vmem_bytes(rows: int, tile: int, tiles: int, head_dim: int, item: int, statistics: bool) -> int:
    """What one program holds, roughly: inputs and outputs twice (one is moved while one is used), and what it computes."""
    moved = 2 * item * head_dim * (2 * rows + 2 * tile)
    kept = 4 * rows * (head_dim + 2 * LANES)
    computed = 3 * 4 * rows * tile
    if statistics:
        kept += 4 * rows * tiles * (tile + LANES) + 2 * 4 * 8 * tile * tiles
    return moved + kept + computed


def vmem_budget(device_kind: str) -> int:
    return SMALL_VMEM if device_kind.startswith(SMALL_CHIPS) else LARGE_VMEM
