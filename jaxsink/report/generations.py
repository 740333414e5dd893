"""Generations for the player: every sequence of one, with its received scores and the texts of its tokens."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.report.played import PlayedGeneration, to_half
from jaxsink.report.scores import unit_mean, unpack, whole_scores
from jaxsink.sampling.generation import Generation

if TYPE_CHECKING:
    from jaxsink.text.tokenizer import Tokenizer


def read_record(file: Path) -> tuple[Generation, list[list[str]], dict[str, Any]]:
    """(generation, texts of the tokens, settings) that RecordFile wrote."""
    if not file.is_file():
        raise JaxsinkError(f"{file} is not a file; give one that `jaxsink generate --record` wrote.")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            data = {key: arrays[key] for key in arrays.files}
        settings = json.loads(str(data.pop("settings", "{}")))
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise JaxsinkError(f"{file} is not a readable .npz file: {error}.") from error
    fields = ("tokens", "committed_at", "mask", "recorded_steps", "steps", "prompt_length", "autoregressive")
    missing = [key for key in (*fields, "token_texts") if key not in data]
    if missing:
        raise JaxsinkError(f"{file} lacks {', '.join(missing)}; record it again with `jaxsink generate --record`.")
    known = {key: data.pop(key) for key in fields}
    texts = [[str(text) for text in texts_of_one] for texts_of_one in data.pop("token_texts")]
    known["prompt_length"], known["autoregressive"] = int(known["prompt_length"]), bool(known["autoregressive"])
    return Generation(record=unpack(data), **known), texts, settings


def played_generations(
    generation: Generation, texts: Sequence[Sequence[str]], name: str, model: str, condition: str = ""
) -> list[PlayedGeneration]:
    """One for each sequence, without its padding and without positions after an early end."""
    scores, masked = whole_scores(generation)
    tokens, committed = np.asarray(generation.tokens), np.asarray(generation.committed_at)
    steps, taken = np.asarray(generation.recorded_steps), np.asarray(generation.recorded_of())
    mask, prompt = np.asarray(generation.mask), generation.prompt_length
    played = []
    for sequence in range(len(tokens)):
        there = mask[sequence] & ((np.arange(mask.shape[1]) < prompt) | (committed[sequence] >= 0))
        real, count = np.flatnonzero(there), max(1, int(taken[sequence]))
        parts = {"scores": scores[:count, :, sequence][..., real]}
        if masked is not None:
            parts["masked"] = masked[:count, :, sequence][..., real]
        played.append(
            PlayedGeneration(
                name=name if len(tokens) == 1 else f"{name}-{sequence + 1}",
                problem=f"Sequence {sequence + 1}" if len(tokens) > 1 else "",
                model=model,
                condition=condition,
                kind="arm" if generation.autoregressive else "dlm",
                prompt_length=int((real < prompt).sum()),
                steps=steps[:count],
                committed_at=committed[sequence, real],
                tokens=[texts[sequence][int(position)] for position in real],
                parts={key: to_half(value) for key, value in parts.items()},
            )
        )
    return [unit_mean(one) for one in played]


def token_texts(tokenizer: Tokenizer | None, ids: Sequence[int] | np.ndarray) -> list[str]:
    """What each token looks like; the ids themselves where there is no tokenizer."""
    return [f" {token}" if tokenizer is None else token_text(tokenizer, int(token)) for token in ids]


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token's own text; parts of characters as <0xE2>, and a space in front that decoding alone would lose."""
    text, readable = tokenizer.decode([token], skip_special=False), tokenizer.token(token)
    if not text or "�" in text:
        return readable
    return f" {text}" if readable.startswith("␣") and not text.startswith(" ") else text
