"""What becomes of the <think> part of an answer when the conversation goes on; each template has its rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

Rule = Literal["keep", "qwen3", "ling", "nemotron"]
OPEN, CLOSE = "<think>", "</think>"


def apply_rule(rule: Rule, turns: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The (role, content) pairs with the answers as the template writes them."""
    if rule == "keep":
        return turns
    users = [index for index, (role, _) in enumerate(turns) if role == "user"]
    last_user = users[-1] if users else None
    return [
        (role, _RULES[rule](content, index, last_user, len(turns)) if role == "assistant" else content)
        for index, (role, content) in enumerate(turns)
    ]


def _split(content: str) -> tuple[str, str]:
    """The thought and the answer; both lose the line breaks around them."""
    if CLOSE not in content:
        return "", content
    head, tail = content.split(CLOSE)[0], content.split(CLOSE)[-1]
    return head.rstrip("\n").split(OPEN)[-1].strip("\n"), tail.lstrip("\n")


def _qwen3(content: str, index: int, last_user: int | None, turns: int) -> str:
    """Dropped before the last user message; a closing answer always has one, if an empty one."""
    thought, answer = _split(content)
    if index > (turns if last_user is None else last_user) and (index == turns - 1 or thought):
        return f"{OPEN}\n{thought}\n{CLOSE}\n\n" + answer.lstrip("\n")
    return answer


def _ling(content: str, index: int, last_user: int | None, turns: int) -> str:
    """Dropped before the last user message; after it, written on a line of its own where there is one."""
    thought, answer = _split(content)
    if index > (turns - 1 if last_user is None else last_user) and thought:
        return f"\n{OPEN}\n{thought}\n{CLOSE}\n\n" + answer.lstrip("\n")
    return answer


def _nemotron(content: str, index: int, last_user: int | None, turns: int) -> str:
    """Every answer has one; before the last user message it is an empty one."""
    if OPEN not in content and CLOSE not in content:
        content = f"{OPEN}{CLOSE}{content}"
    if index < (-1 if last_user is None else last_user) and OPEN in content and CLOSE in content:
        return f"{OPEN}{CLOSE}" + content.split(CLOSE)[-1]
    return content


_RULES: Mapping[str, Callable[[str, int, int | None, int], str]] = {
    "qwen3": _qwen3,
    "ling": _ling,
    "nemotron": _nemotron,
}
