"""Sinks: which tokens they are, how they move, what sets them apart, and masking them while the model generates."""

from __future__ import annotations

import warnings
from typing import Any

from jaxsink.sinks.agreement import Agreement, agreement
from jaxsink.sinks.calibrate import calibrate_eps
from jaxsink.sinks.contrast import AtSinks, Split, at_sinks, scale_to_all_queries, split_by_query
from jaxsink.sinks.gradient import attention_gradient, nats_of
from jaxsink.sinks.hidden import HiddenKeys, hidden_keys
from jaxsink.sinks.mask import MaskSinks
from jaxsink.sinks.rollout import rollout
from jaxsink.sinks.rules import Importance, Outlier, Rule, Threshold, TopK, detect, sweep, visibility_normalised
from jaxsink.sinks.tokens import Frequency, Rates, canvases, frequency, fresh, kind_table, top_tokens
from jaxsink.sinks.track import Tracks, track
from jaxsink.sinks.turns import Turns
from jaxsink.sinks.unmasking import Frontier, blocks, distance, drift_per_block, frontier

__all__ = [
    "Agreement",
    "AtSinks",
    "Frequency",
    "Frontier",
    "HiddenKeys",
    "Importance",
    "MaskSinks",
    "Outlier",
    "Rates",
    "Rule",
    "Split",
    "Threshold",
    "TopK",
    "Tracks",
    "Turns",
    "agreement",
    "at_sinks",
    "attention_gradient",
    "blocks",
    "calibrate_eps",
    "canvases",
    "detect",
    "distance",
    "drift_per_block",
    "frequency",
    "fresh",
    "frontier",
    "hidden_keys",
    "kind_table",
    "nats_of",
    "rollout",
    "scale_to_all_queries",
    "split_by_query",
    "sweep",
    "top_tokens",
    "track",
    "visibility_normalised",
]


def __getattr__(name: str) -> Any:
    if name == "as_if_all":
        warnings.warn("as_if_all is called scale_to_all_queries now.", DeprecationWarning, stacklevel=2)
        return scale_to_all_queries
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
