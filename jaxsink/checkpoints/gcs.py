"""Checkpoints in Google Cloud Storage: gs://bucket/name is copied whole, the manifest last, so what has one is complete.

TensorStore, which Orbax brings along, does the copying, with the credentials of the machine. A fetched checkpoint is kept in
$JAXSINK_CHECKPOINTS, else in jaxsink/checkpoints among the user's caches, and fetched anew when the bucket's changes.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jaxsink.errors import JaxsinkError
from jaxsink.runs.atomic import new_directory
from jaxsink.runs.caches import cache_directory
from jaxsink.runs.files import user_path

if TYPE_CHECKING:
    from tensorstore import Future, KvStore

T = TypeVar("T")

VARIABLE = "JAXSINK_CHECKPOINTS"

AT_ONCE = 4
"""Files under way; each is held in memory, and Orbax's files have up to 2 GiB."""

RETRIES = 4
"""Of a request, each after twice the time of the one before."""

REMOTE = re.compile(r"([a-z][a-z0-9+.-]+):/+", re.IGNORECASE)


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path names another machine (gs://…, also as pathlib spells it, gs:/…) and nothing here has that name."""
    return REMOTE.match(os.fspath(path)) is not None and not os.path.lexists(path)


def local(path: str | os.PathLike[str], option: str) -> Path:
    """A path of this machine, for what is written bit by bit, which no bucket can do."""
    if is_remote(path):
        raise JaxsinkError(
            f"{option} must be a directory on this machine, not {os.fspath(path)}: it is written bit by bit, which a bucket "
            "cannot do; write it here and copy it (`gcloud storage rsync`, see docs/tpu.md)."
        )
    if not os.fspath(path).strip():
        raise JaxsinkError(f"{option} is empty; name a file or directory, or . for this one.")
    return user_path(path)


def fetch(path: str | os.PathLike[str], weights: bool = True) -> Path:
    """The directory of this machine that holds a copy of a bucket's checkpoint; it may be without its weights."""
    from jaxsink.checkpoints.storage import MANIFEST, WEIGHTS

    url = _url(path)
    with _errors(url):
        store = _store(url)
        manifest = store.read(MANIFEST).result()
        if manifest.state == "missing":
            raise JaxsinkError(
                f"there is no converted checkpoint at {url} that this machine may read; `jaxsink convert SRC {url}` "
                "puts one there."
            )
        version = hashlib.sha256(url.encode() + manifest.stamp.generation).hexdigest()[:16]
        folder = checkpoint_cache() / f"{url.rsplit('/', 1)[-1]}-{version}"
        if not weights and not folder.is_dir():
            folder = folder.with_name(f"{folder.name}-without-weights")
        if not folder.is_dir():
            names = [name.decode() for name in store.list().result()]
            names = [name for name in names if weights or not name.startswith(f"{WEIGHTS}/")]
            with new_directory(folder, MANIFEST) as unfinished:
                _windowed(names, lambda name: store.read(name), lambda name, got: _keep(unfinished / name, got))
    return folder


def send(folder: Path, path: str | os.PathLike[str], overwrite: bool = False) -> None:
    """Copy a complete checkpoint into a bucket; one that is there already is only replaced on request."""
    from jaxsink.checkpoints.storage import MANIFEST

    url = _url(path)
    with _errors(url):
        store = check_free(url, overwrite)
        old = {name.decode() for name in store.list().result()}
        files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
        if MANIFEST in old:  # from here on nobody takes it for complete
            store.write(MANIFEST, None).result()
        weights = [name for name in files if name != MANIFEST]
        _windowed(weights, lambda name: store.write(name, (folder / name).read_bytes()))
        _windowed(sorted(old - set(files) - {MANIFEST}), lambda name: store.write(name, None))
        store.write(MANIFEST, (folder / MANIFEST).read_bytes()).result()


def check_free(path: str | os.PathLike[str], overwrite: bool) -> KvStore:
    """The store at a URL, if a checkpoint may be put there."""
    from jaxsink.checkpoints.storage import MANIFEST, WEIGHTS

    url = _url(path)
    with _errors(url):
        store = _store(url)
        names = [name.decode() for name in store.list().result()]
    if names and not overwrite:
        raise JaxsinkError(f"{url} exists already; choose another name, or overwrite it (--overwrite).")
    if names and MANIFEST not in names and not any(name.startswith(f"{WEIGHTS}/") for name in names):
        raise JaxsinkError(f"{url} is not a checkpoint of jaxsink, so it is not overwritten; choose another name.")
    return store


def _windowed(
    names: Iterable[str], begin: Callable[[str], Future[T]], end: Callable[[str, T], None] | None = None
) -> None:
    """`begin` each, a few at once, and `end` each with its result."""
    window: deque[tuple[str, Future[T]]] = deque()
    for name in names:
        if len(window) == AT_ONCE:
            _settle(*window.popleft(), end)
        window.append((name, begin(name)))
    for one in window:
        _settle(*one, end)


def _settle(name: str, future: Future[T], end: Callable[[str, T], None] | None) -> None:
    result = future.result()
    if end is not None:
        end(name, result)


def _keep(file: Path, got: KvStore.ReadResult) -> None:
    if got.state != "value":
        raise JaxsinkError(f"{file.name} vanished from the bucket while it was copied; try again.")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(got.value)


def _url(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    scheme = REMOTE.match(text)
    if scheme is None or scheme[1].lower() != "gs":
        raise JaxsinkError(
            f"jaxsink reads this machine's directories and gs:// buckets, not {text}; copy it here first."
        )
    rest = text[scheme.end() :].strip("/")
    if "/" not in rest:
        raise JaxsinkError(f"{text} is a whole bucket; name a folder in it, such as gs://{rest or 'bucket'}/llada.")
    return f"gs://{rest}"


def _store(url: str) -> KvStore:
    import tensorstore

    bucket, _, prefix = url.removeprefix("gs://").partition("/")
    context = tensorstore.Context({"gcs_request_retries": {"max_retries": RETRIES}})
    return tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket, "path": f"{prefix}/"}, context=context).result()


def checkpoint_cache() -> Path:
    """Where checkpoints from elsewhere are kept."""
    folder = cache_directory("checkpoints", VARIABLE)
    if folder is None:
        raise JaxsinkError(
            f"{VARIABLE} is off, and a checkpoint from elsewhere must be kept somewhere; name a directory."
        )
    return folder


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """TensorStore's errors are ValueErrors with the server's answer in them."""
    try:
        yield
    except ValueError as error:
        reason = str(error).strip().splitlines()[0].split(" [")[0][:160]
        raise JaxsinkError(
            f"{url} cannot be reached ({reason}); check the name, and that this machine may use the bucket (`gcloud auth "
            "application-default login`)."
        ) from error
