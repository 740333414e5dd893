"""What the arguments of --model jaxsink become; lm-eval itself is not needed for this."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from jaxsink import ARSampler, DreamSampler, JaxsinkError, LLaDASampler
from jaxsink.cli.main import main
from jaxsink.evals.batching import batch_size, buckets, full_batches, power_of_two
from jaxsink.evals.lm_eval.options import Options, Request, make_sampler, parse_options
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.registry import family_sampler
from jaxsink.sinks import MaskSinks
from jaxsink.zoo.builtin import BUILTIN

pytestmark = pytest.mark.usefixtures("quick_compilation")

LLADA, DREAM, LLAMA = (BUILTIN[name].config for name in ("mini-llada", "mini-dream", "mini-llama"))


def sampler_of(config: ModelConfig, options: Options, request: Request) -> Any:
    return make_sampler(config, family_sampler(config), options, request)


def test_model_arguments_go_before_the_task() -> None:
    task = Request.parse({"until": "Q:", "do_sample": False, "temperature": 0.0, "max_gen_toks": 64})
    assert task == Request(("Q:",), 64, 0.0)
    assert sampler_of(DREAM, parse_options({}, DREAM), task) == DreamSampler(64, 64, temperature=0.0)
    options = parse_options({"temperature": 0.1, "max_new_tokens": 32, "steps": 8}, DREAM)
    assert sampler_of(DREAM, options, task) == DreamSampler(32, 8, temperature=0.1)
    assert sampler_of(LLADA, parse_options({"gen_length": 48}, LLADA), task) == LLaDASampler(48, 48, 24)
    assert sampler_of(LLAMA, parse_options({"gen_length": 48}, LLAMA), task) == ARSampler(48)
    assert sampler_of(LLAMA, parse_options({}, LLAMA), Request()) == ARSampler(256)


def test_a_setting_decodes_as_jaxsink_evaluate_does() -> None:
    options = parse_options({"steps": 128}, LLADA, "llada-8b-instruct/gsm8k/study")
    assert sampler_of(LLADA, options, Request()) == LLaDASampler(256, 128, 32)
    with pytest.raises(JaxsinkError, match="another kind of model"):
        parse_options({}, DREAM, "llada-8b-instruct/gsm8k/study")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"until": ["a", "b"]}, Request(("a", "b"))),
        ({"do_sample": True}, Request(temperature=1.0)),
        ({"do_sample": True, "temperature": 0.5, "top_p": 0.9, "top_k": 3}, Request((), None, 0.5, 0.9, 3)),
        ({"do_sample": False, "temperature": 0.5, "top_p": 0.9}, Request(temperature=0.0)),
        ({"temperature": 0.7, "max_new_tokens": 5, "num_beams": 1}, Request((), 5, 0.7)),
    ],
)
def test_what_tasks_ask_for(given: dict, expected: Request) -> None:
    assert Request.parse(given) == expected


def test_masking() -> None:
    def masking(**given: object) -> MaskSinks | None:
        return parse_options(given, LLADA).masking

    assert masking() is None and masking(k=0) is None and masking(k=0, select="top") is None
    assert masking(k=2, select="random") == MaskSinks(2, "random")
    assert masking(k=1, sink_eps=5.0, rule="top_k_above", layers="0+2") == MaskSinks(
        1, rule="top_k_above", eps=5.0, layers=(0, 2)
    )
    assert masking(positions=0) == MaskSinks(positions=(0,)) and masking(positions=[0, 1]) == MaskSinks(
        positions=(0, 1)
    )
    assert masking(share=0.03, select="mass", rows="all") == MaskSinks(share=0.03, select="mass", rows="all")
    assert masking(rule="threshold") == MaskSinks(rule="threshold")
    assert parse_options({"k": 1, "eps": 0.01}, DREAM) == Options({"eps": 0.01}, None, MaskSinks(1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alg": "entropy"}, "no argument 'alg' for a llada model"),
        ({"gen_length": 4, "max_new_tokens": 5}, "two names of one thing"),
        ({"gen_length": 0}, "whole number above 0"),
        ({"select": "top"}, "add k=1"),
        ({"k": "one"}, "k has the wrong kind"),
        ({"k": 1, "keep": 1}, "keep has the wrong kind"),
        ({"k": 1, "layers": "0-2"}, "joined by"),
        ({"k": 1, "select": "best"}, "select must be one of"),
    ],
)
def test_mistakes_in_model_arguments_are_named(given: dict, message: str) -> None:
    with pytest.raises(JaxsinkError, match=message):
        parse_options(given, LLADA)


def test_mistakes_in_decoding_are_named() -> None:
    with pytest.raises(JaxsinkError, match="asks for num_beams"):
        Request.parse({"num_beams": 4})
    with pytest.raises(JaxsinkError, match="asks for min_p"):
        Request.parse({"min_p": 0.1})
    with pytest.raises(JaxsinkError, match="not a multiple of block_length"):
        sampler_of(LLADA, parse_options({"block_length": 7}, LLADA), Request())
    with pytest.raises(JaxsinkError, match="steps must be a whole number from 1"):
        sampler_of(LLADA, parse_options({"steps": "many"}, LLADA), Request())


def test_batches_have_few_shapes() -> None:
    assert buckets([3, 9, 4, 8], lambda n: n // 4) == [(2, [9, 8]), (1, [4]), (0, [3])]
    assert list(full_batches(range(5), 2)) == [([0, 1], 2), ([2, 3], 2), ([4, 4], 1)]
    assert [batch_size(*given) for given in ((100, 32, 1), (5, 32, 1), (5, 32, 4), (100, 3, 4))] == [32, 5, 8, 4]
    assert [power_of_two(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, 8]


def test_the_command_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lm-eval", "--help"]) == 0
    assert "--model jaxsink" in capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert main(["lm-eval", "--model", "jaxsink"]) == 2
    assert "pip install '.[eval]'" in capsys.readouterr().err
