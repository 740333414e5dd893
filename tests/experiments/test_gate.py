"""The gate: what counts as a true first-token sink, on maps that are made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jaxsink_experiments import beyond_gate as gate


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Two texts of 4 and 2 tokens, the second padded on the left; two layers, two heads."""
    there = np.array([[True, True, True, True], [False, False, True, True]])
    received = np.zeros((2, 2, 2, 4), np.float32)
    received[0, 0] = [[4, 0, 0, 0], [1.1, 1, 1, 0.9]]  # α₁ = 1 and 0.275
    received[1, 0] = [[1.3, 0.7, 1, 1], [0, 2, 1, 1]]  # 0.325 and 0
    received[0, 1] = [[9, 9, 1.2, 0.8], [9, 9, 0.5, 1.5]]  # 0.6 and 0.25
    received[1, 1] = [[9, 9, 2, 0], [9, 9, 0, 2]]  # 1 and 0
    value = np.ones((2, 2, 1, 4), np.float32)
    value[:, 0, 0] = [[0.5, 1, 1, 1], [2, 1, 1, 1]]
    value[:, 1, 0] = [[7, 7, 0.5, 1], [7, 7, 0.5, 1]]
    record = {"received": received, "value": value}
    monkeypatch.setattr(gate, "canvases", lambda subject, gallery: [(0, there, there), (3, there.astype(int), there)])
    monkeypatch.setattr(gate, "pass_over", lambda *_, **__: SimpleNamespace(record=record))
    gate.first_token.cache_clear()
    return SimpleNamespace(), SimpleNamespace()


def hashable(made: tuple[Any, Any]) -> tuple[Any, Any]:
    return tuple(type("Made", (), vars(one))() for one in made)  # type: ignore[return-value]


def test_heads_whose_first_token_takes_more_than_its_share(made: tuple[Any, Any]) -> None:
    assert gate.heads_with_sink(*hashable(made)).tolist() == [2, 2]


def test_values_of_the_first_token_against_the_others(made: tuple[Any, Any]) -> None:
    found = gate.value_ratio(*hashable(made))
    np.testing.assert_allclose(found, [(np.log(0.5) + np.log(2)) / 2, np.log(0.5)], atol=1e-6)


def test_random_weights_do_not_pass_and_the_paper_is_quoted() -> None:
    bounds = {one.name: (one.expected, one.least, one.most) for one in gate.gate.predictions}
    assert bounds == {"gate-heads": ("greater", 2.0, None), "gate-values": ("less", None, 0.0)}
    assert not gate.gate.writes and gate.gate.likelihood
