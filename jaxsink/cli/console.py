"""Rich's console, but for readers that have seen enough (`| head -1`): it is no failure that they left."""

from __future__ import annotations

import rich.console


class Console(rich.console.Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with code 1; the command line's `main` knows better."""
        raise BrokenPipeError
