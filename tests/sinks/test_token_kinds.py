"""Token kinds, canvases and sink frequencies: small vocabularies made on the spot, real runs, and slow loops."""

from __future__ import annotations

import math
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from support.golden import golden
from support.made_generation import Letters
from support.shape_checks import no_shape_checks

import jaxsink
from jaxsink import JaxsinkError, ModelConfig, Tokenizer
from jaxsink.nn.taps import Tap
from jaxsink.sinks import tokens

pytestmark = pytest.mark.usefixtures("quick_compilation")

MERGED = [
    "ĠĠ",
    "Ċ",
    "ĊĊ",
    "ĠĊ",
    "čĊ",
    "the",
    "Ġthe",
    "12",
    "Ġ7",
    ".",
    "Ġ.",
    ".Ċ",
    "...",
    "x1",
    "1.",
    "+=",
    "«»",
    "don't",
    "é",
]
SPECIALS = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]


def config_of(vocab: int, **ids: object) -> ModelConfig:
    sizes = {"layers": 1, "width": 8, "heads": 1, "kv_heads": 1, "head_dim": 8, "mlp_width": 8}
    return ModelConfig(family="llada", vocab=vocab, **sizes, **ids)  # type: ignore[arg-type]


def byte_level(specials: list[str], plain: tuple[str, ...] = ()) -> tokenizers.Tokenizer:
    """All bytes, then whole tokens in the byte alphabet."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pieces = [*letters, *("Ã©" if piece == "é" else piece for piece in MERGED)]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, merges=[])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(specials)
    backend.add_tokens(list(plain))
    return backend


def loaded(backend: tokenizers.Tokenizer, folder: Path, family: str | None = None) -> Tokenizer:
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder, family)


def named(tokenizer: Tokenizer, config: ModelConfig) -> dict[str, str]:
    """{piece: kind} of a tokenizer."""
    table = tokens.kind_table(tokenizer, config)
    assert table.dtype == np.int8 and table.shape == (config.vocab,)
    return {piece: tokens.KINDS[table[i]] for piece, i in tokenizer.backend.get_vocab().items()}


def test_kinds_of_byte_level_bpe(tmp_path: Path) -> None:
    tokenizer = loaded(byte_level([*SPECIALS, "<|reserved|>"], ("<tool>", "    ")), tmp_path, "llada")
    vocab = tokenizer.backend.get_vocab()
    config = config_of(
        tokenizer.size + 3,
        mask_id=vocab["<|mdm_mask|>"],
        bos_id=vocab["<|startoftext|>"],
        eos_ids=(vocab["<|endoftext|>"],),
        eot_id=vocab["<|eot_id|>"],
        pad_id=vocab["<|endoftext|>"],
    )
    kinds = named(tokenizer, config)
    expected = {
        "newline": ["Ċ", "ĊĊ", "ĠĊ", "čĊ", "č"],
        "space": ["Ġ", "ĠĠ", "ĉ", "    "],
        "digit": ["12", "Ġ7", "0"],
        "punctuation": [".", "Ġ.", ".Ċ", "...", "+=", "$", "<"],
        "word": ["the", "Ġthe", "x1", "1.", "don't", "Ã©", "Ã", "«»", "Ā"],  # é, parts of characters, the byte 0
        "mask": ["<|mdm_mask|>"],
        "bos": ["<|startoftext|>"],
        "eos": ["<|endoftext|>", "<|eot_id|>"],
        "template": ["<|start_header_id|>", "<|end_header_id|>"],
        "special": ["<|reserved|>", "<tool>"],
    }
    for kind, pieces in expected.items():
        assert {piece: kinds[piece] for piece in pieces} == dict.fromkeys(pieces, kind)
    table = tokens.kind_table(tokenizer, config)
    assert [tokens.KINDS[k] for k in table[-3:]] == ["special"] * 3  # rows without a token


def test_what_the_config_says_goes_first(tmp_path: Path) -> None:
    tokenizer = loaded(byte_level(SPECIALS), tmp_path)
    vocab = tokenizer.backend.get_vocab()
    end = vocab["<|endoftext|>"]
    kinds = named(tokenizer, config_of(tokenizer.size, bos_id=end, eos_ids=(vocab["the"], end), pad_id=vocab["."]))
    assert kinds["<|endoftext|>"] == kinds["the"] == "eos"  # Dream, Qwen, GPT-2: bos is eos
    assert kinds["."] == "special"
    assert kinds["<|startoftext|>"] == "template"  # not this model's bos
    assert kinds["<|mdm_mask|>"] == "special"  # a model without a mask
    kinds = named(tokenizer, config_of(tokenizer.size, mask_id=end, pad_id=end))  # the mask before any other name
    assert kinds["<|endoftext|>"] == "mask"


def test_template_tokens_need_a_template(tmp_path: Path) -> None:
    """<|im_start|> is what a Qwen conversation is made of, and just special in a tokenizer of another layout."""
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    qwen3 = loaded(byte_level(names[:3], tuple(names[3:])), tmp_path)
    assert qwen3.template == "qwen3"
    assert [named(qwen3, config_of(qwen3.size))[name] for name in names] == ["special", *["template"] * 4]
    qwen3.template = None
    assert [named(qwen3, config_of(qwen3.size))[name] for name in names] == ["special"] * 5


def sentencepiece(folder: Path) -> Tokenizer:
    """Llama 2's layout: ▁ for spaces, bytes as <0x..>, one space dropped at the start of a text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁▁", "▁the", "the", "a", "▁1", "2", "½", "▁,", ".", "\n", "▁.\n", "日", "。", "▁—"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True, unk_token="<unk>"
        )
    )
    parts = [
        tokenizers.decoders.Replace("▁", " "),
        tokenizers.decoders.ByteFallback(),
        tokenizers.decoders.Fuse(),
        tokenizers.decoders.Strip(" ", 1, 0),
    ]
    backend.decoder = tokenizers.decoders.Sequence(parts)
    backend.add_special_tokens(pieces[:3])
    return loaded(backend, folder)


def test_kinds_of_sentencepiece(tmp_path: Path) -> None:
    tokenizer = sentencepiece(tmp_path)
    kinds = named(tokenizer, config_of(tokenizer.size, bos_id=1, eos_ids=(2,)))
    expected = {
        "<unk>": "special",
        "<s>": "bos",
        "</s>": "eos",
        "▁": "space",
        "▁▁": "space",
        "<0x20>": "space",
        "<0x09>": "space",
        "<0x0A>": "newline",
        "\n": "newline",
        "▁the": "word",
        "the": "word",
        "a": "word",
        "▁1": "digit",
        "2": "digit",
        "½": "digit",
        "<0x37>": "digit",
        "▁,": "punctuation",
        ".": "punctuation",
        "▁.\n": "punctuation",
        "。": "punctuation",
        "▁—": "punctuation",
        "<0x2E>": "punctuation",
        "日": "word",
        "<0xE2>": "word",
    }
    assert {piece: kinds[piece] for piece in expected} == expected


def test_kinds_of_metaspace_and_whole_words(tmp_path: Path) -> None:
    """Another decoder that drops a first space, and one that puts spaces between tokens."""
    expected = {"▁": "space", "▁the": "word", "▁!": "punctuation", "42": "digit", "\n": "newline", "word": "word"}
    vocab = {piece: i for i, piece in enumerate([*expected, "[UNK]"])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, "[UNK]"))
    for decoder in (tokenizers.decoders.Metaspace(), None):
        if decoder is not None:
            backend.decoder = decoder
        else:
            backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, "[UNK]"))
        tokenizer = loaded(backend, tmp_path)
        kinds = named(tokenizer, config_of(tokenizer.size))
        assert {piece: kinds[piece] for piece in expected} == expected


def test_a_vocabulary_of_150_000_takes_seconds(tmp_path: Path) -> None:
    backend = byte_level(SPECIALS)
    vocab = backend.get_vocab(with_added_tokens=False)
    vocab |= {f"Ġw{i}": i for i in range(len(vocab) + 10, 150_000)}  # ten ids have no token
    large = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    large.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = loaded(large, tmp_path)
    begin = time.perf_counter()
    table = tokens.kind_table(tokenizer, config_of(152_000))
    assert time.perf_counter() - begin < 10
    assert (table == tokens.KINDS.index("special")).sum() == 2_000 + 10
    assert tokens.KINDS[table[149_999]] == "word"
    with pytest.raises(JaxsinkError, match="only 149999 vocabulary rows"):
        tokens.kind_table(tokenizer, config_of(149_999))


def seen_by_the_model(tap: Tap) -> object:
    """i32[B,S]: the tokens themselves, as a record; -1 where a row has none (any more)."""
    return jnp.where(tap.mask, tap.tokens, -1)


@pytest.mark.parametrize(
    ("name", "sampler", "every"),
    [
        ("llada_tiny", jaxsink.LLaDASampler(8, 8, 4), 1),
        ("dream_tiny", jaxsink.DreamSampler(8, 5, "entropy"), 2),
        ("llama_tiny", jaxsink.ARSampler(8), 1),
    ],
)
def test_canvases_are_what_the_model_saw(name: str, sampler: object, every: int) -> None:
    """The second row is padded; the Llama's rows stop early, as every fifth token ends a text."""
    model = golden(name).model
    if name == "llama_tiny":
        model = jaxsink.init(model.config.replace(eos_ids=tuple(range(0, model.config.vocab, 5))), 0)
    out = jaxsink.generate(model, [[5, 17, 101, 9], [8, 30]], sampler, record=seen_by_the_model, every=every)
    seen = np.asarray(out.record)[:, 0]
    canvas = np.asarray(tokens.canvases(out.tokens, out.committed_at, out.recorded_steps, model.config.mask_id))
    running = np.asarray(out.recorded_steps)[:, None] < np.asarray(out.steps)
    counted = running[:, :, None] & np.asarray(out.mask)
    np.testing.assert_array_equal(np.where(counted, canvas, -1), np.where(running[:, :, None], seen, -1))
    for index, step in enumerate(out.recorded_steps):
        if model.config.mask_id is not None:
            np.testing.assert_array_equal(canvas[index], out.canvas(step, model.config.mask_id))
    new = np.asarray(tokens.fresh(out.committed_at, out.recorded_steps))
    assert not new[0].any()
    if every == 1:  # a token is fresh when it was not there the step before
        changed = (canvas[1:] != canvas[:-1]) & running[1:, :, None]
        np.testing.assert_array_equal(new[1:] & running[1:, :, None], changed)
    if name == "llama_tiny":
        assert (np.asarray(out.steps) < 8).any()


def case(seed: int) -> dict[str, np.ndarray]:
    """T=5, L=3, B=4, H=2, S=9, V=11: padding on both sides, places that are not there yet, rows that end early."""
    rng = np.random.default_rng(seed)
    mask = np.ones((4, 9), bool)
    mask[1, :3], mask[2, 7:] = False, False
    canvas = rng.integers(0, 10, (5, 4, 9)).astype(np.int32)  # token 10 never occurs
    canvas[:2, 3, 6:] = tokens.NOT_THERE
    return {
        "sinks": rng.random((5, 3, 4, 2, 9)) < 0.3,
        "canvas": canvas,
        "mask": mask,
        "table": rng.integers(0, len(tokens.KINDS), 11).astype(np.int8),
        "fresh": rng.random((5, 4, 9)) < 0.2,
        "steps": np.array([10, 4, 9, 5]),
        "recorded_steps": np.array([0, 2, 4, 6, 8]),
    }


def test_frequency_against_slow_loops() -> None:
    x = case(0)
    found = tokens.frequency(vocab=11, **x)
    count, places = np.zeros(11, int), np.zeros(11, int)
    kind_count, kind_places = np.zeros(10, int), np.zeros(10, int)
    layers, new, new_places = np.zeros((3, 10), int), 0, 0
    for t, b, s in np.ndindex(5, 4, 9):
        token = x["canvas"][t, b, s]
        if not x["mask"][b, s] or token < 0 or x["recorded_steps"][t] >= x["steps"][b]:
            continue
        kind = x["table"][token]
        places[token] += 1
        kind_places[kind] += 1
        new_places += x["fresh"][t, b, s]
        for layer, head in np.ndindex(3, 2):
            if x["sinks"][t, layer, b, head, s]:
                count[token] += 1
                kind_count[kind] += 1
                layers[layer, kind] += 1
                new += x["fresh"][t, b, s]
    for rates, sinks, stood in ((found.by_token, count, places), (found.by_kind, kind_count, kind_places)):
        np.testing.assert_array_equal(rates.count, sinks)
        np.testing.assert_array_equal(rates.occurrences, stood)
        np.testing.assert_allclose(rates.share, sinks / count.sum(), rtol=1e-12)
        np.testing.assert_allclose(rates.base, stood / places.sum(), rtol=1e-12)
        there = stood > 0
        lift = (sinks / count.sum())[there] / (stood / places.sum())[there]
        np.testing.assert_allclose(rates.lift[there], lift, rtol=1e-12)
        assert np.isnan(rates.lift[~there]).all() and not there.all()
        assert rates.share.sum() == pytest.approx(1) and rates.base.sum() == pytest.approx(1)
    np.testing.assert_array_equal(found.per_layer, layers)
    assert (found.freshly_committed.count, found.freshly_committed.occurrences) == (new, new_places)
    expected = (new / count.sum()) / (new_places / places.sum())
    assert float(found.freshly_committed.lift) == pytest.approx(expected, rel=1e-12)


def test_parts_that_were_not_asked_for() -> None:
    x = case(1)
    found = tokens.frequency(x["sinks"], x["canvas"], x["mask"], 11)
    assert found.by_kind is found.freshly_committed is found.per_layer is None
    counted = x["mask"] & (x["canvas"] >= 0)
    assert found.by_token.all_occurrences == counted.sum()
    assert found.by_token.all_sinks == x["sinks"].transpose(1, 3, 0, 2, 4)[..., counted].sum()
    early = tokens.frequency(x["sinks"], x["canvas"], x["mask"], 11, steps=[0, 0, 2, 0])
    assert early.by_token.all_occurrences == 2 * 7  # two recorded steps of the third row, which has seven tokens


def test_no_sinks_is_no_share() -> None:
    found = tokens.frequency(np.zeros((1, 1, 1, 1, 3), bool), np.zeros((1, 1, 3), int), np.ones((1, 3), bool), 2)
    assert np.isnan(found.by_token.share).all()
    assert found.by_token.base.tolist() == [1, 0]
    assert tokens.top_tokens(found, Letters()) == []


def test_batches_are_pooled() -> None:
    x = case(2)
    whole = tokens.frequency(vocab=11, **x)
    rows = ("canvas", "fresh")
    halves = []
    for part in (slice(0, 1), slice(1, 4)):
        y = {key: value[:, part] if key in rows else value for key, value in x.items()}
        y |= {"sinks": x["sinks"][:, :, part], "mask": x["mask"][part], "steps": x["steps"][part]}
        halves.append(tokens.frequency(vocab=11, **y))
    pooled = halves[0] + halves[1]
    for name in ("by_token", "by_kind", "freshly_committed"):
        for mine, theirs in zip(vars(getattr(pooled, name)).values(), vars(getattr(whole, name)).values(), strict=True):
            np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(pooled.per_layer, whole.per_layer)
    for other in (
        tokens.frequency(x["sinks"], x["canvas"], x["mask"], 11),
        tokens.frequency(vocab=11, **case(2) | {"fresh": None}),
    ):
        with pytest.raises(JaxsinkError, match="pooled"):
            _ = whole + other


def test_top_tokens_are_shown_readably(tmp_path: Path) -> None:
    tokenizer = loaded(byte_level(SPECIALS), tmp_path)
    vocab = tokenizer.backend.get_vocab()
    ids = [vocab[piece] for piece in ("Ċ", "<|mdm_mask|>", "Ġ.", "the", "Ġ")]
    canvas = np.array([[[ids[0], ids[1], ids[1], ids[2], ids[3], ids[4], ids[4], ids[4]]]])
    sinks = np.zeros((1, 1, 1, 4, 8), bool)
    sinks[..., :4, 0], sinks[..., :1, 1], sinks[..., :2, 2], sinks[..., :2, 3], sinks[..., :1, 4] = (True,) * 5
    found = tokens.frequency(sinks, canvas, np.ones((1, 8), bool), tokenizer.size)
    best = tokens.top_tokens(found, tokenizer, 3)
    assert [row["token"] for row in best] == ["\\n", "<|mdm_mask|>", "␣."]
    assert [row["id"] for row in best] == ids[:3]
    assert [row["share"] for row in best] == [4 / 10, 3 / 10, 2 / 10]
    assert [row["base"] for row in best] == [1 / 8, 2 / 8, 1 / 8]
    assert all(math.isclose(row["lift"], row["share"] / row["base"]) for row in best)
    assert len(tokens.top_tokens(found, tokenizer)) == 4  # the space never is a sink


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"sinks": np.ones((5, 3, 4, 9), bool)}, "sinks must be"),
        ({"canvas": np.ones((5, 4, 8), int)}, "canvas has 8 along its axis S"),
        ({"mask": np.ones((5, 9), bool)}, "mask has 5 along its axis B"),
        ({"table": np.ones(10, int)}, "table must have"),
        ({"fresh": np.ones((4, 9), bool)}, "fresh must be an array of True and False"),
        ({"steps": np.ones(5, int)}, "steps has 5 along its axis B"),
        ({"recorded_steps": np.arange(4)}, "recorded_steps has 4 along its axis T"),
        ({"canvas": np.full((5, 4, 9), 11)}, "token id 11"),
        ({"canvas": np.full((5, 4, 9), -2)}, "token id -2"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, np.ndarray], complaint: str) -> None:
    with no_shape_checks(), pytest.raises(JaxsinkError, match=complaint):
        tokens.frequency(vocab=11, **case(3) | change)
