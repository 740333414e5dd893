"""The shapes of an evaluation: which prompts share a length, and how many sequences share a batch.

    layout([1500, 1510, 1601], conditions=10, response=256, rows=32, share=8)
    # (Bucket(prompt=1664, response=256, sequences=10, rows=16), Bucket(prompt=1536, response=256, sequences=20, rows=24))

A sequence is one question under one condition. `jaxsink evaluate` asks in these shapes and `jaxsink plan` compiles them, so
what fits in a plan fits in the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from jaxsink.errors import JaxsinkError
from jaxsink.evals.batching import round_up

BUCKET = 64  # prompts are padded to a multiple of this
ROWS = 80  # of a batch, where nothing is known of the memory
STREAM = 16  # steps of which a device holds records; also those between two looks at the stop flag


@dataclass(frozen=True)
class Bucket:
    """Sequences whose prompts are padded to the same length. rows: sequences of each batch, padding included."""

    prompt: int
    response: int
    sequences: int
    rows: int

    @property
    def length(self) -> int:
        return self.prompt + self.response

    @property
    def batches(self) -> int:
        return -(-self.sequences // self.rows)


def layout(
    lengths: Iterable[int], conditions: int, response: int, rows: int, share: int = 1, multiple: int = BUCKET
) -> tuple[Bucket, ...]:
    """The buckets for prompts of these lengths, the longest first: if memory does not suffice, that shows at once.

    rows: the most sequences that a batch may have. share: parts into which devices cut a batch (a mesh's data axis).
    """
    counts = Counter(round_up(length, multiple) for length in lengths)
    found = []
    for prompt, questions in sorted(counts.items(), reverse=True):
        sequences = questions * conditions
        found.append(Bucket(prompt, response, sequences, batch_rows(sequences, rows, share)))
    return tuple(found)


def batch_rows(sequences: int, rows: int, share: int) -> int:
    """Sequences of each batch: at most `rows`, a multiple of `share`, and no more than evenly filled batches need."""
    if rows < share:
        raise JaxsinkError(
            f"at most {rows} sequences cannot be shared by the {share} parts of the mesh's data axis; give --rows of at "
            f"least {share}, or a mesh that cuts the batch into fewer parts."
        )
    batches = -(-sequences // (rows // share * share))
    return round_up(-(-sequences // max(1, batches)), share)
