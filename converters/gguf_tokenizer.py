"""The tokenizer inside a GGUF file, rewritten as tokenizer.json and tokenizer_config.json.

GGUF stores the vocabulary, the merges or scores, a type per token and the *name* of the pre-tokenizer; the rules behind
that name are written down here, as each model's own tokenizer.json has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jaxsink.errors import JaxsinkError

_UNKNOWN, _CONTROL, _USER, _BYTE, _NORMAL = 2, 3, 4, 6, 1  # tokenizer.ggml.token_type; 5 is an unused row
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_GPT2 = {**_BYTES, "use_regex": True}


def _split(pattern: str) -> dict[str, Any]:
    """Split by a regular expression, then spell bytes as characters."""
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, {**_BYTES, "use_regex": False}]}


_LLAMA3 = {"pre_tokenizer": _split(_WORDS + r"\p{N}{1,3}" + _REST), "ignore_merges": True, "add_bos": True}
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_DIGITS = {"type": "Digits", "individual_digits": True}
# By the value of tokenizer.ggml.pre.
PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": {"pre_tokenizer": _GPT2},
    "default": {"pre_tokenizer": _GPT2},
    "smollm": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [_DIGITS, _GPT2]}},
    "qwen2": {"pre_tokenizer": _split(_WORDS + r"\p{N}" + _REST), "normalizer": {"type": "NFC"}},
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llada-moe": {"pre_tokenizer": _split(_BAILING)},
    "bailingmoe": {"pre_tokenizer": _split(_BAILING)},
    "bailingmoe2": {"pre_tokenizer": _split(_BAILING)},
}


def build(fields: Mapping[str, Any]) -> dict[str, str]:
    """File contents by file name, ``{"tokenizer.json": …, "tokenizer_config.json": …}``, for `Tokenizer.load`.

    fields: the GGUF metadata as plain Python values, by key (``tokenizer.ggml.tokens``: list of str, and so on).
    """
    model = _need(fields, "model")
    tokens = [str(text) or f"[EMPTY_{i}]" for i, text in enumerate(_need(fields, "tokens"))]
    vocab = {text: index for index, text in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(text for index, text in enumerate(tokens) if vocab[text] != index)
        raise JaxsinkError(f"tokenizer.ggml.tokens has {twice!r} twice, so ids are ambiguous; use another GGUF file.")
    types = [int(kind) for kind in _field(fields, "token_type", [_NORMAL] * len(tokens))]
    if len(types) != len(tokens):
        raise JaxsinkError(f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens.")
    special = {name: _special(fields, key, tokens) for name, key in _SPECIAL.items()}
    if model == "gpt2":
        body, add_bos = _byte_level(fields, vocab)
    elif model == "llama":
        body, add_bos = _sentencepiece(fields, tokens, types, special["unk_token"])
    else:
        raise JaxsinkError(f"tokenizer.ggml.model is {model!r}; only 'gpt2' and 'llama' can be converted.")
    add_bos = bool(_field(fields, "add_bos_token", add_bos)) and special["bos_token"] is not None
    add_eos = bool(_field(fields, "add_eos_token", False)) and special["eos_token"] is not None
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, types, special, model),
        **body,
    }
    if add_bos or add_eos:
        edges = (special["bos_token"] if add_bos else None, special["eos_token"] if add_eos else None)
        whole["post_processor"] = _surround(edges, vocab)
    config = {name: text for name, text in special.items() if text is not None}
    config |= {"add_bos_token": add_bos, "add_eos_token": add_eos, "clean_up_tokenization_spaces": False}
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(fields.get("tokenizer.chat_template"), str):
        config["chat_template"] = fields["tokenizer.chat_template"]
    return {
        "tokenizer.json": json.dumps(whole, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False, indent=2),
    }


_SPECIAL = {  # name in tokenizer_config.json: key in the GGUF file
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "mask_token": "mask_token_id",
    "eot_token": "eot_token_id",
}


def _field(fields: Mapping[str, Any], key: str, default: Any = None) -> Any:
    value = fields.get(f"tokenizer.ggml.{key}")
    return default if value is None else value


def _need(fields: Mapping[str, Any], key: str) -> Any:
    value = _field(fields, key)
    if value is None:
        raise JaxsinkError(f"the GGUF file has no tokenizer.ggml.{key}; convert a file that carries its tokenizer.")
    return value


def _special(fields: Mapping[str, Any], key: str, tokens: list[str]) -> str | None:
    """The text of a special token given by id; None when the file names none."""
    index = _field(fields, key)
    if index is None:
        return None
    if not 0 <= int(index) < len(tokens):
        raise JaxsinkError(f"tokenizer.ggml.{key} is {index}, outside the {len(tokens)} tokens; the file is broken.")
    return tokens[int(index)]


def _added(tokens: list[str], types: list[int], special: Mapping[str, str | None], model: str) -> list[dict[str, Any]]:
    """Tokens matched whole before the text is split: control ones (special) and user-defined ones."""
    control = {_CONTROL, _UNKNOWN} if model == "llama" else {_CONTROL}
    declared = {text for name, text in special.items() if text is not None and name != "unk_token"}
    out = []
    for index, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        is_special = kind in control or text in declared
        if is_special or kind == _USER:
            flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
            out.append({"id": index, "content": text, **flags, "special": is_special})
    return out


def _byte_level(fields: Mapping[str, Any], vocab: dict[str, int]) -> tuple[dict[str, Any], bool]:
    """tokenizer.json's parts for byte-level BPE, and whether bos is added when the file does not say."""
    pre = _field(fields, "pre")
    if pre is None and fields.get("general.architecture") == "gpt2":
        pre = "gpt-2"
    if pre not in PRE_TOKENIZERS:
        what = "is missing (an old file)" if pre is None else f"is {pre!r}, whose rules are not known here"
        raise JaxsinkError(
            f"tokenizer.ggml.pre {what}; known are {', '.join(PRE_TOKENIZERS)}: otherwise convert the model from its "
            "original files, with its tokenizer.json."
        )
    rules = PRE_TOKENIZERS[pre]
    merges = []
    for text in _need(fields, "merges"):
        cut = text.find(" ", 1)
        left, right = text[:cut], text[cut + 1 :]
        if cut < 0 or left not in vocab or right not in vocab or left + right not in vocab:
            raise JaxsinkError(f"tokenizer.ggml.merges has {text!r}, which joins no two tokens; the file is broken.")
        merges.append([left, right])
    bpe = {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": rules.get("ignore_merges", False)}
    return {
        "normalizer": rules.get("normalizer"),
        "pre_tokenizer": rules["pre_tokenizer"],
        "post_processor": {**_BYTES, "trim_offsets": False, "use_regex": True},
        "decoder": {**_BYTES, "use_regex": True},
        "model": bpe,
    }, rules.get("add_bos", False)


def _sentencepiece(
    fields: Mapping[str, Any], tokens: list[str], types: list[int], unknown: str | None
) -> tuple[dict[str, Any], bool]:
    """tokenizer.json's parts for SentencePiece BPE with byte fallback; bos is added when the file does not say.

    The merges are rebuilt: every way to cut a piece into two pieces is a merge, and the better the piece's score the
    earlier it is done. Only ordinary pieces take part: control, byte and user-defined ones are never put together.
    """
    scores = [float(score) for score in _need(fields, "scores")]
    if len(scores) != len(tokens):
        raise JaxsinkError(f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens.")
    ids = {text: index for index, text in enumerate(tokens) if types[index] == _NORMAL}
    found = []
    for text, index in ids.items():
        cuts = [(text[:at], text[at:]) for at in range(1, len(text))]
        pairs = [(ids[left], ids[right], left, right) for left, right in cuts if left in ids and right in ids]
        found += [(-scores[index], index, *pair) for pair in pairs]
    found.sort(key=lambda item: item[:4])
    prefix = bool(_field(fields, "add_space_prefix", True))
    spaces: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    pre_tokenizer = None
    if prefix and any(text == "[INST]" and kind == _CONTROL for text, kind in zip(tokens, types, strict=True)):
        # Mistral from v0.3: a space goes before the text, not before each stretch between control tokens.
        pre_tokenizer = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
        spaces = []
    elif prefix:
        spaces.insert(0, {"type": "Prepend", "prepend": "▁"})
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}]
    decoders += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": spaces} if spaces else None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": unknown,
            "fuse_unk": True,
            "byte_fallback": _BYTE in types,
            "vocab": {text: index for index, text in enumerate(tokens)},
            "merges": [[left, right] for *_, left, right in found],
        },
    }, True


def _surround(edges: tuple[str | None, str | None], vocab: Mapping[str, int]) -> dict[str, Any]:
    """Post-processor that puts bos before and eos after a text, on request."""

    def around(*parts: dict[str, Any]) -> list[dict[str, Any]]:
        bos, eos = ([{"SpecialToken": {"id": text, "type_id": 0}}] if text else [] for text in edges)
        return [*bos, *parts, *eos]

    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    known = {text: {"id": text, "ids": [vocab[text]], "tokens": [text]} for text in edges if text}
    return {
        "type": "TemplateProcessing",
        "single": around(first),
        "pair": [*around(first), *around(second)],
        "special_tokens": known,
    }
