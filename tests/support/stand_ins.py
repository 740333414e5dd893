"""What the printed examples find in their directory: tiny random models under the names of large ones, and made-up data.

Each is made on first use and kept for the session; `provide` copies into a fresh directory what a page mentions and does not
make itself.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import tokenizers

from jaxsink.cli.main import main
from support.checkpoints import config_of, random_model, tensors_of, write
from support.paths import ROOT

LETTERS = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
HEADERS = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
TURNS = ["<|im_start|>", "<|im_end|>"]
# Special tokens stand first: pad 0, bos 1, eos 2, mask 3.
SPECIALS = {
    "llada": ["<pad>", "<|startoftext|>", "<|endoftext|>", "<|mdm_mask|>", *HEADERS],
    "dream": ["<pad>", "<|beginoftext|>", "<|endoftext|>", "<|mask|>", *TURNS],
    "llama": ["<pad>", "<|begin_of_text|>", "<|end_of_text|>", "<unused>", *HEADERS],
    "smollm2": ["<pad>", "<|endoftext|>", "<|im_end|>", "<|im_start|>"],
}
GSM8K = [
    {"question": f"Ann has {n} pens and buys 2. How many?", "answer": f"{n} + 2 = {n + 2}\n#### {n + 2}"}
    for n in range(8)
]
PLAY = "".join(f"Ann has {n} pens and Tom {n * 7 % 11}; who has more, and how many?\n" for n in range(400))
HUMANEVAL = [
    {
        "task_id": f"HumanEval/{n}",
        "prompt": f'def add{n}(x):\n    """Add {n} to x."""\n',
        "entry_point": f"add{n}",
        "canonical_solution": f"    return x + {n}\n",
        "test": f"def check(f):\n    assert f(1) == {n + 1}\n",
    }
    for n in range(3)
]


def hugging_face(folder: Path, family: str) -> None:
    """A Hugging Face directory with a tokenizer of single bytes."""
    names = [*SPECIALS[family], *LETTERS]
    ids = {"eos_token_id": 2, "pad_token_id": 0, "vocab_size": len(names)}
    if family == "llada":
        ids |= {"embedding_size": len(names), "max_sequence_length": 4096}
    else:
        ids |= {"bos_token_id": 1, "max_position_embeddings": 4096}
    if family != "llama":
        ids |= {"mask_token_id": 3}
    config = config_of(family, **ids)
    write(folder, config, tensors_of(random_model(config)))
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={name: n for n, name in enumerate(names)}, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(SPECIALS[family])
    backend.save(str(folder / "tokenizer.json"))
    declared = {"eos_token": names[2], "pad_token": names[0]} | ({} if family == "llama" else {"mask_token": names[3]})
    (folder / "tokenizer_config.json").write_text(json.dumps(declared))


def gguf_file(path: Path) -> None:
    """A Llama in float32, with the tokenizer inside, as SmolLM2's files have it."""
    names = [*SPECIALS["smollm2"], *LETTERS, "he"]
    config = config_of("llama", vocab_size=len(names), tie_word_embeddings=True, hidden_size=32)
    tensors = tensors_of(random_model(config))
    out = gguf.GGUFWriter(path, "llama")
    numbers = {
        "block_count": 2,
        "context_length": 4096,
        "embedding_length": 32,
        "feed_forward_length": 36,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "rope.dimension_count": 8,
        "vocab_size": len(names),
    }
    for key, number in numbers.items():
        out.add_uint32(f"llama.{key}", number)
    out.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    out.add_float32("llama.rope.freq_base", 500.0)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("smollm")
    out.add_token_list(names)
    out.add_token_types([3] * 4 + [1] * (len(names) - 4))
    out.add_token_merges(["h e"])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    parts = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, value in tensors.items():
        native = parts.get_name(name, try_suffixes=(".weight",))
        assert native is not None
        if "q_proj" in name or "k_proj" in name:  # rotary pairs lie side by side in GGUF files
            heads = 4 if "q_proj" in name else 2
            value = value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        out.add_tensor(native, np.ascontiguousarray(value))
    for write_part in (out.write_header_to_file, out.write_kv_data_to_file, out.write_tensors_to_file, out.close):
        write_part()


def lines(path: Path, rows: list[dict[str, str]]) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def lm_eval_tasks(folder: Path, questions: Path) -> None:
    """GSM8K and ARC as lm-eval has them, with questions from here. JSON is YAML."""
    import lm_eval.tasks

    gsm8k = {
        "include": f"{lm_eval.tasks.__path__[0]}/gsm8k/gsm8k.yaml",
        "task": "gsm8k",
        "tag": [],
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"train": str(questions), "test": str(questions)}},
    }
    arc = {
        "task": "arc_challenge",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(questions)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}} More than 4?",
        "doc_to_choice": ["yes", "no"],
        "doc_to_target": 0,
    }
    folder.mkdir()
    for task in (gsm8k, arc):
        (folder / f"{task['task']}.yaml").write_text(json.dumps(task), encoding="utf-8")


class StandIns:
    """`folder` keeps what was made so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            MAKERS[name](self, path)
        return path

    def provide(self, folder: Path, text: str) -> None:
        """Copies of all that `text` names and that no `--out` or conversion in it makes."""
        for name in MAKERS:
            named = re.search(rf"(?<![\w/.-])(?<!jaxsink ){re.escape(name)}(?![\w.-])", text.replace("./", ""))
            made = re.search(rf"(--out|--record|convert \S+) (\./)?{re.escape(name)}(?![\w.-])", text)
            if named and not made:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if self[name].is_dir() else shutil.copy
                copy(self[name], folder / name)


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


Maker = Callable[[StandIns, Path], object]


def converted(source: str) -> Maker:
    return lambda made, path: run("convert", made[source], path)


def evaluated(model: str, setting: str) -> Maker:
    return lambda made, path: run("evaluate", made[model], setting, "--out", path, "--limit", 1)


def trained(path: Path) -> None:
    run("train", "mini-llada", "--out", path, "--steps", 2, "--batch", 8, "--problems", 8, "--checkpoints", 1)


def recorded(model: str) -> Maker:
    return lambda made, path: run("generate", model, "Tom has 3 flowers.", "--record", path)


MAKERS: dict[str, Maker] = {
    "examples": lambda made, path: shutil.copytree(ROOT / "examples", path),
    "LLaDA-8B-Instruct": lambda made, path: hugging_face(path, "llada"),
    "LLaDA-8B-Base": lambda made, path: hugging_face(path, "llada"),
    "Dream-v0-Instruct-7B": lambda made, path: hugging_face(path, "dream"),
    "Llama-3.1-8B-Instruct": lambda made, path: hugging_face(path, "llama"),
    "SmolLM2-135M-Instruct.Q4_1.gguf": lambda made, path: gguf_file(path),
    "SmolLM2-135M-Instruct.F16.gguf": lambda made, path: gguf_file(path),
    "model.Q4_1.gguf": lambda made, path: gguf_file(path),
    "llada": converted("LLaDA-8B-Instruct"),
    "llama": converted("Llama-3.1-8B-Instruct"),
    "input.txt": lambda made, path: path.write_text(PLAY, encoding="utf-8"),
    "train.jsonl": lambda made, path: lines(path, 40 * GSM8K),
    "dream": converted("Dream-v0-Instruct-7B"),
    "smollm2": converted("model.Q4_1.gguf"),
    "tiny": converted("LLaDA-8B-Instruct"),
    "my-checkpoint": converted("LLaDA-8B-Instruct"),
    "gsm8k_test.jsonl": lambda made, path: lines(path, GSM8K),
    "gsm8k_train.jsonl": lambda made, path: lines(path, GSM8K),
    "HumanEval.jsonl.gz": lambda made, path: lines(path, HUMANEVAL),
    "book.txt": lambda made, path: path.write_text("Tom has 3 flowers. He buys 4 more. " * 20, encoding="utf-8"),
    "question.txt": lambda made, path: lines(path, [{"question": "Why is the sky blue?"}]),
    "tasks": lambda made, path: lm_eval_tasks(path, made["gsm8k_test.jsonl"]),
    "study": lambda made, path: run("study", "fig1", "--problems", 2, "--generations", 2, "--out", path),
    "run.npz": recorded("mini-llada"),
    "other.npz": recorded("mini-dream"),
    "trained": lambda made, path: trained(path / "mini-llada"),
    "runs/llada-gsm8k": evaluated("llada", "llada-8b-instruct/gsm8k/study"),
    "runs/dream-gsm8k": evaluated("dream", "dream-7b-instruct/gsm8k/study"),
}
