"""The text a model is given for a question: shots, instruction and chat template of a setting put together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from jaxsink.errors import JaxsinkError
from jaxsink.evals.settings import EvalSetting, Shots
from jaxsink.tasks.benchmarks import Example
from jaxsink.tasks.extract import Wording
from jaxsink.text import chat

_CALCULATOR_NOTE = re.compile(r"<<.*?>>")
_LAST_LINE = re.compile(r"####\s*(.*?)\s*$")
_SENTENCE: dict[Wording, str] = {"the answer is": "The answer is", "the final answer is": "The final answer is"}


def prompt_texts(setting: EvalSetting, examples: Sequence[Example], train: Sequence[Example] = ()) -> list[str]:
    """One prompt per question, in their order; a prompt does not depend on which other questions are asked.

    train: the training split of the same benchmark, whole and in order, for settings with shots.
    """
    wrong = [example.task_id for example in examples if example.benchmark != setting.benchmark]
    if wrong:
        raise JaxsinkError(
            f"the setting {setting.name} is for {setting.benchmark}, and {wrong[0]} is of another benchmark."
        )
    shots = shot_indices(setting.shots, len(train), max((example.index for example in examples), default=-1) + 1)
    return [_text(setting, example, [train[number] for number in shots[example.index]]) for example in examples]


def shot_indices(shots: Shots, train: int, questions: int) -> list[tuple[int, ...]]:
    """Which of `train` training questions stand before each of the first `questions` questions.

    Drawn shots follow lm-eval: one generator, one draw per question from the first on. So those of question 7 are the
    same whether or not the six before it are asked.
    """
    needed = max((*shots.indices, shots.drawn - 1), default=-1) + 1
    if train < needed:
        raise JaxsinkError(
            f"the setting needs {needed:,} training questions for its shots, and {train:,} are given; load the whole "
            'training split (load_benchmark(..., split="train")).'
        )
    random = Random(shots.seed)
    return [(*shots.indices, *random.sample(range(train), shots.drawn)) for _ in range(questions)]


def shot_answer(answer: str, wording: Wording) -> str:
    """A published GSM8K answer as the setting words it."""
    if wording == "####":
        return answer
    return _LAST_LINE.sub(rf"{_SENTENCE[wording]} \1", _CALCULATOR_NOTE.sub("", answer))


def gold_text(setting: EvalSetting, example: Example) -> str:
    """The published answer, worded as the setting expects it, from where the prompt ends."""
    answer = shot_answer(example.answer, setting.wording) if example.benchmark == "gsm8k" else example.answer
    if setting.template is None:
        return answer if setting.opening else f" {answer}"
    return _opening(setting, example)[1] + answer


def _opening(setting: EvalSetting, example: Example) -> tuple[str, str]:
    """The start of the answer that is given, and the white space at its end that a template takes away."""
    opening = setting.opening.replace("{question}", example.question)
    if setting.template is None or "assistant" not in chat.get(setting.template).strip:
        return opening, ""
    return opening.strip(), opening[len(opening.rstrip()) :]


def _text(setting: EvalSetting, example: Example, shots: Sequence[Example]) -> str:
    asked = [setting.question.replace("{question}", item.question) for item in (*shots, example)]
    given = [shot_answer(shot.answer, setting.shots.wording) for shot in shots]
    opening, _ = _opening(setting, example)
    if not setting.shots.turns:
        solved = "".join(f"{question} {answer}\n\n" for question, answer in zip(asked, given, strict=False))
        asked, given = [solved + asked[-1]], []
    asked[0] = setting.preface + asked[0]
    if setting.template is None:
        if given:
            raise JaxsinkError(f"the setting {setting.name} has shots as turns, and no chat template to write them in.")
        return asked[0] + opening
    messages = [{"role": "user", "content": asked[0]}]
    for answer, question in zip(given, asked[1:], strict=True):
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": question}]
    return chat.render(messages, setting.template) + opening
