"""The machines' own ratio: how much of a time ratio two machines explain, by fixed work that both did."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from chunkbench.regression.matching import yardsticks_of
from chunkbench.store.results import Peaks, Result, TimedResult


class OwnRatio(NamedTuple):
    """Time of fixed work on HEAD's machine over its time on BASE's machine: the least and the most."""

    low: float
    high: float

    def remove_from(self, low: float, high: float) -> tuple[float, float]:
        """The interval of a shift without all that the machines may explain. Shifts are logarithms of ratios."""
        return low - math.log(self.high), high - math.log(self.low)


NO_CHANGE = OwnRatio(1.0, 1.0)
"""The own ratio where rounds are compared that ran in the same state of one machine, or raw ratios are judged."""


def _peaks(case: Result) -> tuple[Peaks, ...]:
    return case.peaks if isinstance(case, TimedResult) else ()


def _arithmetic(case: Result) -> Iterator[float]:
    return (yardsticks.arithmetic_us for yardsticks in yardsticks_of(case))


def _sweeps(case: Result) -> Iterator[float]:
    return (yardsticks.memory_us for yardsticks in yardsticks_of(case) if yardsticks.memory_us is not None)


def _reading(case: Result) -> Iterator[float]:
    return (1 / peak.read_bytes_per_s for peak in _peaks(case))


def _products(case: Result) -> Iterator[float]:
    return (1 / peak.matrix_flops_per_s for peak in _peaks(case))


_WORK: Mapping[str, Callable[[Result], Iterator[float]]] = {
    "arithmetic yardstick": _arithmetic,
    "memory yardstick": _sweeps,
    "read bandwidth": _reading,
    "matrix rate": _products,
}


def work_ratios(base: Sequence[Result], head: Sequence[Result]) -> dict[str, float]:
    """Kind of fixed work -> its time for HEAD over its time for BASE, where both sides did it: yardsticks and probed
    peaks."""
    ratios = {}
    for name, times_of in _WORK.items():
        base_times = [time for case in base for time in times_of(case)]
        head_times = [time for case in head for time in times_of(case)]
        if base_times and head_times and min(*base_times, *head_times) > 0:
            ratios[name] = median(head_times) / median(base_times)
    return ratios


def own_ratio(base: Sequence[Result], head: Sequence[Result]) -> OwnRatio | None:
    """The own ratio, from the fixed work that both sides did. None if they have none in common.

    Each kind of fixed work gives a ratio. An implementation depends on some of them and not on others, so the result is
    the least and the most.
    """
    ratios = work_ratios(base, head).values()
    return OwnRatio(min(ratios), max(ratios)) if ratios else None
