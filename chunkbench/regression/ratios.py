"""The ratio of one case's times, HEAD over BASE, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal

from chunkbench.analysis.noise import FOREIGN_CPUS_ABOVE, STEAL_ABOVE
from chunkbench.regression.rank_intervals import Shift, between, centre
from chunkbench.store.results import Result, SessionResult, TimedResult

if TYPE_CHECKING:
    from chunkbench.regression.verdicts import Metric

Unit = Literal["pair", "process", "round"]
FEWEST_PROCESSES = 5
"""Processes are the unit of a comparison if each side has at least so many; else rounds are."""


@dataclass(frozen=True)
class TimeRatio:
    """The time ratio of one case. Its shift is the logarithm of the ratio, head over base."""

    unit: Unit
    """What is repeated."""
    shift: Shift | None
    """None if nothing of one side can be compared with anything of the other."""
    base_units: int
    head_units: int
    disturbed: str = ""
    """The side, if any, for which other processes were busy during every measurement."""


def interleaved_ratio(base: Sequence[Result], head: Sequence[Result], metric: Metric, confidence: float) -> TimeRatio:
    """Compare processes that were measured in interleaved pairs: the n-th of BASE with the n-th of HEAD."""
    steps = _common_steps(base, head)
    pairs = [
        [mine - other for other, mine in zip(_log_times(b, metric, steps), _log_times(h, metric, steps), strict=False)]
        for b, h in zip(base, head, strict=False)
    ]
    pairs = [pair for pair in pairs if pair]
    values = pairs[0] if len(base) == 1 and pairs else [median(pair) for pair in pairs]
    unit: Unit = "round" if len(base) == 1 else "pair"
    return TimeRatio(unit, centre(values, confidence) if values else None, len(values), len(values))


def separate_ratio(base: Sequence[Result], head: Sequence[Result], metric: Metric, confidence: float) -> TimeRatio:
    """Compare processes that were measured at other times. Those beside busy processes are left out."""
    steps = _common_steps(base, head)
    sides = [[_log_times(case, metric, steps) for case in side if undisturbed(case)] for side in (base, head)]
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


def counts_of(cases: Sequence[Result], metric: Metric) -> set[int | None]:
    """What the processes state of `kv_bytes` or `work_items`; None where a kind of work has no such count."""
    return {getattr(case, metric) if isinstance(case, SessionResult) else None for case in cases}


def value_of(cases: Sequence[Result], metric: Metric) -> float | None:
    """The metric over all rounds of these processes.

    The median of times and rates. A count itself, or None if no process states it or the processes state different
    counts.
    """
    if metric in ("kv_bytes", "work_items"):
        counts = counts_of(cases, metric)
        count = counts.pop() if len(counts) == 1 else None
        return None if count is None else float(count)
    times = [math.exp(value) for case in cases for value in _log_times(case, metric, set(case.round_steps))]
    if not times:
        return None
    return cases[0].batch_size * 1e6 / median(times) if metric == "token_rate" else median(times)


def _common_steps(base: Sequence[Result], head: Sequence[Result]) -> set[int]:
    """Steps that every process of both sides timed."""
    return set.intersection(*(set(case.round_steps) for case in (*base, *head)))


def _log_times(case: Result, metric: Metric, steps: set[int]) -> list[float]:
    """[round] logarithm of the mean time: over the steps `steps`, or over all steps of append and plan."""
    if metric in ("append", "plan"):
        if not isinstance(case, TimedResult):
            return []
        means = [fmean(samples) for samples in (case.append_samples_us if metric == "append" else case.plan_samples_us)]
    else:
        columns = [index for index, step in enumerate(case.round_steps) if step in steps]
        means = [fmean(samples[index] for index in columns) for samples in case.rounds] if columns else []
    return [math.log(max(mean, 1e-3)) for mean in means]  # a clock that did not advance gives 0
