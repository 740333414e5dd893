"""How strictly programs are confined: chosen openly, printed, and written beside every result."""

from __future__ import annotations

from typing import Literal, get_args

Level = Literal["namespaces", "limits"]
LEVELS: tuple[Level, ...] = get_args(Level)


def describe(level: Level) -> str:
    """What is said before programs run."""
    weaker = "" if level == "namespaces" else ", the weaker one, as asked"
    return f"sandbox: programs run at the level {level}{weaker} (docs/sandbox.md)"
