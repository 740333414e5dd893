"""The one exception that users are meant to read, and the words that its sentences share."""

from collections.abc import Iterable
from difflib import get_close_matches


class JaxsinkError(Exception):
    """Bad input: one sentence that says what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


def install_hint(extra: str) -> str:
    """How to get an optional part, in words that fit after "; "."""
    return f"run `pip install '.[{extra}]'` in your checkout of jaxsink"


def option(name: str) -> str:
    """A keyword as the command line spells it."""
    return "--" + name.replace("_", "-")


def check_keywords(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """One sentence about a keyword that the function does not have."""
    names = list(known)
    for name in given:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}" if near else f"there are {', '.join(names)}"
            raise JaxsinkError(f"{function} has no keyword {name!r}; {hint}.")
