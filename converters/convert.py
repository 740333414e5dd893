"""Convert a checkpoint: check everything first, then stream tensor by tensor into an Orbax checkpoint."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxsink.cloud import is_remote
from jaxsink.errors import JaxsinkError
from jaxsink.hub import HUB_ID
from jaxsink.origin import TOKENIZER_FILES, model_names
from jaxsink.progress import human_bytes
from jaxsink.sampling.recommend import recommended_entry
from jaxsink.storage import dtype_name
from jaxsink.tokenizer import Tokenizer, check_special_ids
from jaxsink.writing import Writer, writer

from . import hub
from .gguf_source import GgufSource
from .load import open_source, tokenizer_files
from .plan import Plan, check_tied_copy, make_plan, read_piece
from .source import Source, check_file, read_json
from .verify import compare_logits, compare_tensors

READ_AS_JSON = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"}
SPARE_BYTES = 64 << 20  # left free on the disk

Progress = Callable[[str, int, int], None]  # (what, bytes done, bytes in all)


@dataclass
class Report:
    """What a conversion did, ready for `--json`."""

    source: str
    target: str
    family: str
    dtype: str
    tensors: int
    parameters: int
    bytes: int
    revision: str | None = None
    warnings: list[str] = field(default_factory=list)
    verified: dict[str, Any] | None = None


def convert(
    src: str,
    dst: str,
    dtype: Any = None,
    verify: bool = False,
    overwrite: bool = False,
    revision: str | None = None,
    ignore_settings: Iterable[str] = (),
    mask_id: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Convert `src` (a directory, a GGUF file or a hub id) into the checkpoint `dst`: a directory, or gs://bucket/name."""
    path, commit = locate(src, revision)
    target = dst if is_remote(dst) else Path(os.path.realpath(os.path.expanduser(dst)))
    if isinstance(target, Path):
        check_apart(path, target)
    source = open_source(path)
    plan = make_plan(source, path, ignore_settings, mask_id)
    dtype = plan.dtype if dtype is None else dtype_name(dtype)
    size = plan.bytes(dtype)
    check_space(target if isinstance(target, Path) else Path(tempfile.gettempdir(), "checkpoint"), size)

    origin: dict[str, Any] = {"kind": source.kind, "path": str(src), "revision": commit}
    report = Report(str(src), str(target), plan.family.name, dtype, len(source.tensors), plan.parameters, size, commit)
    sampler = recommended_entry(plan.config, [*model_names(str(src)), *model_names(str(path.absolute()))])
    with writer(target, plan.config, dtype, origin, overwrite, sampler) as out:
        carried = carry_tokenizer(source, path, out.folder)
        report.warnings = [*plan.notes, *check_tokenizer(out.folder, path, plan)]
        with FileHashes([*source.files, *carried]) as hashes:
            check_tied_copy(plan, source)
            stream(plan, source, dtype, out, progress)
            origin["files"] = hashes.result()
        out.finish()
        if verify:
            report.verified = compare_tensors(plan, source, dtype, out.folder, progress)
            report.verified |= compare_logits(plan, path, dtype, out.folder)
    return report


def locate(src: str, revision: str | None) -> tuple[Path, str | None]:
    path = Path(os.path.expanduser(src))
    if not os.path.lexists(path) and HUB_ID.fullmatch(src):
        return hub.fetch(src, revision)
    if revision is not None:
        raise JaxsinkError(f"--revision is for hub ids, but {src} is a local path.")
    return path, None


def check_apart(source: Path, target: Path) -> None:
    """Neither may lie in the other: a source is never written to, and never replaced."""
    real = Path(os.path.realpath(source))
    if real.is_dir() and target.is_relative_to(real):
        raise JaxsinkError(
            f"{target} lies inside the source {source}, which is never written to; choose another place."
        )
    if real.is_relative_to(target):
        raise JaxsinkError(
            f"the source {source} lies inside {target}, where the result should go; choose another place."
        )


def check_space(target: Path, size: int) -> None:
    """Before anything is written: is there room for it?"""
    folder = next((parent for parent in target.parents if parent.is_dir()), Path("/"))
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_BYTES:
        raise JaxsinkError(f"{folder} has {human_bytes(free)} free, and the checkpoint needs {human_bytes(size)}.")


def stream(plan: Plan, source: Source, dtype: str, out: Writer, progress: Progress) -> None:
    done, total = 0, plan.bytes(dtype)
    for piece in plan.pieces:
        value = read_piece(plan, source, piece, dtype)
        out.add(piece.name, value)
        done += value.nbytes
        progress("converting", done, total)


def carry_tokenizer(source: Source, path: Path, folder: Path) -> list[Path]:
    """Tokenizer, chat template and generation settings go along unchanged; a GGUF's tokenizer is written out."""
    if isinstance(source, GgufSource):
        for name, text in tokenizer_files(path).items():
            (folder / name).write_text(text, encoding="utf-8", errors="replace")
        return []
    carried = [path / name for name in TOKENIZER_FILES if os.path.lexists(path / name)]
    for file in carried:
        check_file(file)
        if file.name in READ_AS_JSON:
            read_json(file)
        try:
            shutil.copyfile(file, folder / file.name)
        except OSError as error:
            raise JaxsinkError(f"cannot copy {file} to {folder.parent}: {error.strerror}.") from error
    return [file for file in carried if file not in source.files]


def check_tokenizer(folder: Path, path: Path, plan: Plan) -> list[str]:
    """What the tokenizer and the model's settings disagree about; messages name the source, not the copy."""
    if not (folder / "tokenizer.json").exists() and not (folder / "vocab.json").exists():
        return ["the source has no tokenizer.json, so the checkpoint takes token ids only"]
    try:
        warnings = check_special_ids(Tokenizer.load(folder, plan.family.name), plan.config)
    except JaxsinkError as error:
        raise JaxsinkError(str(error).replace(str(folder), str(path))) from error
    return [warning.replace(str(folder), str(path)) for warning in warnings]


class FileHashes:
    """sha256 of the source files, computed beside the conversion."""

    def __init__(self, files: list[Path]):
        self.files = files
        self.found: list[dict[str, Any]] = []
        self.error: OSError | None = None
        self.stopped = False
        self.thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> FileHashes:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped = True
        self.thread.join()

    def _run(self) -> None:
        block = memoryview(bytearray(1 << 20))
        try:
            for file in self.files:
                if self.stopped:
                    return
                digest, size = hashlib.sha256(), 0
                with file.open("rb", buffering=0) as opened:
                    while not self.stopped and (count := opened.readinto(block)):
                        digest.update(block[:count])
                        size += count
                self.found.append({"name": file.name, "bytes": size, "sha256": digest.hexdigest()})
        except OSError as error:
            self.error = error

    def result(self) -> list[dict[str, Any]]:
        self.thread.join()
        if self.error is not None:
            raise JaxsinkError(f"cannot read {self.error.filename}: {self.error.strerror}.")
        return self.found
