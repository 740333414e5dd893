"""`jaxsink.lm_eval`: the command of lm-evaluation-harness (extra `eval`), with the model `jaxsink` in it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError, install_hint

RUNS_PROGRAMS = (
    "--confirm",
    "--sandbox",
)  # what lm-eval is asked for leave with, also shortened, and what it cannot keep
HARNESS = "jaxsink.evals.lm_eval.harness"  # importing it registers the model; it needs lm-eval


@checked()
def lm_eval(arguments: Sequence[str]) -> None:
    """Run lm-eval, of which jaxsink is one model; needs the extra `eval`.

    Args:
        arguments: lm-eval's own

    Examples:
        >>> arguments = ["--model", "jaxsink", "--model_args", "pretrained=mini-llada", "--tasks", "gsm8k", "--limit", "1"]
        >>> jaxsink.lm_eval(arguments)  # doctest: +SKIP
    """
    unsafe = next((one for one in arguments if one.startswith(RUNS_PROGRAMS)), None)
    if unsafe is not None:
        raise JaxsinkError(
            f"{unsafe}: lm-eval runs the programs of a model unconfined, so jaxsink does not let it; grade them with "
            "`jaxsink evaluate MODEL NAME/humaneval/… --allow-code-execution --sandbox namespaces`."
        )
    if find_spec("lm_eval") is None:
        raise JaxsinkError(f"lm-evaluation-harness is not installed; {install_hint('eval')}.")
    command = import_module("lm_eval.__main__")
    import_module(HARNESS)
    before, sys.argv = sys.argv, ["lm-eval", *arguments]  # lm-eval reads its arguments there, and nowhere else
    try:
        command.cli_evaluate()
    finally:
        sys.argv = before
