"""The one exception that users are meant to read, and the words that its sentences share."""

from collections.abc import Iterable
from difflib import get_close_matches

FEW = 12  # names that a sentence can list


class JaxsinkError(Exception):
    """Bad input: one sentence that says what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2.

    Examples:
        >>> try:
        ...     jaxsink.load("mini-lada")
        ... except jaxsink.JaxsinkError as error:
        ...     print(error)
        there is no checkpoint at mini-lada; did you mean mini-llada? (`jaxsink models` lists all.)
    """


def install_hint(extra: str) -> str:
    """How to get an optional part, in words that fit after "; "."""
    return f"run `pip install '.[{extra}]'` in your checkout of jaxsink"


def option(name: str) -> str:
    """A keyword as the command line spells it."""
    return "--" + name.replace("_", "-")


def a_model(family: str) -> str:
    """A model of this family, with its article: "an a2d_qwen3 model"."""
    return f"{'an' if family[0].lower() in 'aeiou' else 'a'} {family} model"


def check_keywords(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """One sentence about a keyword that the function does not have."""
    names = list(known)
    for name in given:
        if name not in names:
            hint = near(name, names) or (f"there are {', '.join(names)}" if len(names) <= FEW else "help() shows all")
            raise JaxsinkError(f"{function} has no keyword {name!r}; {hint}.")


def near(name: str, known: Iterable[str], most: int = 1) -> str:
    """What was probably meant, in words that fit after "; ", or nothing."""
    found = get_close_matches(name, list(known), most)
    return f"did you mean {' or '.join(found)}" if found else ""
