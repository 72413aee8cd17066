"""Computes the ratio of one case's times, HEAD over BASE, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from chunkbench.bench.analysis.noise import FOREIGN_CPUS_ABOVE, STEAL_ABOVE
from chunkbench.bench.store.results import Result, SessionResult
from chunkbench.report.compare.rank_intervals import Shift, between, centre
from chunkbench.report.metric import MICROSECONDS, Metric

Unit = Literal["pair", "process", "round"]
FEWEST_PROCESSES = 5
"""A comparison compares processes if each side has at least this many processes; else it compares rounds."""


@dataclass(frozen=True)
class TimeRatio:
    """The time ratio of one case. `shift` is the logarithm of the time of HEAD divided by the time of BASE."""

    unit: Unit
    """The unit that is repeated and compared: pair, process or round."""
    shift: Shift | None
    """The logarithm of the ratio; None if the two sides have nothing to compare."""
    base_units: int
    head_units: int
    disturbed: str = ""
    """The side that was disturbed by other busy processes during all its measurements, if there is such a side."""


def interleaved_ratio(base: Sequence[Result], head: Sequence[Result], metric: Metric, confidence: float) -> TimeRatio:
    """Compare processes that were measured in interleaved pairs: the n-th of BASE with the n-th of HEAD."""
    steps = _common_steps(base, head)
    pairs = [
        [mine - other for other, mine in zip(_log_costs(b, metric, steps), _log_costs(h, metric, steps), strict=False)]
        for b, h in zip(base, head, strict=False)
    ]
    pairs = [pair for pair in pairs if pair]
    values = pairs[0] if len(base) == 1 and pairs else [median(pair) for pair in pairs]
    unit: Unit = "round" if len(base) == 1 else "pair"
    return TimeRatio(unit, centre(values, confidence) if values else None, len(values), len(values))


def separate_ratio(base: Sequence[Result], head: Sequence[Result], metric: Metric, confidence: float) -> TimeRatio:
    """Compare processes that were measured at different times. Measurements beside busy processes are left out."""
    steps = _common_steps(base, head)
    sides = [[_log_costs(case, metric, steps) for case in side if undisturbed(case)] for side in (base, head)]
    by_process = all(len(side) >= FEWEST_PROCESSES for side in (base, head))
    units = [
        [median(rounds) for rounds in side if rounds] if by_process else [value for rounds in side for value in rounds]
        for side in sides
    ]
    disturbed = "BASE" if not sides[0] else "HEAD" if not sides[1] else ""
    shift = between(units[0], units[1], confidence) if all(units) else None
    return TimeRatio("process" if by_process else "round", shift, len(units[0]), len(units[1]), disturbed)


def undisturbed(case: Result) -> bool:
    """Whether no other process used this machine's CPUs while the case's point was measured."""
    noise = case.noise if isinstance(case, SessionResult) else None
    return noise is None or (noise.steal_fraction <= STEAL_ABOVE and noise.foreign_cpus <= FOREIGN_CPUS_ABOVE)


def counts_of(cases: Sequence[Result], metric: Metric) -> set[float | None]:
    """The values of an exact figure in these processes."""
    return {metric.value(case) for case in cases}


def value_of(cases: Sequence[Result], metric: Metric) -> float | None:
    """The figure over all rounds of these processes; None if the figure is exact and the processes have different
    values."""
    if metric.exact:
        counts = counts_of(cases, metric)
        return counts.pop() if len(counts) == 1 else None
    values = [value for case in cases for value in values_of(case, metric)]
    return metric.combine(values) if values else None


def values_of(case: Result, metric: Metric) -> list[float]:
    """The figure of each round. Microseconds are raised to at least 0.001, because a clock that did not advance gives
    0."""
    known = metric.known(case)
    return [max(value, 1e-3) for value in known] if metric.unit is MICROSECONDS else known


def _common_steps(base: Sequence[Result], head: Sequence[Result]) -> set[int]:
    """Steps that every process of both sides timed."""
    return set.intersection(*(set(case.round_steps) for case in (*base, *head)))


def _log_costs(case: Result, metric: Metric, steps: set[int]) -> list[float]:
    """For each round, the logarithm of the figure, or of its inverse if higher is better. For latency and token rate:
    the logarithm of the mean time over the steps `steps`. Empty if a value is 0 or less."""
    if metric.name in ("latency", "token_rate"):
        columns = [index for index, step in enumerate(case.round_steps) if step in steps]
        return [math.log(fmean(samples[index] for index in columns)) for samples in case.rounds] if columns else []
    values = values_of(case, metric)
    return [sign_of(metric) * math.log(value) for value in values] if all(value > 0 for value in values) else []


def sign_of(metric: Metric) -> int:
    """1 if lower values are better, -1 if higher values are better: a ratio of rates is the inverse of a ratio of
    costs."""
    return -1 if metric.better == "higher" else 1
