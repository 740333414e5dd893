"""How each model is asked and decoded on each benchmark, as data: named, hashable, and written into a run's manifest.

    setting = get_setting("llada-8b-instruct/gsm8k/study")
    setting.sampler()       # the jaxsink sampler with the setting's options
    setting.to_dict()       # plain JSON; EvalSetting.from_dict gives the same setting back

Names are model/benchmark/variant. "study" is the setting of Table 1 of arXiv 2510.15731, "published" that of the model's
authors where the study says nothing else. `basis` says for each where it comes from and what is our choice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from jaxsink.errors import JaxsinkError, near
from jaxsink.evals.paper import TABLE1
from jaxsink.sandbox.programs import Form
from jaxsink.tasks.benchmarks import Benchmark
from jaxsink.tasks.extract import HUMANEVAL_STOPS, Wording

if TYPE_CHECKING:
    from jaxsink.sampling.base import Sampler

Option = int | float | bool | str | None
Decoder = Literal[
    "llada", "dream", "autoregressive", "nemotron", "speculative", "mdlm", "bd3lm", "fast_dllm", "llada2", "sdar"
]
DECODERS: Mapping[Decoder, str] = {
    "llada": "LLaDASampler",
    "dream": "DreamSampler",
    "autoregressive": "ARSampler",
    "nemotron": "NemotronSampler",
    "speculative": "SpeculativeSampler",
    "mdlm": "MDLMSampler",
    "bd3lm": "BD3LMSampler",
    "fast_dllm": "FastDLLMv2Sampler",
    "llada2": "LLaDA2Sampler",
    "sdar": "SDARSampler",
}


@dataclass(frozen=True)
class Shots:
    """Solved questions of the training split that come before the question.

    indices: the same ones for every question. drawn: so many new ones for each question, as lm-eval draws them.
    wording: how their answers end; "####" leaves them as published, the others also take out the calculator's notes.
    turns: as turns of the conversation; otherwise as text in front of the question.
    """

    indices: tuple[int, ...] = ()
    drawn: int = 0
    seed: int = 1234
    wording: Wording = "####"
    turns: bool = False

    @property
    def total(self) -> int:
        return len(self.indices) + self.drawn


@dataclass(frozen=True)
class EvalSetting:
    """Everything between a question and a score, but for the weights.

    template: the chat template of jaxsink.text.chat; None gives the text as it is. question: what is asked, with the place
    {question}. preface: text before all else in the user's turn. opening: the start of the answer that is given to the
    model, also with {question}. wording: what strict extraction looks for (GSM8K). form: how code is found (programs).
    flexible: the score that counts is the flexible one (GSM8K). reported: the score that was published, in per cent.
    """

    name: str
    model: str
    benchmark: Benchmark
    basis: str
    template: str | None
    question: str
    decoder: Decoder
    options: tuple[tuple[str, Option], ...]
    preface: str = ""
    opening: str = ""
    shots: Shots = Shots()
    stops: tuple[str, ...] = ()
    wording: Wording = "####"
    flexible: bool = True
    form: Form = "completion"
    reported: float | None = None

    @property
    def runs_programs(self) -> bool:
        """Answers are programs, which are run to grade them."""
        return self.benchmark != "gsm8k"

    @property
    def sampler_kind(self) -> type[Sampler]:
        from jaxsink.sampling.registry import SAMPLERS  # JAX, which settings alone do not need

        return SAMPLERS[DECODERS[self.decoder]]

    def sampler(self) -> Sampler:
        """The sampler of jaxsink that decodes so."""
        return self.sampler_kind(**dict(self.options))

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "options": dict(self.options)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EvalSetting:
        """The setting that `to_dict` wrote, also after a way through JSON."""
        try:
            shots = {**data["shots"], "indices": tuple(data["shots"]["indices"])}
            fixed = {"options": tuple(data["options"].items()), "stops": tuple(data["stops"]), "shots": Shots(**shots)}
            return cls(**{**data, **fixed})
        except (KeyError, TypeError, AttributeError) as error:
            raise JaxsinkError(
                f"this is not an evaluation setting ({error}); take one from a manifest of jaxsink."
            ) from error

    @property
    def digest(self) -> str:
        """A short hash of all fields: two runs with the same digest asked and decoded alike."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


def _llada(length: int, block: int, **eos: bool) -> tuple[tuple[str, Option], ...]:
    options = {"gen_length": length, "steps": length, "block_length": block, "temperature": 0.0, "cfg_scale": 0.0}
    return tuple({**options, "remasking": "low_confidence", **eos}.items())


def _dream(length: int) -> tuple[tuple[str, Option], ...]:
    options = {"max_new_tokens": length, "steps": length, "alg": "entropy", "temperature": 0.1, "top_p": 0.9}
    return tuple(options.items())


def _greedy(length: int) -> tuple[tuple[str, Option], ...]:
    return (("max_new_tokens", length), ("temperature", 0.0), ("stop_at_eos", True))


def _dllm(length: int, block: int) -> tuple[tuple[str, Option], ...]:
    return (("max_new_tokens", length), ("steps", length), ("block_size", block), ("cfg_scale", 0.0))


def _fast_dllm(length: int, small_block: int, threshold: float) -> tuple[tuple[str, Option], ...]:
    options = {"max_new_tokens": length, "block_size": 32, "small_block_size": small_block, "threshold": threshold}
    return tuple(options.items())


def _dream_base(length: int, temperature: float) -> tuple[tuple[str, Option], ...]:
    return tuple({**dict(_dream(length)), "temperature": temperature, "top_p": 0.95}.items())


_COMPLETE_FUNCTION = "Here is the completed function:\n```python\n{question}\n"
_SOLVE = "Write a solution to the following problem and make sure that it passes the tests:\n"
_LM_EVAL_QUESTION = "Question: {question}\nAnswer:"
_BOXED = "{question}\nPlease reason step by step, and put your final answer within \\boxed{}."  # OpenCompass, zero-shot
_NEMOTRON_QUESTION = (
    "Solve the following math problem. Put the final numerical answer inside \\boxed{} at the very end.\n\n{question}"
)
_IMPLEMENT = (
    "Read the following function signature and docstring, and fully implement the function described. Your response should "
    "only contain the code for this function.\n{question}"
)
_LM_EVAL_STOPS = ("Question:", "</s>", "<|im_end|>")
_THINK_FIRST = (
    "You should first think about the reasoning process in the mind and then provide the user with the answer. The "
    "reasoning process is enclosed within <think> </think> tags, i.e. <think> reasoning process here </think> answer here"
    "\n\n"
)

_LLADA_GSM8K = EvalSetting(
    name="llada-8b-instruct/gsm8k/study",
    model="LLaDA-8B-Instruct",
    benchmark="gsm8k",
    basis="arXiv 2510.15731: 256 tokens, block 32; 4-shot chat prompt and 256 steps of LLaDA's own evaluation",
    template="llada",
    question="Question: {question}\nLet's think step by step\nAnswer:",
    decoder="llada",
    options=_llada(256, 32),
    shots=Shots(indices=(7364, 1708, 669, 6724), wording="the answer is", turns=True),
    stops=("Question:",),
    wording="the answer is",
    reported=float(TABLE1["llada-8b-instruct/gsm8k/study"][0]),
)
_LLADA_HUMANEVAL = EvalSetting(
    name="llada-8b-instruct/humaneval/study",
    model="LLaDA-8B-Instruct",
    benchmark="humaneval",
    basis="arXiv 2510.15731: 512 tokens, block 32; zero-shot chat prompt and 512 steps of LLaDA's own evaluation",
    template="llada",
    question="Complete the following python code:\n{question}",
    decoder="llada",
    options=_llada(512, 32),
    form="chat",
    reported=float(TABLE1["llada-8b-instruct/humaneval/study"][0]),
)
_LLAMA_HUMANEVAL = EvalSetting(
    name="llama-3.1-8b-instruct/humaneval/study",
    model="Llama-3.1-8B-Instruct",
    benchmark="humaneval",
    basis="Meta's zero-shot prompt as in lm-eval's humaneval_instruct, greedy; the study gives no details",
    template="llama3.1",
    question=_SOLVE + "```python\n{question}\n```\n",
    opening=_COMPLETE_FUNCTION,
    decoder="autoregressive",
    options=_greedy(1024),
    stops=HUMANEVAL_STOPS,
    form="opened block",
    reported=float(TABLE1["llama-3.1-8b-instruct/humaneval/study"][0]),
)
_NEMOTRON_GSM8K = EvalSetting(
    name="nemotron-labs-diffusion-8b/gsm8k/published",
    model="Nemotron-Labs-Diffusion-8B",
    benchmark="gsm8k",
    basis="Nvidia's public script: its question, zero-shot chat, blocks of 8, threshold 0.9, 512 tokens, greedy",
    template="nemotron",
    question=_NEMOTRON_QUESTION,
    decoder="nemotron",
    options=(("max_new_tokens", 512), ("block_length", 8), ("threshold", 0.9)),
)
_A2D_GSM8K = EvalSetting(
    name="qwen3-0.6b-diffusion-bd3lm/gsm8k/published",
    model="Qwen3-0.6B-diffusion-bd3lm",
    benchmark="gsm8k",
    basis="dllm's script: lm-eval's gsm8k_cot, zero-shot chat, 256 tokens in 256 steps, blocks of 32",
    template="qwen3",
    question="Q: {question}\nA:",
    decoder="bd3lm",
    options=_dllm(256, 32),
    stops=("Q:", "</s>", "<|im_end|>"),
    wording="the answer is",
)
_FAST_DLLM_GSM8K = EvalSetting(
    name="fast-dllm-v2-7b/gsm8k/published",
    model="Fast-dLLM-v2-7B",
    benchmark="gsm8k",
    basis="Fast-dLLM's evaluation script: zero-shot chat, threshold 1, one small block per block, 2048 tokens; our choice: "
    "lm-eval's question",
    template="qwen2.5",
    question=_LM_EVAL_QUESTION,
    decoder="fast_dllm",
    options=_fast_dllm(2048, 32, 1.0),
    stops=_LM_EVAL_STOPS,
)
_LLADA2_GSM8K = EvalSetting(
    name="llada2.0-mini/gsm8k/published",
    model="LLaDA2.0-mini",
    benchmark="gsm8k",
    basis="LLaDA2.0's report: temperature 0, blocks of 32, threshold 0.95; our choice: OpenCompass's zero-shot question, "
    "and 2048 tokens, as in dInfer's example",
    template="llada2",
    question=_BOXED,
    decoder="llada2",
    options=(("gen_length", 2048), ("block_length", 32), ("steps", 32), ("threshold", 0.95), ("eos_early_stop", True)),
    reported=94.24,
)
_LLADA2_HUMANEVAL = replace(
    _LLADA2_GSM8K,
    name="llada2.0-mini/humaneval/published",
    benchmark="humaneval",
    basis="LLaDA2.0's report: temperature 0, blocks of 32, threshold 0.95; our choice: OpenCompass's question, and 2048 "
    "tokens, as in dInfer's example",
    question=_LLADA_HUMANEVAL.question,
    form="chat",
    reported=86.59,
)
_SDAR_GSM8K = EvalSetting(
    name="sdar-1.7b-chat/gsm8k/published",
    model="SDAR-1.7B-Chat",
    benchmark="gsm8k",
    basis="SDAR's evaluation: OpenCompass's zero-shot chat question, greedy, blocks of 4 in 4 steps, 4096 tokens; ours: "
    "Qwen3's template",
    template="qwen3",
    question=_BOXED,
    decoder="sdar",
    options=(("gen_length", 4096), ("steps_per_block", 4), ("threshold", None), ("stop_at_eos", True)),
)
_SDAR_HUMANEVAL = replace(
    _SDAR_GSM8K,
    name="sdar-1.7b-chat/humaneval/published",
    benchmark="humaneval",
    basis="SDAR's evaluation: OpenCompass's question, greedy, blocks of 4 in 4 steps, 4096 tokens; ours: Qwen3's template",
    question=_IMPLEMENT,
    form="chat",
)
_SDAR_SCORES = {  # GSM8K, HumanEval: Table 1 of the project's page
    "SDAR-1.7B-Chat": (80.1, 61.6),
    "SDAR-4B-Chat": (89.9, 72.0),
    "SDAR-8B-Chat": (91.3, 78.7),
    "SDAR-30B-A3B-Chat": (91.4, 87.2),
}
_ALL = (
    _LLADA_GSM8K,
    replace(
        _LLADA_GSM8K,
        name="llada-8b-instruct/gsm8k/block-8",
        basis="LLaDA's own evaluation: 4-shot chat, 256 tokens, block 8",
        options=_llada(256, 8),
        reported=78.6,
    ),
    replace(
        _LLADA_GSM8K,
        name="llada-8b-instruct/gsm8k/one-block",
        basis="LLaDA's own evaluation: 4-shot chat, 512 tokens in one block, end tokens committed last",
        options=_llada(512, 512, confidence_eos_eot_inf=True),
        reported=69.4,
    ),
    _LLADA_HUMANEVAL,
    replace(
        _LLADA_HUMANEVAL,
        name="llada-8b-instruct/humaneval/one-block",
        basis="LLaDA's own evaluation: 512 tokens in one block, no end token",
        options=_llada(512, 512, logits_eos_inf=True),
        reported=49.4,
    ),
    replace(
        _LLADA_GSM8K,
        name="llada-1.5/gsm8k/published",
        model="LLaDA-1.5",
        basis="LLaDA's own evaluation: 4-shot chat, 256 tokens, block 16, end tokens committed last",
        options=_llada(256, 16, confidence_eos_eot_inf=True),
        reported=83.8,
    ),
    replace(
        _LLADA_HUMANEVAL,
        name="llada-1.5/humaneval/published",
        model="LLaDA-1.5",
        basis="LLaDA's own evaluation: zero-shot chat, 512 tokens, block 32, end tokens committed last",
        options=_llada(512, 32, confidence_eos_eot_inf=True),
        reported=52.4,
    ),
    EvalSetting(
        name="dream-7b-instruct/gsm8k/study",
        model="Dream-7B-Instruct",
        benchmark="gsm8k",
        basis="Dream's own scripts, as the study takes them: zero-shot chat, 256 tokens in 256 steps (Dream reports 81.0)",
        template="dream",
        question="Q: {question}\nA:",
        decoder="dream",
        options=_dream(256),
        stops=("Q:", "</s>", "<|im_end|>"),
        wording="the answer is",
        reported=float(TABLE1["dream-7b-instruct/gsm8k/study"][0]),
    ),
    EvalSetting(
        name="dream-7b-instruct/humaneval/study",
        model="Dream-7B-Instruct",
        benchmark="humaneval",
        basis="Dream's own scripts, as the study takes them: zero-shot chat, 768 tokens in 768 steps (Dream reports 55.5)",
        template="dream",
        question=_SOLVE + "```{question}",
        opening=_COMPLETE_FUNCTION,
        decoder="dream",
        options=_dream(768),
        stops=HUMANEVAL_STOPS,
        form="opened block",
        reported=float(TABLE1["dream-7b-instruct/humaneval/study"][0]),
    ),
    EvalSetting(
        name="dream-7b-base/gsm8k/published",
        model="Dream-7B-Base",
        benchmark="gsm8k",
        basis="Dream's own script: lm-eval's gsm8k_cot, 8 shots, 256 tokens in 256 steps, greedy; ours: the shots are the "
        "first 8 training questions, and no first token",
        template=None,
        question="Q: {question}\nA:",
        decoder="dream",
        options=_dream_base(256, 0.0),
        shots=Shots(indices=tuple(range(8)), wording="the answer is"),
        stops=("Q:", "</s>", "<|im_end|>"),
        wording="the answer is",
        reported=77.2,
    ),
    EvalSetting(
        name="dream-7b-base/humaneval/published",
        model="Dream-7B-Base",
        benchmark="humaneval",
        basis="Dream's own script: lm-eval's humaneval, zero-shot, 512 tokens in 512 steps, temperature 0.2; ours: "
        "lm-eval's stops for Dream's postprocessing, and no first token",
        template=None,
        question="{question}",
        decoder="dream",
        options=_dream_base(512, 0.2),
        stops=HUMANEVAL_STOPS,
        reported=57.9,
    ),
    EvalSetting(
        name="mmada-8b-mixcot/gsm8k/study",
        model="MMaDA-8B-MixCoT",
        benchmark="gsm8k",
        basis="MMaDA's own script: lm-eval's gsm8k, 5 shots drawn, one chat turn, 256 tokens, block 64; ours: text only",
        template="mmada",
        preface=_THINK_FIRST,
        question=_LM_EVAL_QUESTION,
        decoder="llada",
        options=_llada(256, 64, text_only=True),
        shots=Shots(drawn=5),
        stops=_LM_EVAL_STOPS,
        reported=float(TABLE1["mmada-8b-mixcot/gsm8k/study"][0]),
    ),
    EvalSetting(
        name="mmada-8b-mixcot/humaneval/study",
        model="MMaDA-8B-MixCoT",
        benchmark="humaneval",
        basis="our choice, nothing is published: LLaDA's prompt and 512 tokens with the preface and block of MMaDA's script",
        template="mmada",
        preface=_THINK_FIRST,
        question=_LLADA_HUMANEVAL.question,
        decoder="llada",
        options=_llada(512, 64, text_only=True),
        form="chat",
        reported=float(TABLE1["mmada-8b-mixcot/humaneval/study"][0]),
    ),
    EvalSetting(
        name="llama-3.1-8b-instruct/gsm8k/study",
        model="Llama-3.1-8B-Instruct",
        benchmark="gsm8k",
        basis="Meta's 8-shot chat prompt, greedy, 1024 tokens; our choice: the shots are the first 8 training questions",
        template="llama3.1",
        question="Given the following problem, reason and give a final answer to the problem.\nProblem: {question}\nYour "
        'response should end with "The final answer is [answer]" where [answer] is the response to the problem.\n',
        decoder="autoregressive",
        options=_greedy(1024),
        shots=Shots(indices=tuple(range(8)), wording="the final answer is", turns=True),
        wording="the final answer is",
        reported=float(TABLE1["llama-3.1-8b-instruct/gsm8k/study"][0]),
    ),
    _LLAMA_HUMANEVAL,
    EvalSetting(
        name="smollm2-135m-instruct/gsm8k/small",
        model="SmolLM2-135M-Instruct",
        benchmark="gsm8k",
        basis="our choice: lm-eval's gsm8k question, zero-shot chat, greedy, 256 tokens",
        template="smollm2",
        question=_LM_EVAL_QUESTION,
        decoder="autoregressive",
        options=_greedy(256),
        stops=_LM_EVAL_STOPS,
    ),
    replace(
        _LLAMA_HUMANEVAL,
        name="smollm2-135m-instruct/humaneval/small",
        model="SmolLM2-135M-Instruct",
        basis="our choice: lm-eval's humaneval_instruct, greedy, 256 tokens",
        template="smollm2",
        options=_greedy(256),
        reported=None,
    ),
    _NEMOTRON_GSM8K,
    replace(
        _NEMOTRON_GSM8K,
        name="nemotron-labs-diffusion-8b/gsm8k/speculation",
        basis="Nvidia's public script: its question, zero-shot chat, linear speculation, blocks of 32, 512 tokens",
        decoder="speculative",
        options=(("max_new_tokens", 512), ("block_length", 32), ("threshold", 0.0)),
    ),
    _A2D_GSM8K,
    replace(
        _A2D_GSM8K,
        name="qwen3-0.6b-diffusion-mdlm/gsm8k/published",
        model="Qwen3-0.6B-diffusion-mdlm",
        basis="dllm's script: lm-eval's gsm8k_cot, 5-shot chat, 256 tokens in 256 steps, one block; ours: the shots",
        decoder="mdlm",
        options=_dllm(256, 256),
        shots=Shots(drawn=5, wording="the answer is"),
    ),
    *(
        replace(
            _LLAMA_HUMANEVAL,
            name=f"qwen3-0.6b-diffusion-{kind}/humaneval/published",
            model=f"Qwen3-0.6B-diffusion-{kind}",
            basis=f"dllm's script: lm-eval's humaneval_instruct, 256 tokens in 256 steps, blocks of {block}",
            template="qwen3",
            decoder=kind,
            options=_dllm(256, block),
            reported=None,
        )
        for kind, block in (("mdlm", 256), ("bd3lm", 32))
    ),
    _FAST_DLLM_GSM8K,
    replace(
        _FAST_DLLM_GSM8K,
        name="fast-dllm-v2-7b/gsm8k/parallel",
        basis="Fast-dLLM's evaluation defaults: zero-shot chat, threshold 0.9, 2048 tokens; our choice: lm-eval's question",
        options=_fast_dllm(2048, 32, 0.9),
    ),
    replace(_FAST_DLLM_GSM8K, name="fast-dllm-v2-1.5b/gsm8k/published", model="Fast-dLLM-v2-1.5B"),
    EvalSetting(
        name="llada-moe-7b-a1b-instruct/gsm8k/dinfer",
        model="LLaDA-MoE-7B-A1B-Instruct",
        benchmark="gsm8k",
        basis="dInfer's evaluation script: 4 shots in one chat turn, 1024 tokens, blocks of 64, threshold 0.76; ours: "
        "without its smoothing of steps, and without its cache",
        template="llada2",
        question="Question: {question}\nPlease reason step by step\nAnswer:",
        decoder="llada",
        options=(*_llada(1024, 64), ("threshold", 0.76)),
        shots=replace(_LLADA_GSM8K.shots, turns=False),
        stops=_LM_EVAL_STOPS,
        wording="the answer is",
    ),
    _LLADA2_GSM8K,
    _LLADA2_HUMANEVAL,
    replace(_LLADA2_GSM8K, name="llada2.0-flash/gsm8k/published", model="LLaDA2.0-flash", reported=96.06),
    replace(_LLADA2_HUMANEVAL, name="llada2.0-flash/humaneval/published", model="LLaDA2.0-flash", reported=94.51),
    *(
        replace(base, name=f"{model.lower()}/{base.benchmark}/published", model=model, reported=score)
        for model, scores in _SDAR_SCORES.items()
        for base, score in zip((_SDAR_GSM8K, _SDAR_HUMANEVAL), scores, strict=True)
    ),
)
SETTINGS: Mapping[str, EvalSetting] = {setting.name: setting for setting in _ALL}


def get_setting(name: str) -> EvalSetting:
    """The setting of that name."""
    if name not in SETTINGS:
        hint = near(name, SETTINGS, 3) or "`jaxsink models` lists all"
        raise JaxsinkError(f"unknown evaluation setting {name!r}; {hint}.")
    return SETTINGS[name]
