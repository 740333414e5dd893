"""Does a model write the same on a mesh, in another batch, with other padding or another backend as on one device?

    python benchmarks/agreement.py --json benchmarks/results/agreement.json
    python benchmarks/agreement.py --only mini --rows 16            the built-in models alone
    python benchmarks/agreement.py --smollm2 SmolLM2-135M.gguf      a published model too
    python benchmarks/agreement.py --only 8B --ways "mesh 4x2"      one way of running; figures of others stay in the file

Every sequence is written once in one batch on one device, and again in each of these ways, as float32 and as bfloat16.
Counted are the sequences that come out the same, tokens and steps, and for the others the step at which they part. On
eight CPU devices; "8B-shaped" is LLaDA-8B's width, heads and MLP with random weights, fewer layers and a smaller
vocabulary (weights in bfloat16 only: as float32 they would not fit eight times). Its candidates are nearly as likely
as each other, so that rounding decides sooner than in most trained models.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from machine import describe

import jaxsink
from jaxsink.nn.transformer import Model
from jaxsink.parallel import make_mesh, shard
from jaxsink.sampling.generation import Generation
from jaxsink.sinks import MaskSinks
from jaxsink.tasks.exam import task_exam
from jaxsink.tasks.task import problems

BUILT_IN = ("mini-llada", "mini-dream", "mini-llama")
LAYERS, VOCAB, ROWS, PROMPT, RESPONSE = 2, 16384, 4, 8, 16
Prompts = list[list[int]]
Sequence = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One model in one type, what it is asked, and how it writes."""

    name: str
    model: Model
    prompts: Prompts
    sampler: jaxsink.Sampler
    hides: MaskSinks | None = None

    def run(self, prompts: Prompts, model: Model | None = None, **options: Any) -> Generation:
        return jaxsink.generate(model or self.model, prompts, self.sampler, intervene=self.hides, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="sequences of the built-in models (default 64)")
    parser.add_argument("--only", metavar="WORD", default="", help="cases whose name holds this word")
    parser.add_argument("--ways", metavar="WORD", default="", help="ways of running whose name holds this word")
    parser.add_argument("--smollm2", metavar="FILE", help="SmolLM2-135M as GGUF or as a checkpoint")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, beside those of other cases")
    parser.add_argument(
        "--table", metavar="FILE", help="run nothing: print a file's figures as docs/numerics.md has them"
    )
    args = parser.parse_args()
    if args.table:
        print(table(json.loads(Path(args.table).read_text(encoding="utf-8"))["cases"]))
        return 0
    jax.config.update("jax_num_cpu_devices", 8)
    stored = Path(args.json) if args.json else None
    figures = json.loads(stored.read_text())["cases"] if stored and stored.exists() else {}
    for case in cases(args.rows, args.only, args.smollm2):
        figures[case.name] = figures.get(case.name, {}) | compare(case, args.ways)
        print(json.dumps({case.name: figures[case.name]}), flush=True)
        if stored:
            stored.write_text(json.dumps({"machine": describe(), "cases": figures}, indent=1) + "\n")
    return 0


def table(figures: dict[str, Any]) -> str:
    """How many sequences are the same and, where some part, the first and the median step at which they do."""

    def cell(found: dict[str, Any] | None) -> str:
        if found is None:
            return "–"
        same = f"{found['same']} of {found['sequences']}"
        if found["first parting"] is None:
            return same
        return f"{same} ({found['first parting']}, {found['median parting']:g})"

    names = dict.fromkeys(name for of_case in figures.values() for name in of_case)
    rows = [[case, *(cell(of_case.get(name)) for name in names)] for case, of_case in figures.items()]
    lines = [["the same as one batch on one device", *names], ["---"] * (len(names) + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cases(rows: int, only: str, smollm2: str | None) -> Iterator[Case]:
    """Made one after the other, since the large ones fill the memory."""
    for name in BUILT_IN:
        for dtype in ("float32", "bfloat16"):
            if only in f"{name}, {dtype}":
                model = jaxsink.load(name, dtype)
                sampler = jaxsink.sampler_for(model)
                ids = [list(question.prompt) for question in task_exam(model.config, range(rows), sampler, 3).questions]
                yield Case(f"{name}, {dtype}", model, ids, sampler)
                yield Case(f"{name}, {dtype}, MaskSinks(1)", model, ids, sampler, MaskSinks(1))
    for dtype in ("float32", "bfloat16") if smollm2 else ():
        if only in f"smollm2-135m, {dtype}":
            model = jaxsink.load(smollm2 or "", dtype)
            ids = [model.tokenizer.encode(problem.question) for problem in problems("test", 16, seed=3)]
            yield Case(f"smollm2-135m, {dtype}", model, ids, jaxsink.ARSampler(32, stop_at_eos=False))
    if only in (name := "8B-shaped, random, bfloat16"):
        config = jaxsink.PRESETS["llada-8b-instruct"].replace(
            layers=LAYERS,
            vocab=VOCAB,
            mask_id=VOCAB - 1,
            eos_ids=(VOCAB - 2,),
            pad_id=VOCAB - 2,
            eot_id=None,
            bos_id=None,
        )
        ids = np.random.default_rng(0).integers(0, VOCAB - 2, (ROWS, PROMPT)).tolist()
        yield Case(
            name, jaxsink.init(config, dtype="bfloat16"), ids, jaxsink.LLaDASampler(RESPONSE, RESPONSE, RESPONSE)
        )


def compare(case: Case, chosen: str) -> dict[str, Any]:
    """By way of running: how many sequences are the same, and where the others part."""
    expected = responses(case.run(case.prompts))
    found: dict[str, Any] = {}
    for name, again in ways(case):
        if chosen not in name:
            continue
        parted = [parting(one, other) for one, other in zip(expected, again(), strict=True)]
        steps = [step for step in parted if step is not None]
        found[name] = {
            "sequences": len(parted),
            "same": len(parted) - len(steps),
            "steps": int(max(np.max(when) for _, when in expected)) + 1,
            "first parting": min(steps, default=None),
            "median parting": statistics.median(steps) if steps else None,
        }
    return found


def ways(case: Case) -> Iterator[tuple[str, Callable[[], list[Sequence]]]]:
    def together(**options: Any) -> list[Sequence]:
        return responses(case.run(case.prompts, **options))

    def on_mesh(data: int, model: int) -> list[Sequence]:
        return together(model=shard(case.model, make_mesh(data, model)))

    longest = max(map(len, case.prompts))
    yield "alone", lambda: [responses(case.run([prompt]))[0] for prompt in case.prompts]
    yield "padded", lambda: together(pad_to=longest + 7)
    yield "blocked", lambda: together(backend="blocked")
    yield "mesh 8x1", lambda: on_mesh(8, 1)
    yield "mesh 4x2", lambda: on_mesh(4, 2)
    yield "mesh 1x8", lambda: on_mesh(1, 8)


def responses(out: Generation) -> list[Sequence]:
    """(tokens, when each was committed) of each response."""
    parts = (np.asarray(found)[:, out.prompt_length :] for found in (out.tokens, out.committed_at))
    return list(zip(*parts, strict=True))


def parting(one: Sequence, other: Sequence) -> int | None:
    """The first step that writes something else, or somewhere else."""
    (tokens, when), (tokens_2, when_2) = one, other
    size = min(len(tokens), len(tokens_2))
    differs = (tokens[:size] != tokens_2[:size]) | (when[:size] != when_2[:size])
    if not differs.any():
        return None if len(tokens) == len(tokens_2) else size
    steps = np.concatenate([when[:size][differs], when_2[:size][differs]])
    return int(steps[steps >= 0].min(initial=np.iinfo(np.int32).max))


if __name__ == "__main__":
    sys.exit(main())
