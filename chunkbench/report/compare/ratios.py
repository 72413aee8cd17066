"""Computes HEAD / BASE, the ratio of the times of one case, with its interval."""

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
"""If each side has at least this many processes, processes are compared with each other. Else rounds are compared."""


@dataclass(frozen=True)
class TimeRatio:
    """The ratio HEAD / BASE of the times of one case."""

    unit: Unit
    """What was repeated to get the compared values: pairs of processes, processes, or rounds."""
    shift: Shift | None
    """Logarithm of the ratio with its interval. None if a side has no values."""
    base_units: int
    head_units: int
    disturbed: str = ""
    """`BASE` or `HEAD` if other processes kept the CPUs busy during all measurements of this side. Else empty."""


def interleaved_ratio(base: Sequence[Result], head: Sequence[Result], metric: Metric, confidence: float) -> TimeRatio:
    """Compare the n-th process of BASE with the n-th process of HEAD. Both were measured in turns."""
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
    """Compare processes that were measured at different times. Leaves out measurements during which other processes
    were busy."""
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
    """Whether no other process used this machine's CPUs while the case was measured."""
    noise = case.noise if isinstance(case, SessionResult) else None
    return noise is None or (noise.steal_fraction <= STEAL_ABOVE and noise.foreign_cpus <= FOREIGN_CPUS_ABOVE)


def counts_of(cases: Sequence[Result], metric: Metric) -> set[float | None]:
    """The different values of a counted figure in these processes."""
    return {metric.value(case) for case in cases}


def value_of(cases: Sequence[Result], metric: Metric) -> float | None:
    """Combine the figure of all rounds of these processes. None if the figure is counted and its values differ."""
    if metric.exact:
        counts = counts_of(cases, metric)
        return counts.pop() if len(counts) == 1 else None
    values = [value for case in cases for value in values_of(case, metric)]
    return metric.combine(values) if values else None


def values_of(case: Result, metric: Metric) -> list[float]:
    """The figure of each round. Times in microseconds are at least 0.001, because a clock that does not advance gives
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
    """A factor for the logarithm of a figure: -1 if higher values of the figure are better, else 1. So the product is
    higher if the case is slower."""
    return -1 if metric.better == "higher" else 1
