"""Text to token ids and back, for a checkpoint's own tokenizer files.

Reads ``tokenizer.json`` (or GPT-2 style ``vocab.json`` + ``merges.txt``) with the `tokenizers` library, which is
imported on first use so that ``import jaxsink`` stays fast. Nothing from the checkpoint is executed: chat templates
come from `jaxsink.text.chat`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsink.checkpoints.formats import JsonObject, foreign_formats
from jaxsink.checkpoints.integrity import MANIFEST, check_files
from jaxsink.checks import at_least
from jaxsink.doors import checked
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.runs.files import check_file, check_inside, read_bytes, read_json, read_text
from jaxsink.text import chat as chat_templates
from jaxsink.text.guard import check_text, check_tokenizer, library_errors, parsed, read_tokenizer_json
from jaxsink.zoo.resolve import resolve

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend

IDS = at_least(0, (1 << 24) - 1)  # of the largest vocabulary that a configuration may have
Files = Mapping[str, JsonObject]
"""A checkpoint's JSON files by their names without the suffix; {} for those that do not exist."""

# The pre-tokenizer of Qwen2, Qwen2.5, Qwen3 and Dream: words take one leading symbol, each digit stands alone.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NAMES = ("bos", "eos", "pad", "unk", "mask", "eot")
# Tokens that play a part without being declared: LLaDA names its mask nowhere but in the vocabulary.
KNOWN_TOKENS = {
    "mask": ("<|mdm_mask|>", "<|mask|>", "<|MASK|>", "|<MASK>|"),
    "eot": ("<|eot_id|>", "<|im_end|>", "<|role_end|>"),
}


class Tokenizer:
    """A checkpoint's tokenizer.

    Attributes:
        size: one more than the largest id (ids may have gaps); never more than the model's vocabulary rows.
        special: ids of "bos", "eos", "pad", "unk", "mask", "eot", those that are known.
        declared: the part of ``special`` that the tokenizer's own files declare (the rest is from known token names and
            the ids in config.json), which is what `check_special_ids` holds the model's config against.
        template: name of the chat template in `jaxsink.text.chat.TEMPLATES`, or None.
        source: where the files are, for messages.
        brings_template: whether the files hold a chat template of their own, known or not.

    Examples:
        >>> model.tokenizer.decode(model.tokenizer.encode("Mia has 4 apples."))
        'Mia has 4 apples.'
        >>> model.tokenizer.special["mask"] == model.config.mask_id
        True
    """

    def __init__(
        self,
        backend: Backend,
        special: Mapping[str, int],
        declared: Mapping[str, int],
        template: str | None = None,
        source: str = "memory",
        brings_template: bool = False,
    ) -> None:
        self.backend = backend
        self.special = dict(special)
        self.declared = dict(declared)
        self.template = template
        self.source = source
        self.brings_template = brings_template
        self.size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self._added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
        self._byte_level = backend.decoder is not None and b"ByteLevel" in backend.decoder.__getstate__()

    @classmethod
    @checked()
    def load(cls, path: str | os.PathLike[str], family: str | None = None, *, verify: bool = True) -> Tokenizer:
        """Read the tokenizer of a model directory, a converted checkpoint (its root or ``tokenizer/``) or a GGUF file.

        family: "llada", "mmada", "dream" … chooses the chat template; without it the family in jaxsink.json or
            config.json does.
        verify: compare its files with the checksums in jaxsink.json.

        Examples:
            >>> jaxsink.Tokenizer.load("mini-llada").size == model.tokenizer.size
            True
        """
        root = resolve(path, weights=False)
        if root.suffix == ".gguf" and root.is_file():
            return cls._from_gguf(root, family)
        if not root.is_dir():
            raise JaxsinkError(f"{root} is not a directory; give the directory that holds tokenizer.json.")
        manifest = _json(root / MANIFEST)
        if verify and manifest:
            check_files(root, manifest)
        folder = _folder(root)
        files = {
            name: _json(folder / f"{name}.json") or (_json(root / f"{name}.json") if name.endswith("config") else {})
            for name in ("tokenizer_config", "special_tokens_map", "added_tokens", "generation_config", "config")
        }
        files["config"] |= _settings(manifest)
        if family is None:
            family = str(files["config"].get("model_type") or "")
        backend = _backend(folder, files, family)
        return cls._assemble(backend, files, family, _jinja(folder, files["tokenizer_config"]), str(folder))

    @classmethod
    def _from_gguf(cls, path: Path, family: str | None) -> Tokenizer:
        """The converters, which are a plug-in, know how a GGUF file keeps its tokenizer."""
        texts = foreign_formats(path).tokenizer_files(path)
        check_tokenizer(texts["tokenizer.json"], path)
        backend = parsed(texts["tokenizer.json"], f"the tokenizer in {path} cannot be used")
        config = json.loads(texts["tokenizer_config.json"])
        files = {"tokenizer_config": config, "special_tokens_map": {}, "generation_config": {}, "config": {}}
        return cls._assemble(backend, files, family, config.get("chat_template"), str(path))

    @classmethod
    def _assemble(cls, backend: Backend, files: Files, family: str | None, jinja: str | None, source: str) -> Tokenizer:
        backend.no_truncation()  # some tokenizer.json files carry a training-time length limit or padding
        backend.no_padding()
        declared, special = _special(backend, files)
        template = chat_templates.recognise(lambda text: backend.token_to_id(text) is not None, jinja, family)
        return cls(backend, special, declared, template, source, bool(jinja))

    @checked()
    def known(self, name: str) -> int | None:
        """The id of "mask" or "eot" by the token's text alone, which no file has to declare: <|mdm_mask|>, <|im_end|>.

        Examples:
            >>> model.tokenizer.known("eot") is None  # "<mask>", "<eos>": it declares what it has
            True
        """
        return _known(self.backend, name)

    @checked()
    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text. Special tokens spelled out in it are recognised; bos or eos are added only on request."""
        return self.encoding(text, add_special_tokens).ids

    @checked()
    def encoding(self, text: str, add_special_tokens: bool = False) -> Encoding:
        """`encode` with the place of each token in the text.

        Examples:
            >>> model.tokenizer.encoding("two apples").offsets
            [(0, 3), (3, 10)]
        """
        check_text(text)
        with library_errors(f"the tokenizer in {self.source} cannot encode this text"):
            return self.backend.encode(text, add_special_tokens=add_special_tokens)

    @checked()
    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = False) -> list[list[int]]:
        """`encode` for many texts at once: a list of id lists, unpadded.

        Examples:
            >>> list(map(len, model.tokenizer.encode_batch(["two", "two apples"])))
            [1, 2]
        """
        with library_errors(f"the tokenizer in {self.source} cannot encode these texts"):
            return [item.ids for item in self.backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)]

    @checked(ids=IDS)
    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of token ids (a list or an array). Ids without a token (spare ones, image codes) are left out."""
        with library_errors(f"the tokenizer in {self.source} cannot decode these ids"):
            return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special)

    @checked()
    def token(self, index: int) -> str:
        """One id as a short readable piece: space as ␣, line break as \\n, part of a character as <0xE2>.

        Examples:
            >>> model.tokenizer.token(model.tokenizer.encode(" apples")[0])
            '␣apples'
        """
        index = int(index)
        piece = self._added.get(index) or (self.backend.id_to_token(index) if index >= 0 else None)
        if piece is None:
            return f"<id {index}>"
        if index not in self._added:
            table = _byte_of_char()
            if self._byte_level and all(char in table for char in piece):
                piece = _readable_bytes(bytes(table[char] for char in piece))
            elif match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", piece):
                piece = _readable_bytes(bytes.fromhex(match[1]))
            else:
                piece = piece.replace("▁", " ")
        shown = piece.replace(" ", "␣").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
        return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in shown)

    @checked()
    def chat(
        self,
        messages: str | Sequence[Mapping[str, str]],
        template: str | chat_templates.ChatTemplate | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Ids of a conversation in the model's chat template (see `jaxsink.text.chat.render`), ready to be answered.

        Examples:
            >>> tokenizer = jaxsink.Tokenizer.load("LLaDA-8B-Instruct")
            >>> print(tokenizer.decode(tokenizer.chat("Hello"), skip_special=False))
            <|startoftext|><|start_header_id|>user<|end_header_id|>
            <BLANKLINE>
            Hello<|eot_id|><|start_header_id|>assistant<|end_header_id|>
            <BLANKLINE>
            <BLANKLINE>
        """
        form = self.chat_form(template)
        return self.encode(chat_templates.render(messages, form, add_generation_prompt))

    @checked()
    def chat_form(self, template: str | chat_templates.ChatTemplate | None = None) -> chat_templates.ChatTemplate:
        """The template given, or the model's own, once it is certain that the tokenizer has its tokens.

        Examples:
            >>> jaxsink.Tokenizer.load("LLaDA-8B-Instruct").chat_form().name
            'llada'
        """
        template = template if template is not None else self.template
        if template is None:
            raise JaxsinkError(
                f"no chat template is known for the tokenizer in {self.source}; "
                f"name one of {', '.join(sorted(chat_templates.TEMPLATES))}."
            )
        form = chat_templates.get(template)
        missing = [text for text in form.tokens if self.backend.token_to_id(text) is None]
        if missing:
            raise JaxsinkError(
                f"chat template {form.name!r} needs the token {missing[0]}, which the tokenizer in {self.source} "
                "does not have; use the template and the tokenizer of the same model (a base model may have neither)."
            )
        return form


def check_special_ids(tokenizer: Tokenizer, config: ModelConfig) -> list[str]:
    """Compare a tokenizer with its model's config: raise on what would spoil every result, return milder warnings."""
    where, rows = f"the tokenizer in {tokenizer.source}", config.vocab
    if tokenizer.size > rows:
        raise JaxsinkError(
            f"{where} has ids up to {tokenizer.size - 1} but the model has only {rows} vocabulary rows; "
            "use the tokenizer that belongs to this checkpoint."
        )
    for eos in config.eos_ids:
        if not 0 <= eos < rows:
            raise JaxsinkError(f"eos id {eos} in the model's config is outside its {rows} vocabulary rows; correct it.")
    if config.mask_id is not None:
        if config.mask_id < 0 or tokenizer.backend.id_to_token(config.mask_id) is None:
            raise JaxsinkError(
                f"mask id {config.mask_id} in the model's config is no token of {where}; "
                "set the config's mask id to the one the model was trained with."
            )
        declared = tokenizer.declared.get("mask", config.mask_id)
        if declared != config.mask_id:
            raise JaxsinkError(
                f"mask id {config.mask_id} in the model's config differs from {declared}, which {where} declares as "
                "its mask token; use the tokenizer and the config of the same model."
            )
    warnings = [
        f"eos id {eos} of the config is no token of {where}."
        for eos in config.eos_ids
        if tokenizer.backend.id_to_token(eos) is None
    ]
    eos = tokenizer.declared.get("eos")
    if eos is not None and config.eos_ids and eos not in config.eos_ids:
        warnings.append(f"{where} declares eos id {eos}, which is not among the config's {tuple(config.eos_ids)}.")
    for name in ("bos", "pad", "eot", "mask"):
        theirs, ours = tokenizer.special.get(name), getattr(config, f"{name}_id")
        if None not in (theirs, ours) and theirs != ours:
            warnings.append(f"{where} has {name} id {theirs}, the config {ours}; prompts use the tokenizer's.")
    return warnings


def _folder(root: Path) -> Path:
    """The directory of a checkpoint that holds its tokenizer files."""
    inner = root / "tokenizer"
    if os.path.lexists(inner):
        check_inside(inner)
    for folder in (root, inner):
        for names in (("tokenizer.json",), ("vocab.json", "merges.txt")):
            if all(os.path.lexists(folder / name) for name in names):
                for name in names:
                    check_file(folder / name)
                return folder
    if any((folder / "tokenizer.model").is_file() for folder in (root, inner)):
        raise JaxsinkError(
            f"{root} has only a SentencePiece tokenizer.model, which jaxsink does not read; put the tokenizer.json "
            "of the same model next to it (transformers' AutoTokenizer writes one with save_pretrained)."
        )
    raise JaxsinkError(f"{root} has no tokenizer.json, nor vocab.json with merges.txt; copy the model's files there.")


def _json(path: Path) -> JsonObject:
    """A JSON object from a file; {} when the file does not exist."""
    return read_json(path) if os.path.lexists(path) else {}


def _settings(manifest: JsonObject) -> JsonObject:
    """What a converted checkpoint's jaxsink.json says, under the names that config.json has for it."""
    config = manifest.get("config")
    if not isinstance(config, dict):
        return {}
    ids = {f"{name}_token_id": config.get("eos_ids" if name == "eos" else f"{name}_id") for name in _NAMES}
    return {"model_type": config.get("family"), **{key: value for key, value in ids.items() if value is not None}}


def _jinja(folder: Path, config: JsonObject) -> str | None:
    """The checkpoint's own chat template, as text to recognise and never to run."""
    value = config.get("chat_template")
    if isinstance(value, list):  # several named templates
        named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
        value = named.get("default")
    path = folder / "chat_template.jinja"
    if value is None and os.path.lexists(path):
        check_file(path)
        value = read_bytes(path).decode("utf-8", errors="replace")
    return value if isinstance(value, str) else None


def _text(value: object) -> str | None:
    """A token's text: files write it plain or as an object with "content"."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _special(backend: Backend, files: Files) -> tuple[dict[str, int], dict[str, int]]:
    """(declared, all known) ids by name. Declared ones go first, then known token names, then ids in the configs."""
    declared, special = {}, {}
    for name in _NAMES:
        texts = [_text(files[source].get(f"{name}_token")) for source in ("tokenizer_config", "special_tokens_map")]
        ids = [backend.token_to_id(text) for text in texts if text is not None]
        found = next((i for i in ids if i is not None), None)
        if found is not None:
            declared[name] = special[name] = found
            continue
        ids = [_known(backend, name)]
        for source in ("generation_config", "config"):
            value = files[source].get(f"{name}_token_id")
            value = value[0] if isinstance(value, list) and value else value
            ids.append(value if isinstance(value, int) else None)
        found = next((i for i in ids if i is not None), None)
        if found is not None:
            special[name] = found
    return declared, special


def _known(backend: Backend, name: str) -> int | None:
    ids = (backend.token_to_id(text) for text in KNOWN_TOKENS.get(name, ()))
    return next((index for index in ids if index is not None), None)


def _backend(folder: Path, files: Files, family: str) -> Backend:
    """The `tokenizers.Tokenizer` of a directory, with every added token its side files list."""
    import tokenizers

    has_json = (folder / "tokenizer.json").is_file()
    path = folder / ("tokenizer.json" if has_json else "vocab.json")
    added = _added_tokens(files)
    unreadable = f"{path} is not a tokenizer that can be read; fetch the file again"
    with library_errors(unreadable):
        if has_json:
            backend = parsed(read_tokenizer_json(path), unreadable)
        else:
            backend = _from_merges(folder, added, str(files["tokenizer_config"].get("tokenizer_class") or family))
        for index in sorted(added):
            text = added[index]["content"]
            if backend.get_added_tokens_decoder().get(index) is None or backend.token_to_id(text) != index:
                backend.add_tokens([tokenizers.AddedToken(**added[index])])
    for index, token in added.items():
        if backend.token_to_id(token["content"]) != index:
            raise JaxsinkError(
                f"the files in {folder} disagree about {token['content']!r}: {index} among the added tokens, "
                f"{backend.token_to_id(token['content'])} in {path.name}; take all files from one model."
            )
    return backend


def _added_tokens(files: Files) -> dict[int, JsonObject]:
    """Added tokens by id, as arguments of `tokenizers.AddedToken`."""
    config = files["tokenizer_config"]
    names = {**files["special_tokens_map"], **config}
    listed = names.get("additional_special_tokens") or []
    special = {_text(value) for key, value in names.items() if key.endswith("_token")} | {_text(v) for v in listed}
    out = {}
    try:
        for text, index in files["added_tokens"].items():
            out[int(index)] = {"content": text, "special": text in special, "normalized": text not in special}
        for index, token in (config.get("added_tokens_decoder") or {}).items():
            keys = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
            out[int(index)] = {key: token[key] for key in keys if key in token}
            out[int(index)]["content"]  # a token without text is broken
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise JaxsinkError(
            f"the added tokens in added_tokens.json or tokenizer_config.json are malformed ({error!r}); "
            "fetch these files again."
        ) from error
    return out


def _from_merges(folder: Path, added: Mapping[int, JsonObject], kind: str) -> Backend:
    """A byte-level BPE tokenizer from vocab.json and merges.txt, pre-tokenized as its family does."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    qwen = any(name in kind.lower() for name in ("qwen", "dream"))
    if not qwen and kind and "gpt2" not in kind.lower():
        raise JaxsinkError(
            f"{folder} has only vocab.json and merges.txt, and how {kind!r} splits words is not known to jaxsink; put "
            "the tokenizer.json of the same model next to them."
        )
    vocab = _json(folder / "vocab.json")
    # In the vocabulary itself an added token keeps its id even after a gap; without merges the BPE never makes it.
    vocab.update({token["content"]: index for index, token in added.items() if token["content"] not in vocab})
    lines = read_text(folder / "merges.txt").replace("\r\n", "\n").split("\n")
    pairs = (line.partition(" ") for line in lines if line and not line.startswith("#version"))
    merges = [(left, right) for left, _, right in pairs]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    if qwen:
        backend.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(tokenizers.Regex(_QWEN2_SPLIT), "isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if "<|endoftext|>" in vocab:  # GPT-2 keeps its one special token in the vocabulary, undeclared
            backend.add_special_tokens(["<|endoftext|>"])
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return backend


@cache
def _byte_of_char() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 stands for itself, the rest from U+0100 upwards."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _readable_bytes(raw: bytes) -> str:
    """UTF-8 text, or the bytes by number when they are only part of a character."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in raw)
