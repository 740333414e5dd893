"""Is a checkpoint what was written? Checksums of its tokenizer files, and the seal of jaxsink.json itself.

The arrays have theirs in checksums.py. All stand in jaxsink.json under `checksums`:

    kind, arrays   how they are made; one for each array
    files          one for each tokenizer file: a flipped bit there is another tokenizer as a rule, not a broken one
    manifest       the seal: of all that jaxsink.json says but the seal, as JSON with sorted keys and no spaces

So an edit of jaxsink.json, of the checksums too, is noticed. They find damage, not malice: who edits it by hand loads
with `verify=False`, and saves what that gives.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from jaxsink.checkpoints.checksums import NEWEST, check_digits, checksum
from jaxsink.checkpoints.formats import JsonObject
from jaxsink.checks import check_value
from jaxsink.errors import JaxsinkError
from jaxsink.runs.files import check_file, read_bytes

MANIFEST = "jaxsink.json"
FORMAT = 2
"""What is written."""
READ = (1, FORMAT)
"""The first has no checksums of files and no seal, and the oldest of it none at all."""


ANYWAY = "verify=False reads it all the same"


def check_format(manifest: Mapping[str, object]) -> int:
    """The format of a manifest, if this jaxsink reads it."""
    found = check_value("format", manifest.get("format"), int)
    if found not in READ:
        raise JaxsinkError(f"checkpoint format {found}, where this jaxsink reads {' and '.join(map(str, READ))}")
    return found


def sealed(manifest: JsonObject) -> JsonObject:
    """A manifest with its seal, as JSON has it."""
    plain = json.loads(json.dumps(manifest))
    plain["checksums"]["manifest"] = _seal(plain)
    return plain


def check_seal(manifest: JsonObject) -> None:
    """Does a manifest of the newest format say what was written? Those of the first have nothing to compare it with."""
    sums = manifest.get("checksums")
    if check_format(manifest) < FORMAT:
        later = [name for name in ("files", "manifest") if isinstance(sums, dict) and name in sums]
        if later:
            raise JaxsinkError(f"damaged: format {manifest['format']} has no checksums of its {later[0]}")
        return
    if not isinstance(sums, dict) or not isinstance(sums.get("manifest"), str):
        raise JaxsinkError(f"damaged: it has no checksum of itself; {ANYWAY}")
    if sums["manifest"] != _seal(manifest):
        raise JaxsinkError(f"damaged, or edited: what it says is not what was written, by its checksum; {ANYWAY}")


def file_checksums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Of those files that are there."""
    return {name: _of_bytes(read_bytes(folder / name)) for name in sorted(names) if os.path.lexists(folder / name)}


def check_file_sums(manifest: JsonObject) -> dict[str, str]:
    """The checksum of each tokenizer file; none in manifests of the first format."""
    sums = manifest.get("checksums")
    if not isinstance(sums, dict) or check_format(manifest) < FORMAT:
        return {}
    files = sums.get("files")
    if not isinstance(files, dict) or any(Path(name).name != name for name in files):
        raise JaxsinkError("its checksums of files are not one for each tokenizer file")
    check_digits(files, NEWEST)
    return files


def check_files(folder: Path, manifest: JsonObject) -> None:
    """Are the tokenizer files those that were written? One that was put there later has no checksum, and is used."""
    try:
        check_seal(manifest)
        sums = check_file_sums(manifest)
    except JaxsinkError as error:
        raise JaxsinkError(f"{folder / MANIFEST} cannot be used ({str(error).rstrip('.')}).") from error
    for name, wanted in sums.items():
        check_file(folder / name)
        found = _of_bytes(read_bytes(folder / name))
        if found != wanted:
            raise JaxsinkError(
                f"{folder / name} is damaged (it is not what was written: checksum {found}, not {wanted}); copy it from "
                "the model's source, or load with verify=False."
            )


def _of_bytes(data: bytes) -> str:
    return checksum(np.frombuffer(data, np.uint8))


def _seal(manifest: JsonObject) -> str:
    sums = {name: value for name, value in manifest["checksums"].items() if name != "manifest"}
    text = json.dumps({**manifest, "checksums": sums}, sort_keys=True, separators=(",", ":"))
    return _of_bytes(text.encode())
