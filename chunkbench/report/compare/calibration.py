"""Estimates how much of a ratio of times the machine explains, from fixed work that was timed beside both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from chunkbench.bench.store.results import Calibration, Peaks, Result, TimedResult


class CalibrationRatio(NamedTuple):
    """Time of fixed work while HEAD was measured divided by its time while BASE was measured: the lowest and the
    highest ratio of all kinds of fixed work."""

    low: float
    high: float

    def remove_from(self, low: float, high: float) -> tuple[float, float]:
        """The interval of a shift after the part that the machine may explain is subtracted. Shifts are logarithms of
        ratios."""
        return low - math.log(self.high), high - math.log(self.low)


NO_CHANGE = CalibrationRatio(1.0, 1.0)
"""The calibration ratio if both sides were interleaved, or if raw ratios are judged."""


def _peaks(case: Result) -> tuple[Peaks, ...]:
    return case.peaks if isinstance(case, TimedResult) else ()


def _kernels(case: Result) -> tuple[Calibration, ...]:
    return case.calibration if isinstance(case, TimedResult) else ()


def _arithmetic(case: Result) -> Iterator[float]:
    return (entry.arithmetic_us for entry in _kernels(case))


def _sweeps(case: Result) -> Iterator[float]:
    return (entry.memory_us for entry in _kernels(case) if entry.memory_us is not None)


def _reading(case: Result) -> Iterator[float]:
    return (1 / peak.read_bytes_per_s for peak in _peaks(case))


def _products(case: Result) -> Iterator[float]:
    return (1 / peak.matrix_flops_per_s for peak in _peaks(case))


_WORK: Mapping[str, Callable[[Result], Iterator[float]]] = {
    "arithmetic": _arithmetic,
    "memory sweep": _sweeps,
    "read bandwidth": _reading,
    "matrix rate": _products,
}


def work_ratios(base: Sequence[Result], head: Sequence[Result]) -> dict[str, float]:
    """For each kind of fixed work (calibration kernels and probes of peaks) that both sides did: its time while HEAD
    was measured divided by its time while BASE was measured."""
    ratios = {}
    for name, times_of in _WORK.items():
        base_times = [time for case in base for time in times_of(case)]
        head_times = [time for case in head for time in times_of(case)]
        if base_times and head_times and min(*base_times, *head_times) > 0:
            ratios[name] = median(head_times) / median(base_times)
    return ratios


def calibration_ratio(base: Sequence[Result], head: Sequence[Result]) -> CalibrationRatio | None:
    """The calibration ratio, from the fixed work that both sides did. None if the sides have no fixed work in common.

    Each kind of fixed work gives a ratio. An implementation depends on some kinds and not on others, so the result has
    the lowest and the highest ratio.
    """
    ratios = work_ratios(base, head).values()
    return CalibrationRatio(min(ratios), max(ratios)) if ratios else None
