"""`to_dataframe` and `to_xarray`: every number where the record has it, under the glossary's names."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from support.configs import FAMILIES
from support.made_generation import H, L, Letters, S, T, made_generation
from support.models import lively

import jaxsink
from jaxsink.errors import JaxsinkError
from jaxsink.recording.attention import maps, received, received_by_query, row_entropy
from jaxsink.recording.reductions import head_mean, sink_counts, top
from jaxsink.sampling.leaves import Kept, leaves

pytest.importorskip("pandas")
pytest.importorskip("xarray")
pytestmark = pytest.mark.usefixtures("quick_compilation")

COLUMNS = ["step", "layer", "sequence", "head", "position", "token_position", "token", "committed_at", "received"]


def test_a_row_for_every_number_of_the_record() -> None:
    out = made_generation()
    table = out.to_dataframe()
    assert list(table) == COLUMNS
    assert len(table) == L * H * (T * (S - 1) + 4 * S)  # sequence 0 has padding, sequence 1 stopped after four steps
    index = tuple(table[name] for name in COLUMNS[:5])
    np.testing.assert_array_equal(table["received"], out.record[index])
    assert not table.duplicated(COLUMNS[:5]).any() and out.mask[table["sequence"], table["position"]].all()
    where = table["sequence"], table["position"]
    np.testing.assert_array_equal(table["token"], out.tokens[where])
    np.testing.assert_array_equal(table["committed_at"], out.committed_at[where])
    np.testing.assert_array_equal(table["token_position"], table["position"] - (table["sequence"] == 0))


def test_the_mean_of_a_group_is_that_of_the_array() -> None:
    out = made_generation()
    means = out.to_dataframe().groupby(["layer", "head"])["received"].mean().to_numpy().reshape(L, H)
    total = out.record.sum(axis=(0, 2, 4))  # padding is 0
    np.testing.assert_allclose(means, total / (T * (S - 1) + 4 * S), rtol=1e-5)


def test_choosing_by_the_models_numbers() -> None:
    out = made_generation(recorders=Kept("received", layers=(3, 17)), recorded_steps=np.arange(0, 2 * T, 2))
    table = out.to_dataframe(steps=[4, 2], layers=17, sequences=[1], heads=range(1, 3))
    assert set(table["step"]) == {2} and set(table["layer"]) == {17} and set(table["head"]) == {1, 2}
    chosen = table[table["head"] == 2]
    np.testing.assert_array_equal(chosen["received"], out.record[1, 1, 1, 2])  # step 2 is the second one recorded
    for options, words in (
        ({"steps": 3}, "step 3 was not recorded; there is 0, 2, 4, 6, 8, 10"),
        ({"layers": [0]}, "layer 0 was not recorded; there is 3, 17"),
        ({"heads": 9}, "head 9 was not recorded"),
        ({"sequences": -1}, "sequence -1 was not recorded"),
        ({"record": "mine"}, "nothing was recorded as 'mine'; there is received"),
    ):
        with pytest.raises(JaxsinkError, match=words):
            out.to_dataframe(**options)


def test_tokens_as_text() -> None:
    table = made_generation(Letters()).to_dataframe(layers=0, heads=0)
    assert table["text"].dtype == "category"
    assert all(text == Letters().token(token) for text, token in zip(table["text"], table["token"], strict=True))


def test_a_huge_table_is_refused_with_its_size() -> None:
    words = (
        r"648 rows \(6 steps × 2 layers × 2 sequences × 3 heads × 9 positions\), more than max_rows = 600; choose with"
    )
    with pytest.raises(JaxsinkError, match=words):
        made_generation().to_dataframe(max_rows=600)
    assert len(made_generation().to_dataframe(max_rows=600, layers=1))


def recorded(family: str, record: Any, sampler: Any = None, **options: Any) -> jaxsink.Generation:
    sampler = sampler or jaxsink.LLaDASampler(6, 6, 6)
    return jaxsink.generate(lively(FAMILIES[family]), [[5, 6, 7], [8, 9, 10, 11]], sampler, record=record, **options)


def test_a_column_for_every_recorder() -> None:
    out = recorded("llada", {"scores": received(), "split": received_by_query(), "entropy": row_entropy()}, stream=3)
    table = out.to_dataframe()
    assert list(table)[8:] == ["entropy", "scores", "split.masked", "split.prompt", "split.unmasked"]
    parts = sum(table[f"split.{kind}"] for kind in ("masked", "prompt", "unmasked"))
    np.testing.assert_allclose(parts, table["scores"], atol=1e-5)
    assert list(out.to_dataframe(["split.masked"]))[8:] == ["split.masked"]


def test_axes_of_every_kind_of_record() -> None:
    record = {
        "maps": maps(layers=[2], heads=[1, 4]),
        "top": received().then(top(2)),
        "counts": received().then(sink_counts()),
        "mean": received().then(head_mean()),
        "alone": lambda tap: tap.probs.max(axis=(2, 3)),
    }
    out = recorded("llada", record)
    front = ("step", "layer", "sequence")
    assert {leaf.name: leaf.dims[3:] for leaf in leaves(out)} == {
        "maps": ("head", "query", "key"),
        "top.score": ("head", "item"),
        "top.position": ("head", "item"),
        "counts": ("head", "item"),
        "mean": ("position",),
        "alone": ("head",),
    }
    assert all(leaf.dims[:3] == front for leaf in leaves(out))
    one = out.to_dataframe("maps", sequences=1, steps=3)
    assert set(one["layer"]) == {2} and set(one["head"]) == {1, 4}
    wanted = np.asarray(out.record["maps"])[3, 0, 1, (one["head"] == 4).astype(int), one["query"], one["key"]]
    np.testing.assert_array_equal(one["maps"], wanted)
    largest = out.to_dataframe(["top.score", "top.position"])
    first = largest[largest["item"] == 0]
    assert (largest["top.score"].to_numpy()[::2] >= largest["top.score"].to_numpy()[1::2]).all() and len(first)
    assert len(out.to_dataframe("alone")) == 6 * 3 * 2 * 6
    with pytest.raises(JaxsinkError, match=r"do not fit one table: .*top.score \(step 6, .*item 2\).*with record="):
        out.to_dataframe()


def test_a_recorder_without_a_name_has_that_of_its_function() -> None:
    for record, name in ((received(), "received"), (maps(), "maps"), (lambda tap: tap.probs.sum(2), "value")):
        assert [leaf.name for leaf in leaves(recorded("llada", record))] == [name]
    with pytest.raises(JaxsinkError, match=r"the axes of value, \[6, 3\], cannot be told apart"):
        recorded("llada", lambda tap: tap.probs.sum()).to_dataframe()
    with pytest.raises(JaxsinkError, match="a record is called 'step'"):
        recorded("llada", {"step": received()}).to_dataframe()


def test_tokens_that_were_not_written_yet_have_no_rows() -> None:
    sampler = jaxsink.ARSampler(4, whole_map=True, stop_at_eos=False)
    table = recorded("qwen2", received(), sampler).to_dataframe(layers=0, heads=0, sequences=1)
    assert table.groupby("step")["position"].max().tolist() == [3, 4, 5, 6]
    np.testing.assert_allclose(table.groupby("step")["received"].sum(), [4, 5, 6, 7], rtol=1e-4)  # one for each query


def test_a_dataset_with_named_axes() -> None:
    out = made_generation(Letters(), recorders=Kept("received", layers=(3, 17)))
    data = out.to_xarray()
    assert data["received"].dims == ("step", "layer", "sequence", "head", "position")
    np.testing.assert_array_equal(data["received"], out.record)
    np.testing.assert_array_equal(data["received"].sel(layer=17, sequence=1, head=2), out.record[:, 1, 1, 2])
    np.testing.assert_array_equal(data["committed_at"], out.committed_at)
    np.testing.assert_array_equal(data["mask"], out.mask)
    assert data["steps_taken"].values.tolist() == [T, 4] and data.attrs["prompt_length"] == out.prompt_length
    assert data["text"].sel(sequence=0, position=2) == "c"
    masked = data["received"].where(data["mask"]).mean("position")
    np.testing.assert_allclose(masked.sel(sequence=0), out.record[:, :, 0, :, 1:].mean(axis=-1), rtol=1e-5)
    part = out.to_xarray(sequences=1, heads=[2, 0], steps=[1])
    np.testing.assert_array_equal(part["received"], out.record[1:2, :, 1:][..., [2, 0], :])
    assert part["token"].shape == (1, S) and part.sizes["sequence"] == 1


def test_a_dataset_holds_records_with_different_axes() -> None:
    out = recorded("llada", {"scores": received(), "mean": received().then(head_mean())})
    data = out.to_xarray()
    np.testing.assert_allclose(data["scores"].mean("head"), data["mean"], rtol=1e-5)
    with pytest.raises(JaxsinkError, match=r"their layers differ: .*choose some by name with record="):
        recorded("llada", {"scores": received(), "some": received().at([1])}).to_xarray()


@pytest.mark.parametrize("library", ["pandas", "xarray"])
def test_a_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    method = {"pandas": "to_dataframe", "xarray": "to_xarray"}[library]
    with pytest.raises(JaxsinkError, match=f"^{method} needs {library}, which is not installed; run `pip install"):
        getattr(made_generation(), method)()


def test_a_generation_without_a_record_says_so() -> None:
    with pytest.raises(JaxsinkError, match="this generation has no record"):
        recorded("llada", None).to_dataframe()


def test_a_generation_can_be_pickled() -> None:
    out = recorded("llada", {"mine": lambda tap: tap.probs.sum(2)})
    again = pickle.loads(pickle.dumps(out))
    np.testing.assert_array_equal(again.to_dataframe()["mine"], out.to_dataframe()["mine"])
