"""Sinks: which tokens they are, how they move, and hiding them while the model generates."""

from jaxsink.sinks.mask import MaskSinks
from jaxsink.sinks.rules import Importance, Outlier, Rule, Threshold, TopK, detect, sweep
from jaxsink.sinks.track import Tracks, track

__all__ = [
    "Importance",
    "MaskSinks",
    "Outlier",
    "Rule",
    "Threshold",
    "TopK",
    "Tracks",
    "detect",
    "sweep",
    "track",
]
