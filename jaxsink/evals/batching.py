"""Work of many lengths in batches of few shapes, so that few programs are compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

Item = TypeVar("Item")


def buckets(items: Iterable[Item], shape_of: Callable[[Item], Any]) -> list[tuple[Any, list[Item]]]:
    """Items by shape, the largest shape first: if memory does not suffice, that shows at once."""
    found: dict[Any, list[Item]] = {}
    for item in items:
        found.setdefault(shape_of(item), []).append(item)
    return sorted(found.items(), key=lambda bucket: bucket[0], reverse=True)


def batch_size(count: int, rows: int, share: int) -> int:
    """Sequences in each batch of a bucket with `count` items: at most about `rows`, and a multiple of `share`."""
    return min(max(1, rows // share), -(-count // share)) * share


def full_batches(items: Iterable[Item], size: int) -> Iterator[tuple[list[Item], int]]:
    """(`size` items, how many of them count): a short last batch is filled up with its last item."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch + batch[-1:] * (size - len(batch)), len(batch)


def round_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def power_of_two(length: int) -> int:
    """The smallest that is not below `length`."""
    return 1 << max(0, length - 1).bit_length()
