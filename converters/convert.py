"""Convert a checkpoint: check everything first, then stream tensor by tensor into an Orbax checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jaxsink.checkpoints.gcs import is_remote
from jaxsink.checkpoints.hub import HUB_ID
from jaxsink.checkpoints.origin import TOKENIZER_FILES, model_names
from jaxsink.checkpoints.storage import dtype_name
from jaxsink.checkpoints.writer import Writer, writer
from jaxsink.errors import JaxsinkError
from jaxsink.plugins import Conversion
from jaxsink.runs.files import check_file, read_json, user_path
from jaxsink.runs.progress import BytesProgress, bytes_progress, human_bytes
from jaxsink.runs.stopping import IsStopped, StoppedError, never
from jaxsink.text.tokenizer import Tokenizer, check_special_ids
from jaxsink.zoo.recommend import recommended_entry

from . import hub
from .gguf_source import GgufSource
from .hashing import FileHashes
from .load import open_source, tokenizer_files
from .plan import Plan, check_tied_copy, make_plan, read_piece
from .source import Source
from .verify import compare_logits, compare_tensors

READ_AS_JSON = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"}
SPARE_BYTES = 64 << 20  # left free on the disk


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    dtype: Any = None,
    verify: bool = False,
    overwrite: bool = False,
    revision: str | None = None,
    ignore_settings: Iterable[str] = (),
    mask_id: int | None = None,
    is_stopped: IsStopped = never,
) -> Conversion:
    """See `jaxsink.convert`."""
    src, dst = os.fspath(src), os.fspath(dst)
    path, commit = locate(src, revision)
    target = dst if is_remote(dst) else Path(os.path.realpath(user_path(dst)))
    if isinstance(target, Path):
        check_apart(path, target)
    source = open_source(path)
    plan = make_plan(source, path, ignore_settings, mask_id)
    dtype = plan.dtype if dtype is None else dtype_name(dtype)
    size = plan.bytes(dtype)
    origin: dict[str, Any] = {"kind": source.kind, "path": str(src), "revision": commit}
    report = Conversion(
        str(src), str(target), plan.family.name, dtype, len(source.tensors), plan.parameters, size, commit
    )
    sampler = recommended_entry(plan.config, [*model_names(str(src)), *model_names(str(path.absolute()))])
    with bytes_progress() as progress, writer(target, plan.config, dtype, origin, overwrite, sampler) as out:
        check_space(out.folder.parent, size)  # now that nothing is left of a run that was killed
        carried = carry_tokenizer(source, path, out.folder)
        report.warnings = [*plan.notes, *check_tokenizer(out.folder, path, plan)]
        with FileHashes([*source.files, *carried], source.read_in_order) as hashes:
            check_tied_copy(plan, source)
            source.listener = hashes.add
            stream(plan, source, dtype, out, progress, is_stopped)
            source.listener = None
            origin["files"] = hashes.result()
        out.finish()
        if verify:
            report.verified = compare_tensors(plan, source, dtype, out.folder, progress)
            report.verified |= compare_logits(plan, path, dtype, out.folder)
    return report


def locate(src: str, revision: str | None) -> tuple[Path, str | None]:
    path = user_path(src)
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
            f"{target} lies inside the source {source}, which is never written to; choose another directory."
        )
    if real.is_relative_to(target):
        raise JaxsinkError(
            f"the source {source} lies inside {target}, where the result should go; choose another directory."
        )


def check_space(folder: Path, size: int) -> None:
    """Before anything is written: is there room for it?"""
    free, needed = shutil.disk_usage(folder).free, size + SPARE_BYTES
    if free < needed:
        raise JaxsinkError(
            f"{folder} has {human_bytes(free)} free, and converting needs {human_bytes(needed)} ({human_bytes(size)} for "
            f"the weights, and {human_bytes(SPARE_BYTES)} to spare); free {human_bytes(needed - free)} or choose another "
            "directory."
        )


def stream(plan: Plan, source: Source, dtype: str, out: Writer, progress: BytesProgress, is_stopped: IsStopped) -> None:
    done, total = 0, plan.bytes(dtype)
    for piece in plan.pieces:
        if is_stopped():
            raise StoppedError
        value = read_piece(plan, source, piece, dtype)
        out.add(piece.name, value)
        done += value.nbytes
        progress("converting", done, total)


def carry_tokenizer(source: Source, path: Path, folder: Path) -> list[Path]:
    """Tokenizer, chat template and generation settings are copied unchanged; a GGUF's tokenizer is written out."""
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
