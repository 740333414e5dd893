"""Sinks: which tokens they are, how they move, what sets them apart, and hiding them while the model generates."""

from jaxsink.sinks.contrast import AtSinks, Split, as_if_all, at_sinks, split_by_query
from jaxsink.sinks.mask import MaskSinks
from jaxsink.sinks.rules import Importance, Outlier, Rule, Threshold, TopK, detect, sweep
from jaxsink.sinks.tokens import Frequency, Rates, canvases, frequency, fresh, kind_table, top_tokens
from jaxsink.sinks.track import Tracks, track
from jaxsink.sinks.turns import Turns
from jaxsink.sinks.unmasking import Frontier, blocks, distance, drift_per_block, frontier

__all__ = [
    "AtSinks",
    "Frequency",
    "Frontier",
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
    "as_if_all",
    "at_sinks",
    "blocks",
    "canvases",
    "detect",
    "distance",
    "drift_per_block",
    "frequency",
    "fresh",
    "frontier",
    "kind_table",
    "split_by_query",
    "sweep",
    "top_tokens",
    "track",
]
