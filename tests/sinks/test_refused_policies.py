"""Policies that contradict themselves, or that could have no effect, are refused before anything runs, with the reason."""

from __future__ import annotations

import numpy as np
import pytest
from support.configs import FAMILIES
from support.models import lively

import jaxsink
from jaxsink import JaxsinkError
from jaxsink.sampling.interventions import check
from jaxsink.sinks import Importance, MaskSinks, Outlier, Threshold, TopK, Turns

LLADA, LLAMA = jaxsink.LLaDASampler(4, 4, 4), jaxsink.ARSampler(4)
PROMPTS = [[5, 6, 7], [5, 6, 7, 8, 9]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "k is 0, so nothing would be hidden"),
        ({"k": 0, "select": "random"}, "k is 0"),
        ({"k": 0, "rule": "top_k_above"}, "k is 0"),
        ({"k": 0, "keep": True}, "queries without any key ignore the mask"),
        ({"factor": 1.0}, "factor 1 leaves all attention as it is"),
        ({"factor": -0.5}, "factor must be a finite number of 0 or more"),
        ({"factor": float("inf")}, "factor must be a finite number of 0 or more"),
        ({"layers": ()}, "layers is empty"),
        ({"positions": ()}, "positions is empty"),
        ({"share": 1.0}, "share must be a finite number above 0 and below 1"),
        ({"share": 0.0}, "share must be a finite number above 0 and below 1"),
        ({"share": 0.1, "k": 2}, "either k or share"),
        ({"share": 0.1, "rule": "threshold"}, "take all of theirs"),
        ({"share": 0.1, "positions": (1,)}, "take all of theirs"),
        ({"rows": "last"}, "rows must be one of all, newest, decoded, masked or None"),
        ({"select": "first", "rule": "top_k"}, "without rule or positions"),
        ({"select": "first", "positions": (0,)}, "without rule or positions"),
        ({"select": "top_not_first", "positions": (2,)}, "takes no fixed positions"),
        ({"select": "partner", "keep": True}, "need rank_on='clean'"),
        ({"select": "mass", "factor": 0.5}, "need rank_on='clean'"),
        ({"rule": Threshold(3.0, "mean")}, "cannot find any key"),
        ({"rule": Importance(1.0)}, "cannot find any key"),
        ({"rule": Threshold(1.0, "mean") & TopK(2)}, "cannot find any key"),
    ],
    ids=str,
)
def test_contradictions(settings: dict, message: str) -> None:
    with pytest.raises(JaxsinkError, match="MaskSinks: ") as caught:
        MaskSinks(**settings)
    assert message in str(caught.value)


def test_what_looks_alike_but_does_something() -> None:
    MaskSinks(0, rule="threshold")
    MaskSinks(0, positions=(1,))
    MaskSinks(select="partner", keep=True, rank_on="clean")
    MaskSinks(rule=Threshold(3.0, "mean") | TopK(2))
    MaskSinks(rule=Threshold(0.2, "mean"))


def refused(family: str, sampler, policy, prompts=PROMPTS, **options) -> str:
    model = lively(FAMILIES[family])
    with pytest.raises(JaxsinkError) as caught:
        jaxsink.generate(model, prompts, sampler, intervene=policy, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "rule",
    ["threshold", "top_k_above", Threshold(1.0), Threshold(2.0) & TopK(3), Threshold(2.0) | Threshold(1.5)],
    ids=str,
)
def test_a_single_query_has_no_key_that_exceeds_the_mean_by_one(rule) -> None:
    for policy in (MaskSinks(2, rule=rule), MaskSinks(2, "random", rule=rule, rows="newest")):
        assert "whose attention sums to 1; give rows='all'" in refused("llama3.1", LLAMA, policy)
        assert "whose attention sums to 1" in refused("llama3.1", LLAMA, Turns((None, policy)))
    model = lively(FAMILIES["llama3.1"])
    for allowed in (
        MaskSinks(2, rule=rule, rows="all"),
        MaskSinks(2, rule="threshold", eps=0.5),
        MaskSinks(2, rule=Threshold(3.0) | TopK(2)),
        MaskSinks(2, rule=Outlier(1.0)),
    ):
        allowed.check(model.config, LLAMA, None)


def test_as_many_keys_as_there_are_tokens() -> None:
    """Of a diffusion model, whose queries would all go blind and ignore the mask."""
    assert "k = 7, and a sequence has 7 tokens" in refused("llada", LLADA, MaskSinks(7))
    assert "k = 9" in refused("llada", LLADA, MaskSinks(9, "random", keep=True))
    assert "a sequence has 7 tokens" in refused("llada", LLADA, Turns((MaskSinks(7), None)), policies=[0, 1])
    assert "there is no token 7" in refused("llada", LLADA, MaskSinks(positions=(8, 7)))
    model = lively(FAMILIES["llada"])
    jaxsink.generate(model, PROMPTS, LLADA, intervene=Turns((MaskSinks(7), None)), policies=[1, 0])  # follows 9 tokens
    for allowed in (MaskSinks(6), MaskSinks(9, rule="top_k_above"), MaskSinks(positions=(6, 20)), MaskSinks(share=0.9)):
        check(allowed, model.config, LLADA, np.array([7, 9]))


def test_rows() -> None:
    assert "none is the newest" in refused("llada", LLADA, MaskSinks(1, rows="newest"))
    cached = jaxsink.LLaDASampler(4, 4, 4, cache="dual")
    assert "with cache='dual' most steps run a block" in refused("llada", cached, MaskSinks(1, rows="all"))
    with pytest.raises(JaxsinkError, match="policies mask all and the usual rows"):
        Turns((MaskSinks(1, rows="all"), None, MaskSinks(1)))
    assert Turns((MaskSinks(1, rows="all"), None)).rows == "all" and Turns((MaskSinks(1, rows="newest"),)).rows is None
    model, sampler = lively(FAMILIES["llada"]), jaxsink.LLaDASampler(4, 4, 4)
    plain, every = (
        jaxsink.generate(model, PROMPTS, sampler, intervene=MaskSinks(1, rows=r)).tokens for r in (None, "all")
    )
    assert (plain == every).all()
    with pytest.raises(JaxsinkError, match="none is the newest"):
        check(MaskSinks(1, rows="newest"), model.config)
