"""Settings as data: the published numbers, names, hashes and manifests; and the prompts they make."""

from __future__ import annotations

import dataclasses
import json
from random import Random

import pytest

from jaxsink import (
    ARSampler,
    BD3LMSampler,
    DreamSampler,
    FastDLLMv2Sampler,
    LLaDA2Sampler,
    LLaDASampler,
    MDLMSampler,
    NemotronSampler,
    SDARSampler,
    SpeculativeSampler,
)
from jaxsink.errors import JaxsinkError
from jaxsink.evals.settings import SETTINGS, EvalSetting, Shots, get_setting
from jaxsink.tasks.benchmarks import Example
from jaxsink.tasks.prompts import prompt_texts, shot_answer, shot_indices
from jaxsink.tasks.score import score
from jaxsink.text import chat

ANSWER = "She has 3 + 4 = <<3+4=7>>7 eggs.\n#### 7"
QUESTION = Example("gsm8k", "test", 2, "gsm8k/test/2", "How many {eggs}?", ANSWER)
TRAIN = [Example("gsm8k", "train", n, f"gsm8k/train/{n}", f"Question {n}?", ANSWER) for n in range(7400)]
FUNCTION = Example(
    "humaneval",
    "test",
    0,
    "HumanEval/0",
    "def add(a, b):\n    '''Sum.'''\n",
    "    return a + b\n",
    "def add(a, b):\n    '''Sum.'''\n",
    "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    "add",
)
SAMPLERS = {
    "llada-8b-instruct/gsm8k/study": LLaDASampler(256, 256, 32),
    "llada-8b-instruct/gsm8k/block-8": LLaDASampler(256, 256, 8),
    "llada-8b-instruct/gsm8k/one-block": LLaDASampler(512, 512, 512, confidence_eos_eot_inf=True),
    "llada-8b-instruct/humaneval/study": LLaDASampler(512, 512, 32),
    "llada-8b-instruct/humaneval/one-block": LLaDASampler(512, 512, 512, logits_eos_inf=True),
    "dream-7b-instruct/gsm8k/study": DreamSampler(256, 256, "entropy", temperature=0.1, top_p=0.9),
    "dream-7b-instruct/humaneval/study": DreamSampler(768, 768, "entropy", temperature=0.1, top_p=0.9),
    "mmada-8b-mixcot/gsm8k/study": LLaDASampler(256, 256, 64, text_only=True),
    "mmada-8b-mixcot/humaneval/study": LLaDASampler(512, 512, 64, text_only=True),
    "llama-3.1-8b-instruct/gsm8k/study": ARSampler(1024),
    "llama-3.1-8b-instruct/humaneval/study": ARSampler(1024),
    "smollm2-135m-instruct/gsm8k/small": ARSampler(256),
    "smollm2-135m-instruct/humaneval/small": ARSampler(256),
    "nemotron-labs-diffusion-8b/gsm8k/published": NemotronSampler(512, 8, 0.9),
    "nemotron-labs-diffusion-8b/gsm8k/speculation": SpeculativeSampler(512, 32),
    "qwen3-0.6b-diffusion-mdlm/gsm8k/published": MDLMSampler(256, 256, 256),
    "qwen3-0.6b-diffusion-mdlm/humaneval/published": MDLMSampler(256, 256, 256),
    "qwen3-0.6b-diffusion-bd3lm/gsm8k/published": BD3LMSampler(256, 256, 32),
    "qwen3-0.6b-diffusion-bd3lm/humaneval/published": BD3LMSampler(256, 256, 32),
    "fast-dllm-v2-7b/gsm8k/published": FastDLLMv2Sampler(2048, 32, 32, threshold=1.0),
    "fast-dllm-v2-7b/gsm8k/parallel": FastDLLMv2Sampler(2048, 32, 32, threshold=0.9),
    "fast-dllm-v2-1.5b/gsm8k/published": FastDLLMv2Sampler(2048, 32, 32, threshold=1.0),
    "llada-1.5/gsm8k/published": LLaDASampler(256, 256, 16, confidence_eos_eot_inf=True),
    "llada-1.5/humaneval/published": LLaDASampler(512, 512, 32, confidence_eos_eot_inf=True),
    "dream-7b-base/gsm8k/published": DreamSampler(256, 256, "entropy", temperature=0.0, top_p=0.95),
    "dream-7b-base/humaneval/published": DreamSampler(512, 512, "entropy", temperature=0.2, top_p=0.95),
    "llada-moe-7b-a1b-instruct/gsm8k/dinfer": LLaDASampler(1024, 1024, 64, threshold=0.76),
}
for size in ("mini", "flash"):
    SAMPLERS |= {
        f"llada2.0-{size}/{task}/published": LLaDA2Sampler(2048, 32, 32, 0.95, eos_early_stop=True)
        for task in ("gsm8k", "humaneval")
    }
for size in ("1.7b", "4b", "8b", "30b-a3b"):
    SAMPLERS |= {
        f"sdar-{size}-chat/{task}/published": SDARSampler(4096, 4, None, stop_at_eos=True)
        for task in ("gsm8k", "humaneval")
    }
REPORTED = {  # per cent; "study" is Table 1 without masking
    "dream-7b-instruct/gsm8k/study": 82,
    "llada-8b-instruct/gsm8k/study": 76,
    "mmada-8b-mixcot/gsm8k/study": 54,
    "llama-3.1-8b-instruct/gsm8k/study": 85,
    "dream-7b-instruct/humaneval/study": 60,
    "llada-8b-instruct/humaneval/study": 37,
    "mmada-8b-mixcot/humaneval/study": 16,
    "llama-3.1-8b-instruct/humaneval/study": 66,
    "llada-8b-instruct/gsm8k/block-8": 78.6,
    "llada-8b-instruct/gsm8k/one-block": 69.4,
    "llada-8b-instruct/humaneval/one-block": 49.4,
    "llada-1.5/gsm8k/published": 83.8,
    "llada-1.5/humaneval/published": 52.4,
    "dream-7b-base/gsm8k/published": 77.2,
    "dream-7b-base/humaneval/published": 57.9,
    "llada2.0-mini/gsm8k/published": 94.24,
    "llada2.0-mini/humaneval/published": 86.59,
    "llada2.0-flash/gsm8k/published": 96.06,
    "llada2.0-flash/humaneval/published": 94.51,
    "sdar-1.7b-chat/gsm8k/published": 80.1,
    "sdar-1.7b-chat/humaneval/published": 61.6,
    "sdar-4b-chat/gsm8k/published": 89.9,
    "sdar-4b-chat/humaneval/published": 72.0,
    "sdar-8b-chat/gsm8k/published": 91.3,
    "sdar-8b-chat/humaneval/published": 78.7,
    "sdar-30b-a3b-chat/gsm8k/published": 91.4,
    "sdar-30b-a3b-chat/humaneval/published": 87.2,
}


def test_every_setting_decodes_as_published() -> None:
    assert {name: setting.sampler() for name, setting in SETTINGS.items()} == SAMPLERS
    assert {name: s.reported for name, s in SETTINGS.items() if s.reported is not None} == REPORTED


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda s: s.name)
def test_settings_are_data(setting: EvalSetting) -> None:
    again = EvalSetting.from_dict(json.loads(json.dumps(setting.to_dict())))
    assert again == setting and hash(again) == hash(setting) and again.digest == setting.digest
    model, benchmark, _ = setting.name.split("/")
    assert (setting.model.lower(), setting.benchmark) == (model, benchmark)
    assert get_setting(setting.name) is setting and setting.basis
    assert setting.template in (None, *chat.TEMPLATES)
    changed = dataclasses.replace(setting, question=setting.question + " ")
    assert changed.digest != setting.digest


def test_digests_tell_settings_apart() -> None:
    assert len({setting.digest for setting in SETTINGS.values()}) == len(SETTINGS)


def test_unknown_settings_are_explained() -> None:
    with pytest.raises(JaxsinkError, match=r"unknown evaluation setting 'x'; `jaxsink models` lists all"):
        get_setting("x")
    for broken in ({}, {"shots": 1}, {**SETTINGS["dream-7b-instruct/gsm8k/study"].to_dict(), "more": 1}):
        with pytest.raises(JaxsinkError, match="not an evaluation setting"):
            EvalSetting.from_dict(broken)


def test_lladas_prompt() -> None:
    (text,) = prompt_texts(get_setting("llada-8b-instruct/gsm8k/study"), [QUESTION], TRAIN)
    user, end = "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"
    reply = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    shots = "".join(
        f"{user}Question: Question {n}?\nLet's think step by step\nAnswer:{end}"
        f"{reply}She has 3 + 4 = 7 eggs.\nThe answer is 7{end}"
        for n in (7364, 1708, 669, 6724)
    )
    asked = f"{user}Question: How many {{eggs}}?\nLet's think step by step\nAnswer:{end}{reply}"
    assert text == "<|startoftext|>" + shots + asked
    (text,) = prompt_texts(get_setting("llada-8b-instruct/humaneval/study"), [FUNCTION])
    assert text == f"<|startoftext|>{user}Complete the following python code:\n{FUNCTION.question.strip()}{end}{reply}"


def test_dreams_prompts() -> None:
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    (text,) = prompt_texts(get_setting("dream-7b-instruct/gsm8k/study"), [QUESTION])
    assert text == f"{system}Q: How many {{eggs}}?\nA:<|im_end|>\n<|im_start|>assistant\n"
    (text,) = prompt_texts(get_setting("dream-7b-instruct/humaneval/study"), [FUNCTION])
    asked = f"Write a solution to the following problem and make sure that it passes the tests:\n```{FUNCTION.question}"
    opening = f"Here is the completed function:\n```python\n{FUNCTION.question}\n"
    assert text == f"{system}{asked}<|im_end|>\n<|im_start|>assistant\n{opening}"


def test_fast_dllms_prompt() -> None:
    (text,) = prompt_texts(get_setting("fast-dllm-v2-7b/gsm8k/published"), [QUESTION])
    system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    asked = "<|im_start|>user\nQuestion: How many {eggs}?\nAnswer:<|im_end|>\n<|im_start|>assistant\n"
    assert text == f"<|im_start|>system\n{system}<|im_end|>\n{asked}"


def test_prompts_of_block_diffusion_models() -> None:
    boxed = "How many {eggs}?\nPlease reason step by step, and put your final answer within \\boxed{}."
    (text,) = prompt_texts(get_setting("llada2.0-mini/gsm8k/published"), [QUESTION])
    off = "<role>SYSTEM</role>detailed thinking off<|role_end|>"
    assert text == f"{off}<role>HUMAN</role>{boxed}<|role_end|><role>ASSISTANT</role>"
    (text,) = prompt_texts(get_setting("sdar-8b-chat/gsm8k/published"), [QUESTION])
    assert text == f"<|im_start|>user\n{boxed}<|im_end|>\n<|im_start|>assistant\n"
    (text,) = prompt_texts(get_setting("nemotron-labs-diffusion-8b/gsm8k/published"), [QUESTION])
    asked = "Put the final numerical answer inside \\boxed{} at the very end.\n\nHow many {eggs}?<|im_end|>\n"
    assert text.endswith(f"{asked}<|im_start|>assistant\n<think></think>")
    (text,) = prompt_texts(get_setting("llada-moe-7b-a1b-instruct/gsm8k/dinfer"), [QUESTION], TRAIN)
    assert text.startswith(
        f"{off}<role>HUMAN</role>Question: Question 7364?\nPlease reason step by step\nAnswer: She has"
    )
    assert text.count("<role>") == 3 and text.count("The answer is 7\n\nQuestion: ") == 4


def test_dream_bases_prompts_are_plain_text() -> None:
    (text,) = prompt_texts(get_setting("dream-7b-base/gsm8k/published"), [QUESTION], TRAIN)
    shots = "".join(f"Q: Question {n}?\nA: She has 3 + 4 = 7 eggs.\nThe answer is 7\n\n" for n in range(8))
    assert text == f"{shots}Q: How many {{eggs}}?\nA:"
    assert prompt_texts(get_setting("dream-7b-base/humaneval/published"), [FUNCTION]) == [FUNCTION.question]


def test_mmadas_prompt_has_drawn_shots_in_one_turn() -> None:
    (text,) = prompt_texts(get_setting("mmada-8b-mixcot/gsm8k/study"), [QUESTION], TRAIN)
    random = Random(1234)
    drawn = [random.sample(TRAIN, 5) for _ in range(3)][2]  # the third question's, as lm-eval would draw them
    shots = "".join(f"Question: {shot.question}\nAnswer: {ANSWER}\n\n" for shot in drawn)
    start = "<|startoftext|><|start_header_id|>user<|end_header_id|>\nYou should first think"
    assert text.startswith(start) and text.count("<|start_header_id|>") == 2
    assert f"answer here\n\n{shots}Question: How many {{eggs}}?\nAnswer:<|eot_id|>" in text


def test_llamas_prompts() -> None:
    (text,) = prompt_texts(get_setting("llama-3.1-8b-instruct/gsm8k/study"), [QUESTION], TRAIN)
    assert text.count("<|start_header_id|>user") == 9 and text.count("\nThe final answer is 7<|eot_id|>") == 8
    (text,) = prompt_texts(get_setting("llama-3.1-8b-instruct/humaneval/study"), [FUNCTION])
    assert text.endswith(
        "<|end_header_id|>\n\nHere is the completed function:\n```python\n" + FUNCTION.question.rstrip()
    )


def test_prompts_do_not_depend_on_the_other_questions() -> None:
    setting = get_setting("mmada-8b-mixcot/gsm8k/study")
    many = [dataclasses.replace(QUESTION, index=n) for n in range(6)]
    texts = prompt_texts(setting, many, TRAIN)
    assert len(set(texts)) == 6
    assert prompt_texts(setting, many[4:5], TRAIN) == texts[4:5]
    assert prompt_texts(setting, many[::-1], TRAIN) == texts[::-1]
    assert prompt_texts(setting, [], TRAIN) == []


def test_text_without_a_template() -> None:
    plain = dataclasses.replace(
        get_setting("smollm2-135m-instruct/humaneval/small"), template=None, question="{question}", opening=""
    )
    assert prompt_texts(plain, [FUNCTION]) == [FUNCTION.question]
    turns = dataclasses.replace(plain, benchmark="gsm8k", shots=Shots(indices=(0,), turns=True))
    with pytest.raises(JaxsinkError, match="no chat template"):
        prompt_texts(turns, [QUESTION], TRAIN)


def test_missing_shots_and_foreign_questions_are_named() -> None:
    with pytest.raises(JaxsinkError, match=r"needs 7,365 training questions for its shots, and 10 are given"):
        prompt_texts(get_setting("llada-8b-instruct/gsm8k/study"), [QUESTION], TRAIN[:10])
    with pytest.raises(JaxsinkError, match="needs 5 training questions"):
        prompt_texts(get_setting("mmada-8b-mixcot/gsm8k/study"), [QUESTION])
    with pytest.raises(JaxsinkError, match="is for gsm8k, and HumanEval/0 is of another"):
        prompt_texts(get_setting("dream-7b-instruct/gsm8k/study"), [QUESTION, FUNCTION])


def test_shots_are_worded_as_the_setting_says() -> None:
    assert shot_answer(ANSWER, "####") == ANSWER
    assert shot_answer(ANSWER, "the answer is") == "She has 3 + 4 = 7 eggs.\nThe answer is 7"
    assert shot_indices(Shots(), 0, 2) == [(), ()]
    assert shot_indices(Shots(indices=(3, 1)), 4, 2) == [(3, 1), (3, 1)]


def test_scores_follow_the_setting() -> None:
    setting = get_setting("dream-7b-instruct/gsm8k/study")
    text = "It is 5 and 2. The answer is 7. Q: What is 8? A: 9"
    found = score(setting, QUESTION, text)
    assert (found.correct, found.strict, found.flexible, found.found) == (True, True, True, "7.")
    found = score(setting, QUESTION, "7 is it")
    assert (found.correct, found.strict, found.flexible) == (True, False, True)
    strict = dataclasses.replace(setting, flexible=False)
    assert not score(strict, QUESTION, "7 is it").correct and score(strict, QUESTION, text).correct


def test_programs_are_scored_only_with_leave() -> None:
    setting = get_setting("smollm2-135m-instruct/humaneval/small")
    with pytest.raises(JaxsinkError, match="not run without leave"):
        score(setting, FUNCTION, FUNCTION.answer)
    right = score(setting, FUNCTION, "    return a + b\n```\nDone.", allow_code_execution=True)
    wrong = score(setting, FUNCTION, "    return a - b\n```", allow_code_execution=True)
    assert (right.correct, right.found, right.sandbox) == (True, "passed", "namespaces")
    assert (wrong.correct, wrong.found) == (False, "failed: AssertionError")
