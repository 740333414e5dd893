"""`jaxsink models`: everything that has a name, for people and as JSON."""

from __future__ import annotations

import json

import pytest

import jaxsink
from jaxsink.cli.main import main
from jaxsink.evals.settings import SETTINGS
from jaxsink.zoo.names import suggestions
from jaxsink.zoo.presets import HUB_IDS, PRESETS
from jaxsink.zoo.resolve import NAMES, SHIPPED


def test_everything_is_listed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [list(found[kind]) for kind in found] == [list(SHIPPED), list(PRESETS), list(SETTINGS)]
    llada = found["published"]["llada-8b-instruct"]
    assert (llada["family"], llada["parameters"], llada["hub_id"]) == (
        "llada",
        8_015_581_184,
        HUB_IDS["llada-8b-instruct"],
    )
    assert llada["sampler"]["gen_length"] == jaxsink.sampler_for("llada-8b-instruct").gen_length
    assert found["settings"]["llada-8b-instruct/gsm8k/block-8"]["reported"] == 78.6


def test_names_can_be_searched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "LLaDA-8b"]) == 0
    out = capsys.readouterr().out
    assert "GSAI-ML/LLaDA-8B-Instruct" in out and "256 tokens, block 32" in out and "8.0B" in out
    assert "dream" not in out and "built-in" not in out
    assert main(["models", "mini"]) == 0
    assert "0.9M" in capsys.readouterr().out
    assert main(["models", "lladda-8b-base"]) == 2
    assert "did you mean llada-8b-base?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["generate", "mini-lada", "x"], "did you mean mini-llada?"),
        (["generate", "mini-LLaDA", "x"], "did you mean mini-llada?"),
        (["inspect", "llada-8b"], "did you mean llada-8b-base or llada-8b-instruct?"),
        (["inspect", "dream-7b-instuct"], "did you mean dream-7b-instruct?"),
        (["generate", "llada-8b-base", "x"], "not here; give their directory, or its hub id GSAI-ML/LLaDA-8B-Base"),
        (["generate", "quite-different", "x"], "a name that `jaxsink models` lists"),
    ],
)
def test_mistyped_names(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and said in err


def test_suggestions_are_near_or_none() -> None:
    assert suggestions("gpt-2", PRESETS) == ["gpt2"]
    assert suggestions("xx", PRESETS) == []
    assert suggestions("mini", NAMES) == list(NAMES)
