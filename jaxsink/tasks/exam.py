"""What a model is asked and how its answers are graded, in the one form that the engine knows.

    exam = benchmark_exam(get_setting("llada-8b-instruct/gsm8k/study"), examples, tokenizer, config, train)
    exam = task_exam(config, range(100))      # the word problems that come with the package

The engine sees token ids, a sampler and a function from text to score; it knows no benchmark by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

from jaxsink.checkpoints.formats import JsonObject
from jaxsink.errors import JaxsinkError, a_model
from jaxsink.evals.layout import BUCKET
from jaxsink.evals.likelihood.canvases import SHARES
from jaxsink.evals.likelihood.fill import FillMasks
from jaxsink.evals.likelihood.forced import ForcedSampler
from jaxsink.evals.settings import EvalSetting
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.autoregressive import ARSampler
from jaxsink.sampling.base import Sampler
from jaxsink.sandbox.levels import Level
from jaxsink.tasks.batches import answer_ids, prompt_ids
from jaxsink.tasks.benchmarks import FILES, Example
from jaxsink.tasks.extract import INVALID
from jaxsink.tasks.prompts import gold_text, prompt_texts
from jaxsink.tasks.score import Score, score
from jaxsink.tasks.task import Problem, extract
from jaxsink.tasks.windows import windows
from jaxsink.tasks.word_tasks import SUMS, WordTask, task_of
from jaxsink.text import chat
from jaxsink.text.tokenizer import Tokenizer
from jaxsink.zoo.builtin import BUILTIN
from jaxsink.zoo.recommend import recommended

TASK = "task"
"""The name of the built-in word problems, where a benchmark is named."""

TEXT = "text"
"""The name of plain text, where a benchmark is named."""

TASK_QUESTIONS = 1000
CANVASES = 4
CHAT_PROMPT = 128
"""Positions for a word problem in a chat template; longer prompts take a multiple of it."""


Chosen = Callable[[int], Sequence[int]]
"""Which of so many questions are asked."""


@dataclass(frozen=True)
class Question:
    """A question as token ids.

    index   its number in the whole benchmark, which also seeds it
    prompt  token ids
    grade   the score of a text
    gold    token ids of the published answer
    cluster what it really asks: questions of one cluster differ in words alone
    """

    index: int
    task_id: str
    prompt: tuple[int, ...]
    grade: Callable[[str], Score]
    gold: tuple[int, ...] = ()
    cluster: str = ""

    def __post_init__(self) -> None:
        if not self.cluster:
            object.__setattr__(self, "cluster", self.task_id)


@dataclass(frozen=True)
class Exam:
    """Questions and all that is needed to ask them.

    sampler   as the setting has it, without what recording needs
    facts     plain data for the manifest
    bucket    prompts are padded to a multiple of this
    reported  published score in per cent
    gold      nothing is asked: the published answers are given, and the result is how likely the model finds them
    canvases  of a diffusion model that fills in published answers: per answer and share of masked tokens
    diverges  the divergence from the unmasked model is measured beside the likelihood
    """

    name: str
    questions: tuple[Question, ...]
    sampler: Sampler
    tokenizer: Tokenizer
    facts: JsonObject
    bucket: int = BUCKET
    reported: float | None = None
    gold: bool = False
    canvases: int = CANVASES
    diverges: bool = True

    @property
    def denoises(self) -> bool:
        """Published answers are filled in, not written from left to right."""
        return self.gold and not self.sampler.is_autoregressive

    @property
    def digest(self) -> str:
        """A hash of all that is asked: which questions, and the token ids of their prompts (and answers, if given)."""
        asked = [[question.index, question.task_id, list(question.prompt)] for question in self.questions]
        if self.gold:
            asked = [[*one, list(question.gold)] for one, question in zip(asked, self.questions, strict=True)]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def gold_exam(exam: Exam, canvases: int = CANVASES, diverges: bool = True) -> Exam:
    """The same questions with the published answers given: how likely they are also tells weak models apart.

    An autoregressive model is given the answers, or made to write them. A diffusion model sees each of them on so many
    canvases per share of masked tokens (evals/likelihood/denoising.py). diverges: also measure the divergence from the
    unmasked model, which takes a pass more where answers are written.
    """
    without = next((question for question in exam.questions if not question.gold), None)
    if without is not None:
        raise JaxsinkError(f"{without.task_id} has no published answer whose likelihood could be told.")
    asked = {name: fact for name, fact in exam.facts.items() if name != "sandbox"}  # no program runs
    facts = {**asked, "gold": True, "figures": ["log_prob", *(["kl"] if diverges else [])]}
    given = replace(exam, facts=facts, reported=None, gold=True, diverges=diverges)
    if not exam.sampler.is_autoregressive:
        if canvases < 1:
            raise JaxsinkError(f"canvases: an answer needs at least one per share of masked tokens, not {canvases}.")
        facts.update(canvases=canvases, shares=list(SHARES))
        return replace(given, sampler=FillMasks(), canvases=canvases)
    longest = max(len(question.gold) for question in exam.questions)
    return replace(given, sampler=ForcedSampler(longest, diverges=diverges))


def text_exam(path: Path, window: int, tokenizer: Tokenizer, config: ModelConfig, chosen: Chosen) -> Exam:
    """Windows of a text (jaxsink.tasks.windows) in the place of questions: the first half is given, the second scored.

    chosen: which of so many windows.
    """
    found = windows(path, window, tokenizer)
    if config.positions == "learned" and len(found[0].context) + len(found[0].rest) > config.max_positions:
        raise JaxsinkError(f"--window {window} is longer than the {config.max_positions} positions of this model.")
    questions = [Question(n, f"{TEXT}/{n}", found[n].context, ungraded, found[n].rest) for n in chosen(len(found))]
    facts = {
        "setting": {"name": TEXT, "window": window},
        "benchmark": TEXT,
        "splits": [],
        "text_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    sampler = FillMasks() if config.is_diffusion else ARSampler()
    return Exam(TEXT, tuple(questions), sampler, tokenizer, facts)


def ungraded(text: str) -> Score:
    raise JaxsinkError("a window of text asks nothing, so no answer to it can be graded.")


def choose(total: int, limit: int | None = None, subset: int | None = None, subset_seed: int = 0) -> list[int]:
    """Numbers of the questions to ask, in order: all of them, the first `limit`, or `subset` drawn from all."""
    for name, count in (("limit", limit), ("subset", subset)):
        if count is not None and not 1 <= count <= total:
            raise JaxsinkError(f"{name}: there are {total} questions, so choose 1 to {total} of them, not {count}.")
    if limit is not None and subset is not None:
        raise JaxsinkError("give either a limit or a subset, not both.")
    return list(range(limit or total)) if subset is None else sorted(Random(subset_seed).sample(range(total), subset))


def benchmark_exam(
    setting: EvalSetting,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    config: ModelConfig,
    train: Sequence[Example] = (),
    allow_code_execution: bool = False,
    sandbox: Level = "namespaces",
) -> Exam:
    """A public benchmark as a setting asks it; `train` is the training split, for settings with shots. sandbox: the level
    at which answers run, if they are programs and may run."""
    if setting.template is not None:
        known = tokenizer.backend.token_to_id
        missing = [text for text in chat.get(setting.template).tokens if known(text) is None]
        if missing:
            raise JaxsinkError(
                f"the setting {setting.name} needs the token {missing[0]}, which the tokenizer in {tokenizer.source} does "
                f"not have; evaluate {setting.model} with it, or choose the setting of your model."
            )
    if setting.decoder != "autoregressive" and config.mask_id is None:
        raise JaxsinkError(
            f"the setting {setting.name} is for a diffusion model, and {a_model(config.family)} has no mask token; choose "
            "the setting of your model."
        )
    sampler = setting.sampler()
    sampler.check(config)
    texts = prompt_texts(setting, examples, train)
    prompts = tokenizer.encode_batch(texts, add_special_tokens=setting.template is None)
    golds = tokenizer.encode_batch([gold_text(setting, example) for example in examples], add_special_tokens=False)
    grade = partial(score, setting, allow_code_execution=allow_code_execution, sandbox=sandbox)
    questions = [
        Question(example.index, example.task_id, tuple(prompt), partial(grade, example), tuple(gold))
        for example, prompt, gold in zip(examples, prompts, golds, strict=True)
    ]
    splits = sorted({example.split for example in examples})
    hashes = {file.sha256 for file in FILES[setting.benchmark] if set(splits) & set(file.splits)}
    facts = {
        "setting": setting.to_dict(),
        "digest": setting.digest,
        "benchmark": setting.benchmark,
        "splits": splits,
        "published_sha256": sorted(hashes),
        **({"sandbox": sandbox} if setting.runs_programs and allow_code_execution else {}),
    }
    return Exam(setting.name, tuple(questions), sampler, tokenizer, facts, reported=setting.reported)


def task_exam(config: ModelConfig, numbers: Sequence[int], sampler: Sampler | None = None, seed: int = 0) -> Exam:
    """Word problems that the model knows, held-out split, for a built-in model or one trained like it, with its sampler.

    seed: of the series of problems.
    """
    task = task_of(config.vocab)
    kinds = [name for name, known in BUILTIN.items() if known.config.family == config.family]
    if not kinds or task is None:
        raise JaxsinkError(
            f"{a_model(config.family)} with {config.vocab} vocabulary rows does not know the words of the built-in task; "
            f"evaluate one of {', '.join(BUILTIN)} with it, or a model made by `jaxsink train`."
        )
    sampler = sampler or recommended(config, kinds)
    sampler.check(config)
    asked = take_problems(numbers, seed, task)
    questions = word_questions(numbers, asked, prompt_ids(asked, task), answer_ids(asked, task))
    return Exam(TASK, questions, sampler, task.tokenizer(), task_facts(sampler), bucket=task.prompt)


def chat_exam(tokenizer: Tokenizer, numbers: Sequence[int], sampler: Sampler, seed: int = 0) -> Exam:
    """The same problems for any model, through its chat template."""
    asked = take_problems(numbers, seed, SUMS)
    prompts = [
        tokenizer.chat(f"{problem.question} Think step by step, and end with #### and the number.") for problem in asked
    ]
    golds = [tokenizer.encode(problem.answer) for problem in asked]
    questions = word_questions(numbers, asked, prompts, golds)
    return Exam(TASK, questions, sampler, tokenizer, task_facts(sampler), bucket=CHAT_PROMPT)


def take_problems(numbers: Sequence[int], seed: int, task: WordTask) -> list[Problem]:
    series = task.problems("test", max(numbers) + 1, seed)
    return [series[number] for number in numbers]


def word_questions(
    numbers: Sequence[int], asked: Sequence[Problem], prompts: Sequence[list[int]], golds: Sequence[list[int]]
) -> tuple[Question, ...]:
    return tuple(
        Question(
            number, f"{TASK}/test/{number}", tuple(prompt), partial(grade_number, problem), tuple(gold), problem.cluster
        )
        for number, problem, prompt, gold in zip(numbers, asked, prompts, golds, strict=True)
    )


def grade_number(problem: Problem, text: str) -> Score:
    found = extract(text)
    return Score(problem.score(text), INVALID if found is None else str(found))


def task_facts(sampler: Sampler) -> JsonObject:
    return {"setting": {"name": TASK, "sampler": repr(sampler)}, "benchmark": TASK, "splits": ["test"]}
