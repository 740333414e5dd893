"""Beyond the paper: which first token is a sink, under the causal mask and under bidirectional attention?

One set of weights reads the same texts in both ways: as they are, with a special token before them, and with that token in
the middle. If a token is a sink because it is first, any token will do; if it is one because of what it is, it stays one
wherever it stands.

    jaxsink convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    python -m jaxsink_experiments.first_token ./smollm2 book.txt --first '<|im_start|>' --first '<|endoftext|>' --out results

Writes first-1.csv, a line for each attention and beginning, and first-2.csv, the tokens that receive most.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from jaxsink_experiments.beyond_modes import in_mode
from jaxsink_experiments.canvases import pass_over

import jaxsink
from jaxsink.errors import JaxsinkError
from jaxsink.evals.statistics import clustered_mean
from jaxsink.nn.config import AttentionKind
from jaxsink.runs.progress import stage
from jaxsink.study import Subject, subject
from jaxsink.tasks.windows import windows
from jaxsink.text.tokenizer import Tokenizer

MODES: tuple[AttentionKind, ...] = ("causal", "bidirectional")
ALPHA = 0.3  # of Gu et al.
MOST = 5  # tokens that a table shows
RECEIVED = jaxsink.record.received()


class Beginning(NamedTuple):
    """The texts of one variant: what was added to them, and where it stands."""

    name: str
    tokens: np.ndarray  # i32[B,S]
    added: int | None  # position of the special token


class Seen(NamedTuple):
    """What one way of reading makes of them; shares of the attention of a head are means over its queries."""

    share: np.ndarray  # f64[L,B,H,S]: of all attention
    alpha: np.ndarray  # f64[L,B,H,S]: of the attention of those queries that see the key


def texts(path: Path, tokenizer: Tokenizer, count: int, length: int, seed: int = 0) -> np.ndarray:
    """i32[B,S]: windows of the text, without anything before them."""
    found = windows(path, length, tokenizer)
    drawn = Random(seed).sample(found, min(count, len(found)))
    return np.array([(*one.context, *one.rest)[-length:] for one in drawn], np.int32)


def beginnings(plain: np.ndarray, tokenizer: Tokenizer, first: Sequence[str]) -> Iterator[Beginning]:
    """All of one length: a token that is added takes the place of the last."""
    yield Beginning("nothing", plain, None)
    length = plain.shape[1]
    for name in first:
        number = tokenizer.backend.token_to_id(name)
        if number is None:
            raise JaxsinkError(f"--first: the tokenizer has no token {name}.")
        for where, place in ((f"{name} first", 0), (f"{name} in the middle", length // 2)):
            yield Beginning(where, np.insert(plain, place, number, axis=1)[:, :length], place)


def look(one: Subject, tokens: np.ndarray, mode: AttentionKind) -> Seen:
    there, length = np.ones(tokens.shape, bool), tokens.shape[1]
    received = pass_over(in_mode(one, mode), tokens, there, record=RECEIVED).record.astype(np.float64)
    queries = length - np.arange(length) if mode == "causal" else np.full(length, length)
    return Seen(received / length, received / queries)


def figures(case: Beginning, seen: Seen) -> dict[str, np.ndarray]:
    """f64[B] each, mean over layers and heads."""
    top = seen.share.argmax(axis=-1)
    found = {
        "first": seen.alpha[..., 0],
        "heads above 0.3": seen.alpha[..., 0] > ALPHA,
        "first is the strongest": top == 0,
        "strongest": seen.share.max(axis=-1),
    }
    if case.added:
        found["the added token"] = seen.alpha[..., case.added]
        found["the added token is the strongest"] = top == case.added
    return {name: values.mean(axis=(0, 2)) for name, values in found.items()}


def line(case: Beginning, mode: AttentionKind, seen: Seen) -> dict[str, Any]:
    """Means over texts, with 95 % intervals."""
    found: dict[str, Any] = {"attention": mode, "added": case.name}
    found |= {"texts": case.tokens.shape[0], "tokens": case.tokens.shape[1]}
    for name, values in figures(case, seen).items():
        mean = clustered_mean(values)
        low, high = mean.interval()
        found |= {name: mean.value, f"{name}: low": low, f"{name}: high": high}
    return found


def receivers(case: Beginning, mode: AttentionKind, seen: Seen, tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """The tokens that receive most of all attention; a token that begins the text counts apart from the same one later."""
    share = seen.share.mean(axis=(0, 2))  # [B,S]
    strongest = (seen.share.argmax(axis=-1)[..., None] == np.arange(share.shape[1])).mean(axis=(0, 2))
    attention, often, top = Counter[tuple[int, bool]](), Counter[tuple[int, bool]](), Counter[tuple[int, bool]]()
    for row, numbers in enumerate(case.tokens):
        for position, number in enumerate(numbers):
            key = (-1, True) if position == 0 and case.added != 0 else (int(number), position == 0)
            attention[key] += share[row, position] / len(share)
            top[key] += strongest[row, position] / len(share)
            often[key] += 1 / case.tokens.size
    for (number, is_first), amount in attention.most_common(MOST):
        name = "the first of the text" if number < 0 else tokenizer.backend.id_to_token(number)
        shares = {"attention": amount, "keys": often[number, is_first], "strongest": top[number, is_first]}
        yield {"attention": mode, "added": case.name, "token": name, "first": is_first} | {
            f"share of {what}": float(value) for what, value in shares.items()
        }


def write(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for one in lines for name in one))
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, columns, lineterminator="\n")
        out.writeheader()
        rounded = ({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in one.items()} for one in lines)
        out.writerows(rounded)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="built-in name, hub id or checkpoint")
    parser.add_argument("text", type=Path, help="a text file, or JSON lines with a text each")
    parser.add_argument(
        "--first", action="append", default=[], metavar="TOKEN", help="a special token; may be repeated"
    )
    parser.add_argument("--texts", type=int, default=500, metavar="N", help="windows of the text (default: 500)")
    parser.add_argument("--length", type=int, default=64, metavar="N", help="tokens of each (default: 64)")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="where the CSV files go")
    args = parser.parse_args(arguments)
    try:
        return read_all(args)
    except JaxsinkError as error:
        parser.error(str(error))


def read_all(args: argparse.Namespace) -> int:
    one = subject(args.model)
    plain = texts(args.text, one.tokenizer, args.texts, args.length)
    args.out.mkdir(parents=True, exist_ok=True)
    lines, tokens = [], []
    for case in beginnings(plain, one.tokenizer, args.first):
        for mode in MODES:
            with stage("reading", detail=f"{mode}, {case.name}"):
                seen = look(one, case.tokens, mode)
            lines.append(line(case, mode, seen))
            tokens += receivers(case, mode, seen, one.tokenizer)
            write(args.out / "first-1.csv", lines)
            write(args.out / "first-2.csv", tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main())
