"""How long the prompts of the published settings are, so that a run can be planned without its data and tokenizer.

    estimated_lengths(get_setting("llada-8b-instruct/gsm8k/study"))      # 1,319 lengths from 1,489 to 1,654 tokens

Counted from the published questions with the prompts of each setting, shots and chat template included. The tokenizers of
the 7B and 8B models were not at hand: tokens are those of SmolLM2 (49,152 words, every digit a token of its own). The
larger vocabularies of the other models make fewer tokens of the same text, so these lengths are rather too long than too
short. `jaxsink plan --data-file` counts with the model's own tokenizer instead.
"""

from __future__ import annotations

import numpy as np

from jaxsink.errors import JaxsinkError
from jaxsink.evals.paper import QUESTIONS
from jaxsink.evals.settings import EvalSetting

COUNTED_WITH = "SmolLM2's tokenizer"
POINTS = (0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)  # per cent of the questions
_LLADA_GSM8K = (1489, 1493, 1499, 1503, 1508, 1513, 1519, 1524, 1530, 1536, 1544, 1558, 1570, 1597, 1654)
_FAST_DLLM_GSM8K = (60, 64, 70, 74, 79, 84, 90, 95, 101, 107, 115, 129, 141, 168, 225)
_LLADA_HUMANEVAL = (57, 61, 76, 91, 106, 120, 132, 140, 158, 174, 190, 250, 293, 336, 413)
_LLADA2_GSM8K = (74, 77, 83, 87, 92, 98, 103, 108, 114, 120, 128, 142, 155, 181, 238)
_LLADA2_HUMANEVAL = (78, 82, 97, 112, 127, 141, 153, 161, 179, 195, 211, 271, 314, 357, 434)
_SDAR_GSM8K = (51, 54, 60, 64, 69, 75, 80, 85, 91, 97, 105, 119, 132, 158, 215)
_SDAR_HUMANEVAL = (76, 80, 95, 110, 125, 139, 151, 159, 177, 193, 209, 269, 312, 355, 432)
_NEMOTRON_GSM8K = (64, 67, 73, 77, 82, 88, 93, 98, 104, 110, 118, 132, 145, 171, 228)
QUANTILES: dict[str, tuple[int, ...]] = {
    "llada-8b-instruct/gsm8k/study": _LLADA_GSM8K,
    "llada-8b-instruct/gsm8k/block-8": _LLADA_GSM8K,
    "llada-8b-instruct/gsm8k/one-block": _LLADA_GSM8K,
    "llada-8b-instruct/humaneval/study": _LLADA_HUMANEVAL,
    "llada-8b-instruct/humaneval/one-block": _LLADA_HUMANEVAL,
    "dream-7b-instruct/gsm8k/study": (
        48, 52, 58, 62, 67, 72, 78, 83, 89, 95, 103, 117, 129, 156, 213,
    ),
    "dream-7b-instruct/humaneval/study": (
        127, 135, 164, 195, 225, 252, 276, 292, 328, 361, 392, 512, 598, 685, 838,
    ),
    "mmada-8b-mixcot/gsm8k/study": (
        693, 769, 849, 891, 946, 993, 1032, 1073, 1108, 1154, 1207, 1296, 1362, 1504, 1725,
    ),
    "mmada-8b-mixcot/humaneval/study": (
        107, 111, 126, 141, 156, 170, 182, 190, 208, 224, 240, 300, 343, 386, 463,
    ),
    "llama-3.1-8b-instruct/gsm8k/study": (
        1610, 1614, 1620, 1624, 1629, 1634, 1640, 1645, 1651, 1657, 1665, 1679, 1691, 1718, 1775,
    ),
    "llama-3.1-8b-instruct/humaneval/study": (
        153, 161, 191, 221, 251, 279, 303, 319, 355, 387, 419, 539, 625, 711, 865,
    ),
    "smollm2-135m-instruct/gsm8k/small": (
        58, 62, 68, 72, 77, 82, 88, 93, 99, 105, 113, 127, 139, 166, 223,
    ),
    "smollm2-135m-instruct/humaneval/small": (
        141, 149, 179, 209, 239, 267, 291, 307, 343, 375, 407, 527, 613, 699, 853,
    ),
    "fast-dllm-v2-7b/gsm8k/published": _FAST_DLLM_GSM8K,
    "fast-dllm-v2-7b/gsm8k/parallel": _FAST_DLLM_GSM8K,
    "fast-dllm-v2-1.5b/gsm8k/published": _FAST_DLLM_GSM8K,
    "nemotron-labs-diffusion-8b/gsm8k/published": _NEMOTRON_GSM8K,
    "nemotron-labs-diffusion-8b/gsm8k/speculation": _NEMOTRON_GSM8K,
    "qwen3-0.6b-diffusion-bd3lm/gsm8k/published": (
        37, 41, 47, 51, 56, 61, 67, 72, 78, 84, 92, 106, 118, 145, 202,
    ),
    "qwen3-0.6b-diffusion-mdlm/gsm8k/published": (
        544, 622, 685, 719, 769, 806, 843, 874, 907, 944, 987, 1050, 1115, 1225, 1427,
    ),
    "qwen3-0.6b-diffusion-mdlm/humaneval/published": (
        120, 128, 158, 188, 218, 246, 270, 286, 322, 354, 386, 506, 592, 678, 832,
    ),
    "qwen3-0.6b-diffusion-bd3lm/humaneval/published": (
        120, 128, 158, 188, 218, 246, 270, 286, 322, 354, 386, 506, 592, 678, 832,
    ),
    "llada-1.5/gsm8k/published": _LLADA_GSM8K,
    "llada-1.5/humaneval/published": _LLADA_HUMANEVAL,
    "dream-7b-base/gsm8k/published": (
        1128, 1132, 1138, 1142, 1147, 1152, 1158, 1163, 1169, 1175, 1183, 1197, 1209, 1236, 1293,
    ),
    "dream-7b-base/humaneval/published": (
        40, 44, 58, 74, 89, 102, 114, 122, 140, 157, 172, 232, 275, 319, 395,
    ),
    "llada-moe-7b-a1b-instruct/gsm8k/dinfer": (
        1460, 1464, 1470, 1474, 1479, 1484, 1490, 1495, 1501, 1507, 1515, 1529, 1541, 1568, 1625,
    ),
    "llada2.0-mini/gsm8k/published": _LLADA2_GSM8K,
    "llada2.0-flash/gsm8k/published": _LLADA2_GSM8K,
    "llada2.0-mini/humaneval/published": _LLADA2_HUMANEVAL,
    "llada2.0-flash/humaneval/published": _LLADA2_HUMANEVAL,
    **{f"sdar-{size}-chat/gsm8k/published": _SDAR_GSM8K for size in ("1.7b", "4b", "8b", "30b-a3b")},
    **{f"sdar-{size}-chat/humaneval/published": _SDAR_HUMANEVAL for size in ("1.7b", "4b", "8b", "30b-a3b")},
}  # fmt: skip


def estimated_lengths(setting: EvalSetting) -> tuple[int, ...]:
    """Tokens of the prompt of each question, shortest first: as many as the benchmark has, at the stored quantiles."""
    if setting.name not in QUANTILES:
        raise JaxsinkError(
            f"how long the prompts of {setting.name} are is not stored; give --data-file and a model with its tokenizer."
        )
    shares = np.linspace(0, 100, QUESTIONS[setting.benchmark])
    return tuple(np.ceil(np.interp(shares, POINTS, QUANTILES[setting.name])).astype(int).tolist())
