"""How much slower one case is than another, formed only between rounds that ran side by side."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from chunkbench.analysis.points import measured
from chunkbench.analysis.statistics import IntervalKind, interval, round_means

if TYPE_CHECKING:
    from chunkbench.store.facts import CaseFacts


class Ratio(NamedTuple):
    """Latency over latency, with an interval from the ratios of single rounds."""

    value: float
    low: float
    high: float
    kind: IntervalKind


def ratio(case: CaseFacts, base: CaseFacts, confidence: float) -> Ratio | None:
    """Latency of `case` over latency of `base`, over the rounds of the memory groups that both ran in.

    The r-th round of a group is paired with the other's r-th round of that group: what disturbs the machine for a
    while hits both, so the ratio of a pair is steadier than either. None when one was not measured or they share no
    group.
    """
    if not (measured(case) and measured(base)):
        return None
    ours, theirs = _by_group(case), _by_group(base)
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    value = median(_flat(ours, shared)) / median(_flat(theirs, shared))
    # Two lists of different length: the later rounds of one were cut off by the budget.
    pairs = [x / y for g in shared for x, y in zip(ours[g], theirs[g], strict=False)]
    low, high, kind = interval(pairs, confidence)
    # The median of ratios and the ratio of medians can differ; an interval that leaves the value out helps nobody.
    return Ratio(value, min(low, value), max(high, value), kind)


def _by_group(case: CaseFacts) -> dict[int, list[float]]:
    means = round_means(case.samples_us)
    groups = case.groups or (0,) * len(means)
    found: dict[int, list[float]] = {}
    for number, mean in zip(groups, means, strict=True):
        found.setdefault(number, []).append(mean)
    return found


def _flat(rounds: dict[int, list[float]], numbers: list[int]) -> list[float]:
    return [mean for number in numbers for mean in rounds[number]]
