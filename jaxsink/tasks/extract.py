"""What counts as a model's answer: the number of a GSM8K solution, and the code of a programming one.

The number rules are those of lm-evaluation-harness (tasks gsm8k, gsm8k_cot and gsm8k_cot_llama), so that scores compare:
"strict" wants the wording that the prompt's examples taught, "flexible" takes the last number of the text. Both then
ignore commas, dollar signs and a full stop at the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from jaxsink.errors import JaxsinkError

Wording = Literal["####", "the answer is", "the final answer is"]
INVALID = "[invalid]"  # lm-eval's word for "no number found"; no reference equals it
HUMANEVAL_STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")

_NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_STRICT: dict[Wording, tuple[re.Pattern[str], int]] = {  # which match counts: the first or the last
    "####": (re.compile(r"#### (\-?[0-9\.\,]+)"), 0),
    "the answer is": (re.compile(r"The answer is (\-?[0-9\.\,]+)."), 0),
    "the final answer is": (re.compile(r"The final answer is ((-?[$0-9.,]{2,})|(-?[0-9]+))"), -1),
}
_IGNORED = (r",", r"\$", r"(?s).*#### ", r"\.$")
_FENCE = re.compile(r"```[^\n`]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)
_PYTHON_FENCE = re.compile(r"```(?:python|py|python3)[^\n`]*\n(.*?)(?:\n?```|\Z)", re.DOTALL | re.IGNORECASE)


def truncate(text: str, stops: Sequence[str]) -> str:
    """The text before the first stop sequence."""
    for stop in stops:
        text = text.split(stop, 1)[0] if stop else text
    return text


def strict_number(text: str, wording: Wording = "####") -> str:
    """The number in the wording that was asked for; INVALID where that wording does not occur."""
    if wording not in _STRICT:
        raise JaxsinkError(f"unknown wording {wording!r} of an answer; choose one of {', '.join(get_args(Wording))}.")
    pattern, which = _STRICT[wording]
    return _match(pattern, text, which)


def flexible_number(text: str) -> str:
    """The last number of the text, whatever stands around it."""
    return _match(_NUMBER, text, -1)


def _match(pattern: re.Pattern[str], text: str, which: int) -> str:
    """One of all matches; where the pattern has several groups, the first that is not empty."""
    found = pattern.findall(text)
    if not found:
        return INVALID
    groups = found[which] if isinstance(found[which], tuple) else (found[which],)
    return next((group for group in groups if group), INVALID).strip()


def same_number(found: str, reference: str) -> bool:
    """lm-eval's exact match. The reference may be a whole published answer: all before its `#### ` is ignored."""
    return _normal(found) == _normal(reference)


def _normal(text: str) -> str:
    for pattern in _IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()


def code_block(text: str) -> str | None:
    """The first block marked as Python, else the first block; one that is not closed runs to the end. None: no block."""
    found = _PYTHON_FENCE.search(text) or _FENCE.search(text)
    return None if found is None else found[1]
