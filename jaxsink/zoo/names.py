"""Names of models that were mistyped: what was probably meant."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import SequenceMatcher

from jaxsink.errors import JaxsinkError
from jaxsink.zoo.presets import HUB_IDS, PRESETS
from jaxsink.zoo.resolve import SHIPPED

LIKE = 0.75  # names at least so similar are worth a suggestion …
NEARLY = 0.05  # … if no other one is more similar by more than this


def suggestions(name: str, known: Iterable[str]) -> list[str]:
    """Names that begin like `name`, or else those that differ from it by a few letters."""
    names = list(known)
    lower = name.lower()
    longer = [one for one in names if len(lower) >= 3 and one.lower().startswith(lower)]
    if longer:
        return longer
    likeness = {one: SequenceMatcher(None, lower, one.lower()).ratio() for one in names}
    best = max(likeness.values(), default=0.0)
    return [one for one in names if likeness[one] >= max(LIKE, best - NEARLY)]


def no_such_model(path: str | os.PathLike[str], weights: bool = True) -> JaxsinkError:
    """What to say about a path at which there is no model; weights: whether a configuration alone would not do."""
    name = os.fspath(path)
    if name in PRESETS:
        where = f", or its hub id {HUB_IDS[name]}" if name in HUB_IDS else ""
        return JaxsinkError(f"{name} is known, but its weights are not here; give their directory{where}.")
    found = suggestions(name, SHIPPED if weights else [*SHIPPED, *PRESETS])
    found = found or suggestions(name, PRESETS)
    if found:
        meant = found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}"
        return JaxsinkError(f"there is no checkpoint at {name}; did you mean {meant}? (`jaxsink models` lists all.)")
    return JaxsinkError(
        f"there is no checkpoint at {name}; give a converted one, a Hugging Face directory, a hub id (owner/name), or a "
        "name that `jaxsink models` lists."
    )
