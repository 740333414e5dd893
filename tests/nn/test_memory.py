"""Out of memory: the bytes, what fills them and what to try, for a failure that is real and for those that are made."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import jaxsink
from jaxsink import ARSampler, JaxsinkError, LLaDASampler
from jaxsink.checkpoints.storage import Reader
from jaxsink.cli.main import main
from jaxsink.nn.memory import explained, sentence
from jaxsink.sampling import execution as spread

pytestmark = pytest.mark.usefixtures("quick_compilation")

GIB = 1 << 30


@pytest.fixture(scope="module")
def model() -> jaxsink.Model:
    return jaxsink.load("mini-llada", "float32")


def test_a_record_that_no_machine_holds(model: jaxsink.Model) -> None:
    """Steps x layers x sequences x heads x keys x keys x 4 bytes = 32 x 4 x 512 x 4 x 1032² x 4: about 1.1 TB."""
    longer = model.with_config(model.config.replace(max_positions=2048))
    with pytest.raises(JaxsinkError) as error:
        jaxsink.generate(longer, np.ones((512, 1000), int), LLaDASampler(32, 32, 8), record=jaxsink.record.maps())
    said = str(error.value)
    assert f"records {32 * 4 * 512 * 4 * 1032**2 * 4 / (1 << 40):.2f} TiB" in said
    assert said.startswith("out of memory: this run needs at least 1.02 TiB (records") and "at once" in said
    assert "try a smaller record (every=8" in said and "int8" not in said and len(said) < 480


def test_a_pass_that_no_machine_holds(model: jaxsink.Model) -> None:
    with pytest.raises(JaxsinkError, match=r"this pass needs at least \d+\.\d\d GiB .*a smaller record") as error:
        jaxsink.forward(model, np.ones((300, 4000), int), record=jaxsink.record.maps())
    assert f"records {4 * 300 * 4 * 4000**2 * 4 / GIB:.2f} GiB" in str(error.value)


def exhausted(*_: object, **__: object) -> None:
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20G of 15.75G")


@pytest.mark.parametrize("sampler", [LLaDASampler(8, 8, 8, cache="dual"), LLaDASampler(8, 8, 8)])
def test_a_compiler_that_runs_out(model: jaxsink.Model, sampler: LLaDASampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread.Program, "advance", exhausted)
    with pytest.raises(JaxsinkError, match=r"out of memory: this run needs .*weights 3\.36 MiB.*int8") as error:
        jaxsink.generate(model, [[1, 5, 6]], sampler, intervene=jaxsink.sinks.MaskSinks(1))
    assert ("keys and values" in str(error.value)) == (sampler.cache is not None)
    assert "intervention" in str(error.value)


def test_an_autoregressive_run_counts_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    llama = jaxsink.load("mini-llama", "float32")
    monkeypatch.setattr(spread.Program, "advance", exhausted)
    with pytest.raises(JaxsinkError) as error:
        jaxsink.generate(llama, np.ones((8, 24), int), ARSampler(8))
    assert f"keys and values {2 * 4 * 8 * 32 * 128 * 4 / (1 << 20):.2f} MiB" in str(error.value)  # 2 x L x B x S x E
    with pytest.raises(JaxsinkError) as error:
        jaxsink.generate(llama, np.ones((8, 24), int), ARSampler(8), intervene=jaxsink.sinks.MaskSinks(1, rows="all"))
    assert "keys and values" not in str(error.value)


def test_loading_says_how_large_the_weights_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Reader, "model", fails)
    with pytest.raises(JaxsinkError, match=r"loading mini-llada needs at least 3\.36 MiB .*int8.* or several devices"):
        jaxsink.load("mini-llada")
    with pytest.raises(JaxsinkError, match=r"needs at least 1\.68 MiB"):
        jaxsink.load("mini-llada", "bfloat16")


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), explained("it", lambda: {}):
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")


def test_the_command_line_says_it_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(spread.Program, "advance", exhausted)
    assert main(["generate", "mini-llada", "Mia has 4 apples.", "--no-compile-cache"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "out of memory: this run needs at least" in err


def test_sentences() -> None:
    said = sentence("it", {"weights": 3 * GIB, "records": 0, "logits": GIB}, asked=2 * GIB)
    assert said.startswith(
        "out of memory: it needs at least 4.00 GiB (weights 3.00 GiB, logits 1.00 GiB) and asked for 2.00"
    )
    assert 'try int8 weights (dtype="int8"), fewer or shorter sequences or several devices' in said and len(said) < 480
