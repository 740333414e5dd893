"""The built-in models in miniature: their configurations with fewer layers and random weights."""

from __future__ import annotations

from dataclasses import replace

import jaxsink
from jaxsink.study import Subject
from jaxsink.tasks.vocabulary import tokenizer
from jaxsink.zoo.builtin import BUILTIN
from support.models import lively

SMALLER = {
    "mini-llada": {"gen_length": 8, "steps": 8, "block_length": 4},
    "mini-dream": {"max_new_tokens": 8, "steps": 8},
}


def random_model(name: str) -> jaxsink.Model:
    config = BUILTIN[name].config
    return lively(config.replace(layers=2, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=32), size=0.3)


def random_subject(name: str) -> Subject:
    entry = BUILTIN[name]
    sampler = replace(entry.sampler, **SMALLER.get(name, {"max_new_tokens": 8}))
    config = entry.config.replace(layers=2, width=32, heads=2, kv_heads=2, head_dim=16, mlp_width=32)
    return Subject(name, lively(config, size=0.3), tokenizer(), sampler, chats=False)
