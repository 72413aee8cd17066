"""Estimates how much the machine's speed differed between BASE and HEAD, from fixed work that was timed for both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from chunkbench.bench.store.results import Calibration, Peaks, Result, TimedResult


class CalibrationRatio(NamedTuple):
    """How much slower the machine itself was for HEAD. For each kind of fixed work, its time for HEAD is divided by its
    time for BASE. `low` and `high` are the lowest and the highest of these ratios."""

    low: float
    high: float

    def remove_from(self, low: float, high: float) -> tuple[float, float]:
        """The interval of the logarithm of HEAD / BASE without the change of the machine's speed. `low` and `high`: the
        measured interval. The result is wider, because the change of the machine's speed is only known as a range."""
        return low - math.log(self.high), high - math.log(self.low)


NO_CHANGE = CalibrationRatio(1.0, 1.0)
"""The ratio of a machine whose speed stayed the same. It is used for interleaved measurements and for raw ratios."""


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
    """Kind of fixed work -> its time for HEAD divided by its time for BASE, for all kinds that both sides timed."""
    ratios = {}
    for name, times_of in _WORK.items():
        base_times = [time for case in base for time in times_of(case)]
        head_times = [time for case in head for time in times_of(case)]
        if base_times and head_times and min(*base_times, *head_times) > 0:
            ratios[name] = median(head_times) / median(base_times)
    return ratios


def calibration_ratio(base: Sequence[Result], head: Sequence[Result]) -> CalibrationRatio | None:
    """The lowest and the highest ratio of `work_ratios`; None if there is no ratio. Both are needed, because
    implementations depend on different kinds of work.
    """
    ratios = work_ratios(base, head).values()
    return CalibrationRatio(min(ratios), max(ratios)) if ratios else None
