"""Runs without taps, lens and edits compile to the program that there would be if nobody had ever written those."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from support.sampling import PROMPTS, model_of

import jaxsink
from jaxsink import edit, record
from jaxsink.nn import attention, layer, pass_end, transformer
from jaxsink.nn.recorder import Recorder
from jaxsink.sampling import execution

pytestmark = pytest.mark.usefixtures("quick_compilation")
SAMPLERS = {"llada": jaxsink.LLaDASampler(4, 4, 4), "llama3.1": jaxsink.ARSampler(4)}
USED = {
    "values": record.head_values(),
    "residual": record.residual(),
    "embedding": record.embedding(),
    "lens": record.lens(2),
}


class Stop(Exception):  # noqa: N818 - not an error
    pass


def compiled(family: str, **options: Any) -> str:
    """The text of the program that `generate` would run, as it is compiled now."""
    texts: list[str] = []

    def advance(*given: Any) -> Any:
        texts.append(original.lower(*given).compile().as_text())
        raise Stop

    original = execution._advance
    jax.clear_caches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execution, "_advance", advance)
        with pytest.raises(Stop):
            jaxsink.generate(model_of(family), PROMPTS, SAMPLERS[family], **options)
    head, tables, instructions = texts[0].partition("\n\n%")
    assert tables and "ENTRY" in instructions
    where = r",? metadata=\{[^}]*\}"  # the lines of Python that instructions come from, this test's among them
    return head.splitlines()[0] + re.sub(where, "", instructions)


def of_layers_alone(recorders: tuple[Recorder, ...], of_layers: Any, end: Any) -> Any:
    """As if passes had no end that recorders could read."""
    assert len(recorders) == len(of_layers)
    return of_layers


@pytest.mark.parametrize("family", SAMPLERS)
def test_what_was_used_and_dropped_leaves_nothing(family: str) -> None:
    plain = compiled(family)
    edits = [edit.zero("residual", layers=[1]), edit.add(jnp.ones(48), "mlp")]
    out = jaxsink.generate(model_of(family), PROMPTS, SAMPLERS[family], record=USED, intervene=edits)
    assert set(out.record) == set(USED)
    assert compiled(family) == plain
    assert compiled(family, record={}, intervene=[]) == plain
    assert compiled(family, record=USED["residual"]) != plain
    assert compiled(family, intervene=edits) != plain


@pytest.mark.parametrize("family", SAMPLERS)
@pytest.mark.parametrize("wanted", [None, record.received()], ids=["nothing", "received"])
def test_it_is_the_program_of_a_network_without_them(family: str, wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if family == "llama3.1" and wanted is not None:
        wanted = record.last_row()
    before = compiled(family, record=wanted)
    for module in (attention, layer):
        monkeypatch.setattr(module, "read_vectors", lambda context, name, vectors: {})
    for module in (attention, layer, transformer, pass_end):
        monkeypatch.setattr(module, "edited", lambda context, tap, vectors, record=None, outputs=None: vectors)
    monkeypatch.setattr(attention, "with_edited_values", lambda tap, context: tap)
    monkeypatch.setattr(transformer, "of_whole_pass", of_layers_alone)
    assert compiled(family, record=wanted) == before
    jax.clear_caches()
