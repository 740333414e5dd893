"""What a masking policy may choose, and choices that are refused: those that contradict each other or can have no effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from jaxtyping import Int
from numpy import ndarray

from jaxsink.checks import Range, at_least, check_fields
from jaxsink.errors import JaxsinkError
from jaxsink.nn.config import ModelConfig
from jaxsink.sampling.base import Sampler
from jaxsink.sampling.interventions import HIDDEN_FROM_SOME
from jaxsink.sinks.rules import Both, Either, Importance, Rule, Threshold

if TYPE_CHECKING:
    from jaxsink.sinks.mask import MaskSinks

Select = Literal["top", "random", "bottom", "first", "top_not_first", "partner", "mass"]
RuleName = Literal["top_k", "threshold", "top_k_above"]
RankOn = Literal["masked", "clean"]
Per = Literal["head", "layer"]
Rows = Literal["all", "newest", "decoded", "masked"]

EVERY_SELECTION: tuple[Select, ...] = get_args(Select)
SELECTIONS: tuple[Select, ...] = ("top", "random", "bottom")  # of Table 1
RANGES = {
    "k": at_least(0),
    "layers": at_least(0),
    "positions": at_least(0),
    "spare": at_least(0),
    "factor": at_least(0),
    "share": Range(0, 1, frozenset({0, 1})),
}
MATCHED: tuple[Select, ...] = ("partner", "mass")  # random keys that follow what "top" would hide


def require(condition: bool, message: str) -> None:
    if not condition:
        raise JaxsinkError(f"MaskSinks: {message}")


def check_settings(policy: MaskSinks) -> None:
    """Do the settings make a policy that can do something, in whatever run?"""
    check_fields(policy, "MaskSinks", RANGES)
    for name in ("layers", "positions"):
        value = getattr(policy, name)
        require(value is None or len(value) > 0, f"{name} is empty, so nothing would be hidden; None leaves it open.")
    require(policy.factor != 1, "factor 1 leaves all attention as it is; 0 hides keys.")
    check_count(policy)
    check_combinations(policy)


def check_count(policy: MaskSinks) -> None:
    """K, or K as a share."""
    counts = policy.positions is None and policy.rule != "threshold"
    hides = "queries without any key ignore the mask" if policy.keep else "nothing would be hidden"
    require(policy.k > 0 or not counts, f"k is 0, so {hides}; give None instead of a policy for the unmasked model.")
    if policy.share is not None:
        require(policy.k == 1, "give either k or share, not both.")
        require(counts, "share says how many keys to take, but fixed positions or rule 'threshold' take all of theirs.")


def check_combinations(policy: MaskSinks) -> None:
    """What excludes each other."""
    fixed, select = policy.positions is not None, policy.select
    require(not fixed or policy.rule is None, "give either a rule or fixed positions, not both.")
    chosen = fixed or policy.rule is not None
    require(select != "first" or not chosen, "select='first' takes the first k tokens, without rule or positions.")
    require(
        select != "top_not_first" or not fixed, "select='top_not_first' ranks keys, so it takes no fixed positions."
    )
    mirrored = policy.keep or policy.factor != 0
    require(
        select not in MATCHED or policy.rank_on == "clean" or not mirrored,
        f"select={select!r} imitates sinks that receive 0 while they are hidden; keep and factor need rank_on='clean'.",
    )
    require(
        not isinstance(policy.rule, Rule) or not never_finds(policy.rule, newest_row=False),
        f"{policy.rule} cannot find any key: a share of the attention is never above 1.",
    )


def check_effect(
    policy: MaskSinks, config: ModelConfig, sampler: Sampler | None, lengths: Int[ndarray, " B"] | None
) -> None:
    """Can it do something in this run? lengths: the real tokens of each sequence, prompt and response."""
    autoregressive = config.attention == "causal" if sampler is None else sampler.is_autoregressive
    if autoregressive:
        require(
            policy.rows not in HIDDEN_FROM_SOME,
            f"rows={policy.rows!r} is for diffusion models; an autoregressive one has 'newest' and 'all'.",
        )
        check_newest_row(policy)
        return
    require(
        policy.rows != "newest",
        "rows='newest' is for autoregressive models; a step of a diffusion model runs all queries, and none is the newest; "
        "give 'decoded' or 'masked'.",
    )
    cache = None if sampler is None else sampler.cache
    require(
        policy.rows != "all" or cache is None,
        f"rows='all' needs all queries to run, and with cache={cache!r} most steps run a block of them; give 'decoded'.",
    )
    if lengths is not None and len(lengths) and not config.extra_sink:
        check_lengths(policy, int(lengths.min()))


def check_newest_row(policy: MaskSinks) -> None:
    """What ranks a single query, whose attention sums to 1, cannot find a key that exceeds the mean by 1 or more."""
    rule = Threshold(policy.eps) if policy.rule in ("threshold", "top_k_above") else policy.rule
    require(
        policy.rows == "all" or not isinstance(rule, Rule) or not never_finds(rule, newest_row=True),
        f"{rule} would find no key: an autoregressive model is ranked by its newest query, whose attention sums to 1; give "
        "rows='all', or an ε below 1.",
    )


def check_lengths(policy: MaskSinks, length: int) -> None:
    """length: of the shortest sequence."""
    if policy.positions is not None:
        first = min(policy.positions)
        require(first < length, f"there is no token {first} in a sequence of {length}, so nothing would be hidden.")
    elif policy.rule in (None, "top_k"):
        k = policy.count_of(length)
        require(
            k < length,
            f"k = {k}, and a sequence has {length} tokens: queries without any key ignore the mask, so nothing changes.",
        )


def never_finds(rule: Rule, newest_row: bool) -> bool:
    """No attention can pass the rule. newest_row: that of a single query, which sums to 1."""
    if isinstance(rule, Threshold):
        return rule.eps >= 1 and (newest_row or rule.scale == "mean")
    if isinstance(rule, Importance):
        return rule.eps >= 1
    if isinstance(rule, Both):
        return never_finds(rule.first, newest_row) or never_finds(rule.second, newest_row)
    if isinstance(rule, Either):
        return never_finds(rule.first, newest_row) and never_finds(rule.second, newest_row)
    return False
