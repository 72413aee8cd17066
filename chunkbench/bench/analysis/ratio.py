"""The latency ratio of two cases. It uses only rounds of the same memory group, a set of implementations that fit in
memory together."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from chunkbench.bench.analysis.points import measured
from chunkbench.bench.analysis.statistics import IntervalKind, interval, round_means

if TYPE_CHECKING:
    from chunkbench.bench.store.results import Result


class Ratio(NamedTuple):
    """A ratio of two latencies, with an interval from the ratios of single rounds."""

    value: float
    low: float
    high: float
    kind: IntervalKind


def ratio(case: Result, base: Result, confidence: float) -> Ratio | None:
    """Latency of `case` divided by latency of `base`. None if a case was not measured, or if they share no memory
    group.

    In each memory group, the r-th round of `case` is paired with the r-th round of `base`. A disturbance of the machine
    slows both rounds of a pair. So the ratio of a pair varies less than a latency.
    """
    if not (measured(case) and measured(base)):
        return None
    rounds, base_rounds = _by_group(case), _by_group(base)
    shared = sorted(rounds.keys() & base_rounds.keys())
    if not shared:
        return None
    value = median(_flat(rounds, shared)) / median(_flat(base_rounds, shared))
    low, high, kind = interval(_paired(rounds, base_rounds), confidence)
    # The ratio of medians can lie outside the interval for the median of ratios: the interval is widened to hold it.
    return Ratio(value, min(low, value), max(high, value), kind)


def paired_ratios(case: Result, base: Result) -> list[float]:
    """For each pair of rounds of a memory group: the latency of `case` divided by the latency of `base`. Both cases
    must be measured."""
    return _paired(_by_group(case), _by_group(base))


def _paired(rounds: dict[int, list[float]], base_rounds: dict[int, list[float]]) -> list[float]:
    # The lists differ in length where the budget ended before the last rounds of one case.
    shared = sorted(rounds.keys() & base_rounds.keys())
    return [x / y for group in shared for x, y in zip(rounds[group], base_rounds[group], strict=False)]


def _by_group(case: Result) -> dict[int, list[float]]:
    means = round_means(case.rounds)
    groups = case.round_groups or (0,) * len(means)
    rounds: dict[int, list[float]] = {}
    for group, mean in zip(groups, means, strict=True):
        rounds.setdefault(group, []).append(mean)
    return rounds


def _flat(rounds: dict[int, list[float]], groups: list[int]) -> list[float]:
    return [mean for group in groups for mean in rounds[group]]
