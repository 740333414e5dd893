"""The examples that jaxsink prints: code blocks of every page, those of every `--help`, and the commands with which the
scripts of examples/ say that they are started.

A page is executed from top to bottom in one fresh directory, as a reader would. What is shortened, replaced by a stand-in or
left out is declared here, with the reason; everything else runs as printed.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jaxsink.cli.main import build_parser
from support.paths import ROOT

FOLDERS = ("benchmarks", "converters", "docs", "examples", "experiments", "jaxsink", "notebooks", ".github")
MARKDOWN = ("*.md", *(f"{folder}/**/*.md" for folder in FOLDERS))  # all that there is, but for the tests' own
SHELL, PYTHON, NOT_RUN = ("bash", "sh"), ("python",), ("text", "yaml", "json", "bibtex")
PROGRAM = "py"  # a program of its own, in several processes: tests/docs/test_hosts_page.py

# (pattern, replacement, why): the same command with less to do, or with something that is here.
SUBSTITUTIONS = (
    (r"^(jaxsink train .*--lens).*", r"\1 --steps 2 --batch 8", "two steps of a lens"),
    (
        r"^jaxsink train (?!.*--lens)(.*)",
        r"jaxsink train \1 --steps 2 --batch 8 --problems 8 --checkpoints 1",
        "two training steps",
    ),
    (r"--(?:steps|batch) \d+ (.*--steps 2 --batch 8 )", r"\1", "two training steps"),
    (r"--(?:steps|batch) \d+ (.*--steps 2 --batch 8 )", r"\1", "two training steps"),
    (r"^(jaxsink train (?=.*--data)(?!.*--length)(?!.*--data stories).*)", r"\1 --length 64", "short sequences"),
    (r"fig7 table1", "fig7", "one experiment"),
    (r"--runs runs", "--runs trained", "a training run of two steps"),
    (r"^jaxsink study($| --full| --model)", r"jaxsink study fig1\1", "one experiment"),
    (r"^jaxsink study waiting [a-z ]*", "jaxsink study paths ", "one experiment"),
    (
        r"^jaxsink study next [a-z ]*--out",
        "jaxsink study agreement --model mini-dream --untrained 0 --out",
        "one model",
    ),
    (r"^jaxsink study next [a-z ]*--model", "jaxsink study agreement --untrained 0 --model", "one experiment"),
    (r"^jaxsink study holds [a-z ]*", "jaxsink study holds ", "one experiment"),
    (r"^(jaxsink study .*)", r"\1 --generations 2 --problems 2", "few problems"),
    (r"--tokens \d+", "--tokens 8", "short answers"),
    (r"--answers \d+", "--answers 0", "losses alone"),
    (r"^jaxsink study protocol --problems", "jaxsink study protocol --model mini-dream --problems", "one model"),
    (r"^jaxsink study modes", "jaxsink study modes --model mini-dream --untrained 0", "one model"),
    (r"--untrained 4", "--untrained 0", "no models without training"),
    (r"--longest \d+", "--longest 1000", "a tokenizer of letters"),
    (r"--limit 200", "--limit 2", "few questions"),
    (r"--subset \d+", "--subset 2", "few questions"),
    (r"^(jaxsink evaluate (?!.*(--limit|--subset|--summary)).*)", r"\1 --limit 1", "few questions"),
    (r"^(jaxsink plan .*--tpu \S+) v6e:2x4", r"\1", "one slice"),
    (r"^(jaxsink plan (?!.*(--rows|--batch)).*)", r"\1 --rows 8 --mesh 8x1", "a mesh that is decided"),
    (r"^(jaxsink plan (?!.*--mesh).*:2x4.*)", r"\1 --mesh 8x1", "a mesh that is decided"),
    (r"^(jaxsink plan (?!.*--no-search).*)", r"\1 --no-search", "one compilation instead of a search"),
    (r"^(jaxsink lm-eval --model .*)", r"\1 --limit 2", "few questions"),
    (r"\b(gen_length|steps)=256", r"\1=32", "short answers"),
    (r"\| jq \.text", "| python3 -m json.tool", "jq need not be installed"),
    (r"^(python examples/attention_maps.py \S+) 16", r"\1 1", "a model of two layers"),
    (r"^(python examples/gsm8k_settings.py \S+ \S+) 200", r"\1 1", "few questions"),
    (r"^(python examples/eight_devices.py) MODEL", r"\1 mini-dream", "a model"),
    (r"gs://my-bucket/jaxsink/models/", "bucket/", "a folder instead of a bucket"),
)
# (pattern, why): what cannot run on the machine of a test.
LEFT_OUT = (
    (r"^(\.venv/bin/)?pip install|^python3 -m venv|^git clone", "installing: .ci/run does it, in a new environment"),
    (r"^(bash \.ci/run|\.venv/bin/)", "the checks themselves: .ci/run"),
    (r"\bgcloud\b|docs/tpu/tpu\.sh|^for model in|^done$|^wait$|^export ", "Google Cloud: tests/docs/test_tpu_*.py"),
)


@dataclass(frozen=True)
class Example:
    page: str
    kind: str  # "shell": one command; "python": one block
    text: str
    printed: str

    @property
    def left_out(self) -> str | None:
        """Why it is not executed, if so."""
        if self.kind == "python":
            return None
        return next((why for pattern, why in LEFT_OUT if re.search(pattern, self.text)), None)


def substituted(command: str) -> str:
    for pattern, replacement, _ in SUBSTITUTIONS:
        command = re.sub(pattern, replacement, command)
    return command


def commands(text: str) -> Iterator[str]:
    """One command per line, without comments; a backslash joins lines."""
    for line in text.replace("\\\n", " ").splitlines():
        command = re.sub(r"(^|\s+)#.*", "", line).strip()
        if command:
            yield " ".join(command.split(" "))


def shell_examples(page: str, text: str) -> Iterator[Example]:
    for command in commands(text):
        yield Example(page, "shell", substituted(command), command)


def page_examples(path: Path) -> Iterator[Example]:
    page = str(path.relative_to(ROOT))
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", path.read_text(encoding="utf-8"), re.DOTALL | re.M):
        if language in SHELL:
            yield from shell_examples(page, text)
        elif language in PYTHON:
            yield Example(page, "python", text, text)
        elif language not in (*NOT_RUN, PROGRAM):
            raise ValueError(f"{page}: a code block in {language!r}; say what it is, so that it can be executed.")


def script_examples(path: Path) -> Iterator[Example]:
    """What the first lines of a script say; without arguments tests/docs/test_scripts.py runs it."""
    page = str(path.relative_to(ROOT))
    text = path.read_text(encoding="utf-8").split('"""')[1]
    for line in re.findall(rf"^ *(python {re.escape(page)} .*)$", text, re.MULTILINE):
        yield from (example for example in shell_examples(page, line) if example.text != f"python {page}")


def help_examples(name: str, parser: argparse.ArgumentParser) -> Iterator[Example]:
    """Two spaces before an example, two or more between a command and what it is for."""
    epilog = (parser.epilog or "").replace("\\\n", " ")
    for line in epilog.partition("examples:")[2].splitlines():
        if line.startswith("  jaxsink "):
            command = re.split(r" {2,}", re.sub(r" +--", " --", line.strip()))[0]
            yield from shell_examples(f"jaxsink {name} --help", command)


def subcommands() -> dict[str, argparse.ArgumentParser]:
    (action,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def all_pages() -> dict[str, list[Example]]:
    """{page: its examples}, pages without any left out."""
    paths = sorted(path for pattern in MARKDOWN for path in ROOT.glob(pattern))
    found = {str(path.relative_to(ROOT)): list(page_examples(path)) for path in paths}
    scripts = sorted((ROOT / "examples").glob("*.py"))
    found |= {str(path.relative_to(ROOT)): list(script_examples(path)) for path in scripts}
    found |= {f"jaxsink {name} --help": list(help_examples(name, parser)) for name, parser in subcommands().items()}
    return {page: examples for page, examples in found.items() if examples}
