"""`jaxsink generate`: the same as the library, in JSON, on the disk and on the screen; and one sentence when it cannot."""

import argparse
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
import tokenizers
from rich.console import Console
from support.configs import small
from support.golden import load_golden
from support.paths import GOLDEN

import jaxsink
from jaxsink.checkpoints.found import Found
from jaxsink.checkpoints.origin import model_names
from jaxsink.cli import generate as command
from jaxsink.cli import live, main
from jaxsink.errors import JaxsinkError
from jaxsink.recording.named import NAMED, Shape
from jaxsink.runs import reporter
from jaxsink.runs.progress import Task, reporting
from jaxsink.sampling import llada, registry, respond
from jaxsink.sampling.generation import before_end, end_ids
from jaxsink.sampling.record_file import FIELDS, RecordFile
from jaxsink.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPECIALS = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|mdm_mask|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
LLADA = str(GOLDEN / "llada_tiny")
LLAMA = str(GOLDEN / "llama_tiny")
DREAM = str(GOLDEN / "dream_tiny")
CONFIG = Found.at(LLADA).config


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("JAXSINK_COMPILE_CACHE", "off")


def parse(*argv: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["generate", *map(str, argv)])


def prepare(*argv: object) -> respond.Job:
    args = parse(*argv)
    return respond.prepare(args.model, command.read_prompt(args.prompt), command.note, **command.options(args))


def call(*argv: object) -> int:
    args = parse(*argv)
    return args.run(args)


def call_json(capsys, *argv: object) -> dict:
    assert call(*argv, "--json") == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


@pytest.fixture(scope="module")
def chatty(tmp_path_factory) -> Path:
    """LLaDA's tiny model with a tokenizer of all bytes, its special tokens where the config has them, and fillers."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    shutil.copytree(LLADA, folder)
    config = CONFIG
    names = dict(enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())))
    special = dict(zip((400, config.eos_ids[0], config.mask_id, 401, 402, config.eot_id or 403), SPECIALS, strict=True))
    vocab = {(names | special).get(i, f"filler {i}"): i for i in range(500 + 5)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(SPECIALS)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ anything }}"}))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "sampler"),
    [
        (
            "llada_tiny",
            ["--steps", 8, "--block", 8, "--temperature", 0.7, "--remasking", "random", "--seed", 3],
            jaxsink.LLaDASampler(16, 8, 8, temperature=0.7, remasking="random"),
        ),
        (
            "llada_tiny",
            ["--threshold", 0.01, "--cfg", 0.5, "--stop-at-eos"],
            jaxsink.LLaDASampler(16, 16, 16, threshold=0.01, cfg_scale=0.5, stop_at_eos=True),
        ),
        ("mmada_tiny", [], jaxsink.LLaDASampler(16, 16, 16, text_only=True)),
        (
            "dream_tiny",
            ["--alg", "topk_margin", "--steps", 5, "--temperature", 0],
            jaxsink.DreamSampler(16, 5, alg="topk_margin", top_p=0.9),
        ),
        (
            "llama_tiny",
            ["--temperature", 0.9, "--top-p", 0.8, "--top-k", 40, "--no-stop-at-eos"],
            jaxsink.ARSampler(16, temperature=0.9, top_p=0.8, top_k=40, stop_at_eos=False),
        ),
        ("qwen2_tiny", [], jaxsink.ARSampler(16)),
        (
            "bd3lm_tiny",
            ["--temperature", 0.8, "--top-p", 0.5],
            jaxsink.AncestralSampler(16, temperature=0.8, top_p=0.5),
        ),
        ("gidd_tiny", ["--steps", 6], jaxsink.GIDDSampler(16, 6)),
    ],
)
def test_json_is_what_the_library_gives(capsys, name, options, sampler):
    model = load_golden(name)
    if name == "mmada_tiny" and model.config.text_vocab is None:
        sampler = jaxsink.LLaDASampler(16, 16, 16)
    result = call_json(capsys, GOLDEN / name, "--ids", "5, 17 31,42", "--tokens", 16, *options)
    pad_to = None if name == "dream_tiny" else 32  # what the command does, to share compiled programs
    gen = jaxsink.generate(model, [[5, 17, 31, 42]], sampler, seed=result["seed"], pad_to=pad_to)
    count = int(gen.steps[0]) if isinstance(sampler, jaxsink.ARSampler) else 16
    assert result["ids"] == np.asarray(gen.response)[0, :count].tolist()
    assert result["committed_at"] == np.asarray(gen.committed_at)[0, gen.prompt_length :][:count].tolist()
    assert result["steps"] == int(gen.steps[0])
    assert result["prompt_ids"] == [5, 17, 31, 42]
    assert result["text"] is None and result["chat"] is None and result["start"] == 4
    settings = result["sampler"]
    assert settings.pop("name") == type(sampler).__name__
    assert type(sampler)(**settings) == sampler
    assert set(result["seconds"]) == {"load", "compile", "run"} and min(result["seconds"].values()) > 0
    assert (result["family"], result["dtype"], result["backend"]) == (model.config.family, "float32", "naive")


def test_plain_output_is_the_response_alone(capsys, chatty):
    ids = call_json(capsys, LLADA, "--ids", "5,6", "--tokens", 8)["ids"]
    assert call(LLADA, "--ids", "5,6", "--tokens", 8) == 0
    captured = capsys.readouterr()
    assert captured.out == " ".join(map(str, ids)) + "\n"
    assert captured.err == ""
    result = call_json(capsys, chatty, "Hi", "--no-chat", "--tokens", 8)
    assert result["text"] == Tokenizer.load(chatty).decode(before_end(result["ids"], end_ids(CONFIG)))
    assert call(chatty, "Hi", "--no-chat", "--tokens", 8) == 0
    assert capsys.readouterr().out == result["text"] + "\n"


def test_prompts_as_text_and_chats(chatty, monkeypatch):
    tokenizer = Tokenizer.load(chatty)

    def ask(*argv) -> tuple[str | None, list[int]]:
        job = prepare(chatty, *argv)
        return job.template, job.ids

    chat = ("llada", tokenizer.chat("Hi é"))
    assert ask("Hi é") == chat  # its tokenizer brings a template, and nothing says that it is a base model
    assert ask("Hi é", "--chat") == chat
    assert ask("Hi é", "--no-chat") == (None, tokenizer.encode("Hi é"))
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi é"}]
    assert ask("Hi é", "--system", "Be brief.") == ("llada", tokenizer.chat(turns))
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi é\n"))
    assert ask("-") == chat
    assert ask("--ids", "1,2") == (None, [1, 2])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    with pytest.raises(JaxsinkError, match="stdin is not valid text"):
        ask("-")
    with pytest.raises(JaxsinkError, match="the prompt is empty"):
        ask("", "--no-chat")


@pytest.mark.parametrize(
    ("names", "brings", "expected"),
    [
        (["x"], True, True),
        (["x"], False, False),
        (["LLaDA-8B-Instruct"], False, True),
        (["out", "Llama-2-7b-chat-hf"], False, True),
        (["LLaDA-8B-Base"], True, False),
        (["models--GSAI-ML--LLaDA-8B-Base", "0f2a"], True, False),
        (["databases"], False, False),
    ],
)
def test_when_a_model_is_for_chats(tmp_path, names, brings, expected):
    found = Found(tmp_path, small("llada-8b-base"), jaxsink.Origin(names=tuple(names)))
    assert found.prefers_chat(SimpleNamespace(template="llada", brings_template=brings)) is expected  # type: ignore[arg-type]
    assert not found.prefers_chat(SimpleNamespace(template=None, brings_template=brings))  # type: ignore[arg-type]


def test_the_library_takes_chats_too(chatty):
    model = jaxsink.load(chatty)
    sampler = jaxsink.LLaDASampler(8, 8, 8)
    out = jaxsink.generate(model, ["Hi", "Hello"], sampler, chat=True)
    same = jaxsink.generate(model, [model.tokenizer.chat("Hi"), model.tokenizer.chat("Hello")], sampler)
    np.testing.assert_array_equal(out.tokens, same.tokens)
    assert out.texts == same.texts
    plain = jaxsink.generate(model, ["Hi", "Hello"], sampler)
    assert plain.prompt_length < out.prompt_length


def test_names_come_from_the_path_the_hub_cache_and_the_source(chatty):
    assert model_names("/a/base/models--x--Tiny-Instruct/snapshots/0f2a") == ["models--x--Tiny-Instruct", "0f2a"]
    assert model_names("chat/LLaDA-8B.gguf") == ["LLaDA-8B.gguf"]
    assert Found.at(str(chatty)).origin.names == ("tiny",)


def test_infilling_returns_everything_from_the_first_gap_on(capsys, chatty):
    result = call_json(capsys, chatty, "one <|mdm_mask|><|mdm_mask|> two", "--no-chat", "--tokens", 8)
    ids = result["prompt_ids"]
    assert result["start"] == ids.index(Found.at(str(chatty)).config.mask_id) == 4
    assert len(result["ids"]) == len(ids) - 4 + 8
    assert [step >= 0 for step in result["committed_at"]] == [True, True, *[False] * 4, *[True] * 8]
    assert Tokenizer.load(chatty).decode(result["ids"][:6]) in result["text"]


def test_text_ends_at_the_first_end_token():
    ends = end_ids(CONFIG.replace(eos_ids=(9, 11), eot_id=10))
    assert [before_end(ids, ends) for ids in ([5, 6, 10, 7], [11, 9], [5, 6])] == [[5, 6], [], [5, 6]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sampler", "what"),
    [
        (LLADA, jaxsink.LLaDASampler(8, 8, 8), ", ".join(NAMED)),
        (LLAMA, jaxsink.ARSampler(8, stop_at_eos=False), "received,by-query,top,counts,kinds,entropy,hidden_max,maps"),
    ],
)
def test_record_holds_what_the_library_records(tmp_path, monkeypatch, model, sampler, what):
    path = tmp_path / "run.npz"
    options = [model, "--ids", "5,17,31", "--tokens", 8, "--every", 3, "--record", path, "--record-what", what]
    if model == LLAMA:
        options.append("--no-stop-at-eos")
    assert call(*options) == 0
    record, reduce = jaxsink.record, jaxsink.reduce
    everything = {
        "received": record.received(),
        "by_query": record.received_by_query(),
        "last_row": record.last_row(),
        "top": record.received().then(reduce.top(8)),
        "counts": record.received().then(reduce.sink_counts((1.0, 3.0, 10.0))),
        "kinds": record.received().then(reduce.sum_by_kind()),
        "contribution": record.contribution(),
        "diagonal": record.diagonal(),
        "channels": record.channels().then(reduce.top_channels(8)),
        "entropy": record.row_entropy(),
        "key_norm": record.key_norm(),
        "value_norm": record.value_norm(),
        "hidden_max": record.hidden_max(),
        "lens": record.lens(5),
        "lens_window": record.lens(5, "window"),
        "embedding": record.embedding(),
        "residual_before": record.residual_before(),
        "residual": record.residual(),
        "residual_norm": record.residual_norm(),
        "attention_output": record.attention_output(),
        "mlp_output": record.mlp_output(),
        "head_values": record.head_values(),
        "head_outputs": record.head_outputs(),
        "value_vectors": record.value_vectors(),
        "final_norm": record.final_norm(),
        "maps": record.maps(),
    }
    names = [name.strip().replace("-", "_") for name in what.split(",")]
    wanted = {name: everything[name] for name in names}
    expected = jaxsink.generate(load_golden(Path(model).name), [[5, 17, 31]], sampler, record=wanted, every=3)
    with np.load(path) as file:
        arrays = dict(file)
    settings = json.loads(str(arrays.pop("settings")))
    assert settings["prompt_ids"] == [5, 17, 31] and settings["approximate"] is None and settings["seed"] == 0
    for name in FIELDS:
        np.testing.assert_array_equal(arrays.pop(name), np.asarray(getattr(expected, name)))
    assert arrays.pop("token_texts").shape == expected.tokens.shape
    flat, _ = jax.tree_util.tree_flatten_with_path(expected.record)
    flat = {".".join(key.key for key in keys): np.asarray(leaf) for keys, leaf in flat}
    assert set(arrays) == set(flat) > {"received", "top.score", "top.position", "by_query.masked"}
    for name, value in flat.items():
        np.testing.assert_allclose(arrays[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert arrays["received"].shape[:2] == (3, load_golden(Path(model).name).config.layers)
    assert [child.name for child in tmp_path.iterdir()] == ["run.npz"]

    planned = prepare(*options, "--overwrite").record
    assert planned is not None and planned.bytes == sum(array.nbytes for array in arrays.values())

    before = path.read_bytes()
    with pytest.raises(JaxsinkError, match=r"exists already.*--overwrite"):
        call(*options)
    assert path.read_bytes() == before
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", run_out_of_space)
        with pytest.raises(OSError, match="No space"):
            call(*options, "--overwrite")
    assert path.read_bytes() == before and [child.name for child in tmp_path.iterdir()] == ["run.npz"]
    assert call(*options, "--overwrite", "--seed", 1) == 0
    assert path.read_bytes() != before


def run_out_of_space(file, **_):
    file.write(b"half")
    raise OSError(28, "No space left on device")


def test_large_records_are_announced(tmp_path):
    config = jaxsink.preset("llada-8b-base")
    plan = RecordFile.plan(str(tmp_path / "x.npz"), "received", 2, Shape(config, 1024, 1024, 1024), False)
    assert plan.bytes == 512 * 32 * 32 * 1024 * 4
    assert plan.warning == "the record will take 2.00 GiB; --every 16 or --record-what top,counts keeps it small."
    assert plan.chunk() == 2 * 64
    small_one = RecordFile.plan(str(tmp_path / "x.npz"), "top", 1, Shape(config, 64, 64, 64), False)
    assert small_one.warning is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["/nowhere/model", "Hi"], "there is no checkpoint at /nowhere/model"),
        (["llada-8b-base", "Hi"], "llada-8b-base is known, but its weights are not here"),
        ([LLADA], "either a PROMPT .* or token ids"),
        ([LLADA, "Hi", "--ids", "1"], "either a PROMPT .* or token ids"),
        ([LLADA, "Hi"], r"no tokenizer.json.*, or give token ids with --ids\."),
        ([LLADA, "--ids", "1,x"], "--ids takes token ids such as 1,2,3, not 'x'"),
        ([LLADA, "--ids", " "], "--ids takes token ids such as 1,2,3, not ' '"),
        ([LLADA, "--ids", "1,99999"], "token id 99999 is outside the model's vocabulary"),
        ([LLADA, "--ids", "1", "--chat"], "--chat and --system need a PROMPT"),
        ([LLADA, "--ids", "1", "--system", "x"], "--chat and --system need a PROMPT"),
        ([LLADA, "Hi", "--system", "x", "--no-chat"], "--system needs the chat template, which --no-chat forbids"),
        (
            [LLADA, "--ids", "1", "--alg", "entropy"],
            "^--alg is not for a llada model: its sampler has --steps, --block,",
        ),
        ([LLADA, "--ids", "1", "--top-p", "0.5"], "^--top-p is not for a llada model"),
        ([DREAM, "--ids", "1", "--small-block", "8"], "^--small-block is not for a dream model"),
        ([DREAM, "--ids", "1", "--tokens", "12", "--block", "8"], "12 is not a multiple of block_length 8"),
        ([DREAM, "--ids", "1", "--stop-at-eos"], "^--stop-at-eos is not for a dream model"),
        ([LLAMA, "--ids", "1", "--steps", "8"], "^--steps is not for a llama model"),
        ([LLAMA, "--ids", "1", "--cfg", "1"], "^--cfg is not for a llama model"),
        ([LLAMA, "--ids", "1", "--top-p", "0.5"], "--top-p and --top-k .* need a --temperature above 0"),
        ([LLADA, "--ids", "1", "--whole-map"], "^--whole-map is not for a llada model"),
        ([LLADA, "--ids", "1", "--tokens", "100", "--block", "32"], "--tokens 100 is not a multiple of --block 32"),
        (
            [LLADA, "--ids", "1", "--tokens", "128", "--steps", "50"],
            "--steps 50 cannot be shared evenly by the 4 blocks of --block 32",
        ),
        ([LLADA, "--ids", "1", "--steps", "50", "--threshold", "0.9"], "give it or --steps, not both"),
        ([LLADA, "--ids", "1", "--temperature", "-1"], "temperature must be a finite number from 0"),
        ([LLADA, "--ids", "1", "--cfg", "1", "--cache", "dual"], "guidance and a cache do not go together"),
        ([LLADA, "--ids", "1", "--backend", "magic"], "no attention backend 'magic'"),
        ([LLADA, "--ids", "1", "--every", "2"], "need --record FILE.npz"),
        ([LLADA, "--ids", "1", "--record-what", "top"], "need --record FILE.npz"),
        ([LLADA, "--ids", "1", "--overwrite"], "need --record FILE.npz"),
        ([LLADA, "--ids", "1", "--record", "/nowhere/x.npz"], "the directory /nowhere does not exist"),
        ([LLADA, "--ids", "1", "--record", "/tmp"], "/tmp cannot be written as a file"),
        ([LLADA, "--ids", "1", "--record", "attention.txt"], "attention.txt must end in .npz"),
        ([LLADA, "--ids", "1", "--record", "x.npz", "--record-what", "magic"], "'magic' is not known; choose from rec"),
        ([LLADA, "--ids", "1", "--record", "x.npz", "--record-what", ","], "--record-what names nothing"),
    ],
)
def test_mistakes_are_one_sentence_before_any_work(argv, message, monkeypatch):
    monkeypatch.setattr("jaxsink.sampling.respond.load", lambda *_: pytest.fail("the weights were read"))
    with pytest.raises(JaxsinkError, match=message) as error:
        call(*argv)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize(
    "argv",
    [["--tokens", "0"], ["--tokens", "x"], ["--every", "-1"], ["--remasking", "no"], ["--dtype", "int4"], ["--foo"]],
)
def test_what_argparse_refuses(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        call(LLADA, "--ids", "1", *argv)
    assert stop.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_block_causal_models(tmp_path, capsys, monkeypatch):
    config = small("sdar-1.7b")
    monkeypatch.setattr(Found, "at", lambda model: Found(tmp_path, config, jaxsink.Origin()))
    monkeypatch.setattr("jaxsink.sampling.respond.load", lambda *_: jaxsink.init(config, 0))
    result = call_json(capsys, "sdar", "--ids", "1", "--tokens", 8, "--steps-per-block", 2)
    assert result["sampler"]["name"] == "SDARSampler" and len(result["ids"]) == 8
    with pytest.raises(JaxsinkError, match="--steps is not for a sdar model: its sampler has --steps-per-block, --thr"):
        call("sdar", "--ids", "1", "--steps", 8)


@pytest.mark.slow
def test_small_blocks_and_their_cache(tmp_path, capsys, monkeypatch):
    config = small("fast-dllm-v2-7b", block_length=4)
    monkeypatch.setattr(Found, "at", lambda model: Found(tmp_path, config, jaxsink.Origin()))
    monkeypatch.setattr("jaxsink.sampling.respond.load", lambda *_: jaxsink.init(config, 0))
    options = [
        "--tokens",
        8,
        "--block",
        6,
        "--small-block",
        2,
        "--threshold",
        0.5,
        "--use-block-cache",
        "--no-stop-at-eos",
    ]
    result = call_json(capsys, "fast", "--ids", "1", *options)
    sampler = jaxsink.FastDLLMv2Sampler(8, 6, 2, 0.5, use_block_cache=True, stop_at_eos=False)
    assert result["sampler"] == {"name": "FastDLLMv2Sampler", **vars(sampler)}
    assert result["approximate"] == "block"
    with pytest.raises(JaxsinkError, match="block_size 4 is not a multiple of small_block_size 3"):
        call("fast", "--ids", "1", "--small-block", 3)
    with pytest.raises(
        JaxsinkError, match="--cache is not for a fast_dllm model: its sampler has --block, --small-block"
    ):
        call("fast", "--ids", "1", "--cache", "dual")


def test_dream_in_blocks(capsys):
    result = call_json(capsys, DREAM, "--ids", "1", "--tokens", 8, "--block", 4, "--cache", "dual")
    assert (result["sampler"]["block_length"], result["sampler"]["steps"]) == (4, 8)
    assert result["approximate"] == "dual"


def test_a_model_that_cannot_write():
    with pytest.raises(JaxsinkError, match="no mask token, cannot write"):
        registry.sampler_kind(CONFIG.replace(mask_id=None))


def test_broken_tokenizers_and_gguf_files(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(JaxsinkError, match=r"not a tokenizer that can be read.*, or give token ids with --ids\.$"):
        Found(tmp_path, CONFIG, jaxsink.Origin()).tokenizer()
    (tmp_path / "model.gguf").write_text("")
    with pytest.raises(JaxsinkError, match=r"cannot be read as a GGUF file.*, or give token ids with --ids\.$"):
        Found(tmp_path / "model.gguf", CONFIG, jaxsink.Origin()).tokenizer()


def test_default_blocks():
    sizes = {128: 32, 16: 16, 4: 4, 100: 25, 48: 24, 33: 11, 97: 97, 2: 2}
    assert {tokens: llada.default_block(tokens) for tokens in sizes} == sizes


def test_long_texts_are_noted(capsys):
    prepare(DREAM, "--ids", "5", "--tokens", 300)
    assert "301 tokens, and the model was made for 256" in capsys.readouterr().err


# What is seen


class Terminal:
    """A screen that never was, a clock that is set by hand, and three-letter words as tokens."""

    def __init__(self, width: int = 60, height: int = 12, tokenizer=None, mask_id: int | None = 0, **options):
        self.console = Console(
            record=True,
            force_terminal=True,
            width=width,
            height=height,
            file=io.StringIO(),
            legacy_windows=False,
            **options,
        )
        self.now = 0.0
        self.canvas = live.Canvas(self.console, live.Pieces(tokenizer), 2, mask_id)

    def display(self, total: int, canvas: bool = True, delay: float = 0.0) -> live.Display:
        return live.Display(self.canvas if canvas else None, total, lambda: self.now, delay, lambda: self.now)

    def shown(self, display: live.Display) -> list[str]:
        self.console.export_text(clear=True)
        self.console.print(display)
        return self.console.export_text(clear=True).rstrip("\n").split("\n")


def styles(text: Any) -> list[tuple[str, Any]]:
    return [(text.plain[span.start : span.end], span.style) for span in text.spans]


def test_the_canvas_fills():
    screen = Terminal(width=70)
    display = screen.display(4)
    assert screen.shown(display) == [""]  # nothing is known yet
    screen.now = 1.0
    display(1, np.array([[7, 8, 0, 0, 55, 0]]), np.array([[-1, -1, -1, -1, 0, -1]]))
    assert screen.shown(display) == ["░░░ ░░░ 55 ░░░"]
    assert display.detail(1) == "1.0 tokens/s"
    display(2, np.array([[7, 8, 0, 123, 55, 0]]), np.array([[-1, -1, -1, 1, 0, -1]]))
    assert screen.shown(display) == ["░░░ 123 55 ░░░"]
    text = screen.canvas.text(np.array([7, 8, 0, 123, 55, 0]), np.array([-1, -1, -1, 1, 0, -1]), np.arange(6) == 3)
    assert styles(text) == [("░░░", live.MASK), (" 123", live.FRESH), (" ░░░", live.MASK)]


def test_the_prompt_stands_above_the_canvas_and_around_gaps():
    screen = Terminal(width=70)
    tokens, committed, none = np.array([9, 7, 8, 55, 0]), np.array([-1, -1, -1, 0, -1]), np.zeros(5, bool)
    above = live.Canvas(screen.console, live.Pieces(None), 3, 0, first=1)
    text = above.text(tokens, committed, none)
    assert text.plain == "7 8\n55 ░░░" and styles(text)[0] == ("7 8", live.PROMPT)
    around = live.Canvas(screen.console, live.Pieces(None), 2, 0, first=1, inline=True)
    assert around.text(np.array([9, 7, 0, 8, 0]), np.full(5, -1), none).plain == "7 ░░░ 8 ░░░"
    causal = live.Canvas(screen.console, live.Pieces(None), 3, None, first=1)
    assert causal.text(tokens, committed, none).plain == "7 8\n55"


def test_sinks_are_marked_in_prompt_masks_and_fresh_tokens():
    screen = Terminal(width=70)
    canvas = live.Canvas(screen.console, live.Pieces(None), 1, 0, first=0)
    share = np.array([0.9, 0.3, 0.1, 0.3, 0.0])
    text = canvas.text(np.array([7, 0, 8, 9, 5]), np.array([-1, -1, 0, 1, 0]), np.arange(5) == 3, share)
    assert styles(text) == [
        ("7", live.SINK),
        ("░░░", live.SINK),
        (" 8", "underline"),
        (" 9", live.FRESH_SINK),
    ]


def test_the_display_reads_the_sinks_of_the_last_step():
    screen = Terminal()
    display = screen.display(4)
    tokens, committed = np.array([[7, 8, 0, 0]]), np.array([[-1, -1, -1, -1]])
    record = np.zeros((2, 3, 1, 4), np.float32)  # steps, layers, rows, positions
    record[0, :, :, 1], record[1, :2, :, 0] = 1.0, 0.75
    display(2, tokens, committed, record={live.LIVE: record, "entropy": None})
    assert display._sinks is not None and display._sinks.tolist() == [0.5, 0, 0, 0]
    assert display.detail(0) == "1 sinks"
    display(3, tokens, committed, record={live.LIVE: np.zeros_like(record)})  # the row has ended
    assert display._sinks.tolist() == [0.5, 0, 0, 0]


def test_fresh_tokens_glow_for_a_moment():
    screen = Terminal()
    display = screen.display(4)
    display(1, np.array([[7, 8, 9, 0]]), np.array([[-1, -1, 0, -1]]))

    def glowing() -> bool:
        return any(span.style == live.FRESH for line in display.__rich__().renderables for span in line.spans)  # type: ignore

    assert glowing()
    screen.now = 0.3
    assert glowing()
    screen.now = 0.5
    assert not glowing()


def test_narrow_and_low_screens_follow_the_news():
    screen = Terminal(width=12, height=5)
    display = screen.display(40)
    tokens, committed = [7, 8, *range(100, 140)], [-1, -1, *[0] * 40]
    display(9, np.array([tokens]), np.array([committed]))
    for last in (-1, 2, 20, 19, 25):  # three ids a line, three lines
        display._first_seen = np.zeros(42)
        display._first_seen[last] = screen.now = screen.now + 10
        lines = screen.shown(display)
        assert max(map(len, lines)) <= 12 and len(lines) <= 5
        assert str(tokens[last]) in " ".join(lines[:3])
    assert "lines" in lines[3]


def test_many_masks_are_drawn_smaller_and_ascii_where_needed():
    screen = Terminal(width=20, height=4)
    text = screen.canvas.text(np.array([7, 8] + [0] * 30), np.full(32, -1), np.zeros(32, bool))
    assert text.plain == "░" * 30
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, force_terminal=True, width=60, height=12)
    text = live.Canvas(console, live.Pieces(None), 0, 0).text(np.array([0, 5]), np.array([-1, 0]), np.zeros(2, bool))
    assert text.plain == "... 5"


def test_pieces_of_characters_line_breaks_and_escape_codes(chatty):
    tokenizer = Tokenizer.load(chatty)
    pieces = live.Pieces(tokenizer)

    def read(text: str) -> list[str]:
        out, before = [], ()
        for token in tokenizer.encode(text):
            out.append(pieces.read(before, token)[0])
            before = (*before, token)[-live.CONTEXT :]
        return out

    assert read("aé") == ["a", "", "é"]
    assert read("😀é 字") == ["", "", "", "😀", "", "é", " ", "", "", "字"]
    assert read("a\n\tb") == ["a", "\n", "\t", "b"]
    assert read("\x1b[31m")[0] == "�"
    assert pieces.read((), tokenizer.special["eos"]) == ("·", live.SPECIAL)
    assert pieces.read((), tokenizer.size + 1) == (f"<{tokenizer.size + 1}>", live.SPECIAL)
    screen = Terminal(tokenizer=tokenizer, mask_id=0)
    tokens = tokenizer.encode("xya\nb[bold]c")
    text = screen.canvas.text(
        np.array(tokens), np.array([-1, -1] + [0] * (len(tokens) - 2)), np.zeros(len(tokens), bool)
    )
    assert [line.plain for line in screen.canvas.lines(text)[0]] == ["a", "b[bold]c"]


def test_the_display_keeps_its_pace_and_rests_when_told(monkeypatch):
    screen = Terminal()
    drawn, rests = [], []
    display = screen.display(100)
    monkeypatch.setattr(Task, "draw", lambda task: drawn.append(screen.now))
    monkeypatch.setattr(live.time, "sleep", rests.append)
    for step in range(1, 101):
        screen.now += 0.01
        display(step, np.arange(1, 103)[None], np.where(np.arange(102) < step + 2, np.arange(102) - 2, -1)[None])
    assert 14 <= len(drawn) <= 20 and drawn[-1] == screen.now and rests == []
    slow = screen.display(2, delay=0.2)
    slow(1, np.array([[5]]), np.array([[0]]))
    assert rests == [0.2]


@pytest.mark.slow
def test_a_terminal_gets_the_display_and_the_same_text(capsys, monkeypatch, chatty):
    plain = call_json(capsys, chatty, "Hi", "--no-chat", "--tokens", 8)
    monkeypatch.setattr(reporter, "is_watched", lambda console: True)
    monkeypatch.setattr(respond, "steps_per_frame", lambda model, positions, frame: 4)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with reporting():
        assert call(chatty, "Hi", "--no-chat", "--tokens", 8, "--delay", 0.2) == 0
    captured = capsys.readouterr()
    assert captured.out == live.printable(plain["text"]) + "\n"
    assert "4 of 8 steps" in captured.err and "░" in captured.err and "sinks" in captured.err
    assert re.search(r"8 tokens in 8 steps, [\d.]+ s \([\d.]+ tokens/s\), after [\d.]+ s of compiling", captured.err)
    assert call(chatty, "Hi", "--no-chat", "--tokens", 8, "--no-live") == 0
    assert capsys.readouterr().err == ""


def test_the_help_names_every_recorder(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main.main(["generate", "--help"])
    names = re.search(r"comma separated: (.*?) \(default", " ".join(capsys.readouterr().out.split()))
    assert names and names[1].split(", ") == list(NAMED)


def test_the_parser_needs_neither_jax_nor_rich():
    code = "import sys, jaxsink.cli.generate; sys.exit(bool({'jax', 'rich', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
