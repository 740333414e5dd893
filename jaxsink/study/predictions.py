"""Predictions: what a claim says about a statistic, before it is looked at, and the nulls that it must beat.

Prediction(
    name="fig8-right",
    statistic="rank correlation of step and position of the largest sink",
    of=drift,                        # (subject, gallery) -> one number per generation
    expected="greater",
    shuffle=nulls.STEPS,
    about=lambda subject: subject.model.config.family == "llada",
)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxsink.evals.statistics import clustered_mean
from jaxsink.runs.arrays import Arrays
from jaxsink.study.gallery import Gallery
from jaxsink.study.nulls import Control, Shuffle, Statistic
from jaxsink.study.subject import Subject
from jaxsink.study.verdicts import (
    FEWEST,
    Comparison,
    Expected,
    Tested,
    against_models,
    compare,
    not_testable,
)

UNTRAINED = "untrained weights"
FEWEST_MODELS = 4
"""Untrained models that have what is measured, for a comparison with them."""


def diffusion(subject: Subject) -> bool:
    return subject.is_diffusion


def autoregressive(subject: Subject) -> bool:
    return not subject.is_diffusion


def everyone(subject: Subject) -> bool:
    return True


@dataclass(frozen=True)
class Prediction:
    """One statistic of a claim.

    Attributes:
        name: of its values in files
        statistic: what it is, in words
        expected: on which side of every null it lies if the claim is right
        shuffle: the permutation null; None: there is none that fits
        control: or what it is compared with in the same generation instead
        untrained: is it held against untrained models
        same_texts: these look at what the subject wrote instead of writing themselves
        least: a number that the statistic must be above as well; None: none
        most: the same, below it
        bound: what that number is, in words
        about: whom the claim is about

    Examples:
        >>> def at_the_end(subject, gallery):
        ...     return gallery.scores[..., -1].mean(axis=(0, 1, 3))  # one figure per generation
        ...
        >>> shuffle = jaxsink.study.nulls.QUERIES
        >>> jaxsink.study.Prediction("end", "attention on the last position", at_the_end, shuffle=shuffle).null.name
        'queries shuffled'
    """

    name: str
    statistic: str
    of: Statistic
    expected: Expected = "greater"
    shuffle: Shuffle | None = None
    control: Control | None = None
    untrained: bool = True
    same_texts: bool = False
    least: float | None = None
    most: float | None = None
    bound: str = "the claim's own bound"
    about: Callable[[Subject], bool] = diffusion

    @property
    def null(self) -> Shuffle | Control | None:
        """What it is compared with in the same generation."""
        return self.control if self.shuffle is None else self.shuffle

    def values(self, subject: Subject, gallery: Gallery) -> Arrays:
        """{"NAME": f64[B], "NAME shuffled": f64[B]}: the statistic, and that of the permutation null (mean of its draws); or
        "NAME control", what it is compared with instead."""
        found = {self.name: self.of(subject, gallery)}
        if self.shuffle is not None:
            draw = np.random.default_rng(0)
            chance = [self.of(subject, self.shuffle.of(gallery, draw)) for _ in range(self.shuffle.repeats)]
            found[f"{self.name} shuffled"] = np.mean(chance, axis=0)
        elif self.control is not None:
            found[f"{self.name} control"] = self.control.of(subject, gallery)
        return found

    def beyond_chance(self, values: Arrays) -> np.ndarray:
        """f64[B]: the statistic, less what it is when shuffled, or what its control is."""
        other = "control" if self.shuffle is None else "shuffled"
        return values[self.name] - values.get(f"{self.name} {other}", 0.0)


def check(one: Prediction, subject: Subject, gallery: Gallery, untrained: Sequence[Arrays]) -> tuple[Tested, Arrays]:
    """(the test, before a verdict; values per generation)."""
    values = one.values(subject, gallery)
    there, clusters = ~np.isnan(values[one.name]), gallery.clusters
    if len(set(clusters[there])) < FEWEST:
        why = f"{there.sum()} of {len(there)} generations have what is measured, too few to compare"
        return not_testable(subject.name, one.statistic, one.expected, why), values
    mean, beyond = clustered_mean(values[one.name], clusters), one.beyond_chance(values)
    comparisons: list[Comparison] = []
    if one.null is not None and len(set(clusters[~np.isnan(beyond)])) >= FEWEST:
        gap = clustered_mean(beyond, clusters)
        comparisons.append(compare(one.null.name, mean.value - gap.value, gap, one.expected))
    others = [one.beyond_chance(found) for found in untrained] if one.untrained else []
    others = [other for other in others if (~np.isnan(other) & ~np.isnan(beyond)).sum() >= FEWEST]
    if len(others) >= FEWEST_MODELS:
        gap = against_models(beyond, others, clusters)
        null = UNTRAINED if one.null is None else f"{UNTRAINED}, beyond chance"
        null_value = float(np.mean([np.nanmean(other) for other in others]))
        alone = one.null is None and one.least is None and one.most is None
        comparisons.append(compare(null, null_value, gap, one.expected, hurdle=not alone))
    sides: tuple[tuple[float | None, Expected], ...] = ((one.least, "greater"), (one.most, "less"))
    for bound, side in sides:
        if bound is not None:
            comparisons.append(compare(one.bound, bound, mean._replace(value=mean.value - bound), side))
    low, high = mean.interval()
    test = Tested(
        model=subject.name,
        statistic=one.statistic,
        expected=one.expected,
        value=mean.value,
        low=low,
        high=high,
        problems=int(mean.freedom) + 1,
        comparisons=comparisons,
        why="" if comparisons else "neither null has what is measured",
    )
    return test, values
