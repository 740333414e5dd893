"""Streaming into a checkpoint: arrays go to the disk in groups, and the directory appears when it is complete."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from jaxsink.checkpoints.checksums import Checksums, all_finite, checksum
from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checkpoints.gcs import check_free, is_remote, send
from jaxsink.checkpoints.integrity import FORMAT, MANIFEST, file_checksums, sealed
from jaxsink.checkpoints.origin import TOKENIZER_FILES
from jaxsink.checkpoints.storage import WEIGHTS, abandon, check_source, first_line, orbax, without_chatter
from jaxsink.checkpoints.stored import piece_name
from jaxsink.checkpoints.streaming import GROUP_BYTES, is_layered
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.nn.new_model import abstract
from jaxsink.nn.parameters import named_leaves
from jaxsink.runs.atomic import new_directory, scratch_directory
from jaxsink.runs.files import user_path
from jaxsink.version import __version__

CHUNK_BYTES = 64 << 20
"""Arrays are stored in chunks of at most this size."""


@dataclass
class Writer:
    """Collects arrays and hands them to Orbax in groups, which it writes while the next group is made; see `writer`.

    folder    what is written, beside its target
    manifest  is written last
    group     arrays that wait for the next write
    checksums of all arrays so far, by piece
    writing   Orbax's handle of the group before, on its way to the disk
    """

    folder: Path
    manifest: JsonObject
    group: dict[str, np.ndarray] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)
    writing: Any = None
    finished: bool = False
    failed: bool = False

    def add_parameter(self, name: str, value: Shaped[np.ndarray, "..."]) -> None:
        """A whole parameter of a model in memory, [L, …] for those of the layers."""
        if not all_finite(value):
            raise JaxsinkError(f"{name!r} of the model holds NaN or infinite numbers, so it is not saved.")
        if is_layered(name):
            for layer, part in enumerate(value):
                self.add(piece_name(name, layer), part)
        else:
            self.add(name, value)

    def add(self, piece: str, value: Shaped[np.ndarray, "..."]) -> None:
        """One piece: a parameter, or one layer of it."""
        self.group[piece] = value
        self.checksums[piece] = checksum(value)
        if sum(array.nbytes for array in self.group.values()) >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Begin to write the group."""
        self.wait()
        if self.group:
            size = sum(array.nbytes for array in self.group.values())
            if shutil.disk_usage(self.folder).free < size:
                raise JaxsinkError(f"cannot write to {self.folder.parent}: {os.strerror(errno.ENOSPC)}.")
            ocp = orbax()
            with self._errors(), ocp.Context(array_options=_saving(ocp)):
                self.writing = ocp.partial.save_async(self.folder / WEIGHTS, self.group)
            self.group = {}

    def wait(self) -> None:
        """Until the group before is on the disk."""
        writing, self.writing = self.writing, None
        if writing is not None:
            with self._errors():
                writing.result()

    def finish(self) -> None:
        """Complete the checkpoint, still beside its target; from here on a `Reader` can check it."""
        if not self.finished:
            self.flush()
            self.wait()
            with self._errors():
                orbax().partial.finalize(self.folder / WEIGHTS)
            check_source(self.manifest["source"])
            sums = Checksums(self.checksums).to_manifest() | {"files": file_checksums(self.folder, TOKENIZER_FILES)}
            manifest = sealed({**self.manifest, "checksums": sums})
            (self.folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            self.finished = True

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What the system says about the disk reaches us as the text of a ValueError."""
        try:
            yield
        except (OSError, ValueError) as error:
            self.failed = True
            abandon(error)
            code = re.search(r"os_error_code='(\d+)'", str(error))
            what = os.strerror(int(code[1])) if code else getattr(error, "strerror", None) or first_line(error)
            raise JaxsinkError(f"cannot write to {self.folder.parent}: {what}.") from error

    def settle(self) -> None:
        """Until no write of ours is under way, so that the folder can be removed."""
        with suppress(JaxsinkError):  # what went wrong before is what counts
            self.wait()
        before = None
        while self.failed and before != (before := _contents(self.folder)):
            time.sleep(0.1)


def _contents(folder: Path) -> list[tuple[str, int]]:
    found = []
    for path in sorted(folder.rglob("*")):
        with suppress(OSError):
            found.append((str(path), path.stat().st_size))
    return found


@contextmanager
def writer(
    path: str | os.PathLike[str],
    config: ModelConfig,
    dtype: str,
    source: JsonObject,
    overwrite: bool = False,
    sampler: JsonObject | None = None,
) -> Iterator[Writer]:
    """Write a checkpoint; nothing appears at `path` unless the block ends well. `source` may be filled inside it.

    sampler: the one that the checkpoint recommends, as `jaxsink.sampling.registry.to_dict` has it.

    For a bucket (gs://…) it is written on this machine, where temporary files belong, and sent when it is complete.
    """
    if not os.fspath(path).strip():
        raise JaxsinkError("the name of the checkpoint to write is empty; name a directory.")
    if is_remote(path):
        check_free(path, overwrite)
        with scratch_directory("upload") as folder:
            with writer(folder / "checkpoint", config, dtype, source, sampler=sampler) as out:
                yield out
            send(folder / "checkpoint", path, overwrite)
        return
    manifest = {
        "format": FORMAT,
        "jaxsink": __version__,
        "dtype": dtype,
        "parameters": sum(leaf.size for _, leaf in named_leaves(abstract(config))[0]),
        "config": config.to_dict(),
        "source": source,
    }
    if sampler is not None:
        manifest["sampler"] = sampler
    target = Path(os.path.realpath(user_path(path)))
    with without_chatter(), new_directory(target, MANIFEST, overwrite) as folder:
        out = Writer(folder, manifest)
        try:
            yield out
            out.finish()
        finally:
            out.settle()


def _saving(ocp: Any) -> Any:
    """Weights hardly compress, and compressing takes longer than writing; a shard is read without the whole array."""
    kind = ocp.options.ArrayOptions.Saving
    storage = kind.StorageOptions(chunk_byte_size=CHUNK_BYTES)
    return ocp.options.ArrayOptions(saving=kind(use_compression=False, storage_options=storage))
