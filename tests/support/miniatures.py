"""The built-in models in miniature: their configurations with fewer layers and random weights; and what they write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import jaxsink
from jaxsink.recording import recorders as record
from jaxsink.study import Subject
from jaxsink.tasks.vocabulary import tokenizer
from jaxsink.zoo.builtin import BUILTIN
from support.made_gallery import made_gallery
from support.models import lively

SMALLER = {
    "mini-llada": {"gen_length": 8, "steps": 8, "block_length": 4},
    "mini-dream": {"max_new_tokens": 8, "steps": 8},
}


def random_model(name: str) -> jaxsink.Model:
    config = BUILTIN[name].config
    return lively(config.replace(layers=2, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=32), size=0.3)


def random_subject(name: str, **changes: Any) -> Subject:
    """With changes of its configuration."""
    entry = BUILTIN[name]
    sampler = replace(entry.sampler, **SMALLER.get(name, {"max_new_tokens": 8}))
    config = entry.config.replace(layers=2, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=32, **changes)
    return Subject(name, lively(config, size=0.3), tokenizer(), sampler, chats=False)


def written_by(subject: Subject, texts: int = 3) -> Any:
    """A gallery of what the subject writes, the first prompt shorter than the others."""
    prompts = [[5, 6, 7], *([8, 9, 10, 11, 12 + n] for n in range(texts - 1))]
    out = jaxsink.generate(subject.model, prompts, subject.sampler, record=record.received()).on_host()
    steps = np.arange(len(out.record))
    return made_gallery(
        np.asarray(out.record),
        tokens=np.asarray(out.tokens),
        canvas=np.asarray(jaxsink.sinks.canvases(out.tokens, out.committed_at, steps, subject.mask_id)),
        committed_at=np.asarray(out.committed_at),
        mask=np.asarray(out.mask),
        real=np.asarray(out.real_at()),
        prompt_length=out.prompt_length,
        mask_id=subject.mask_id,
    )
