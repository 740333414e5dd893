"""The one exception that users are meant to read."""


class JaxsinkError(Exception):
    """Bad input: one sentence that says what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


def install_hint(extra: str) -> str:
    """How to get an optional part, in words that fit after "; "."""
    return f"run `pip install '.[{extra}]'` in your checkout of jaxsink"
