"""Times fixed pieces of work in every round. Their times show the current speed of the machine.

On a shared machine, other tenants can slow down a core or the memory for seconds. A virtual machine has no counter of
such slowdowns, but fixed work takes longer during a slowdown. Comparisons of runs use only rounds with similar
calibration times (`chunkbench.report.compare.calibration`).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from time import perf_counter_ns

import torch

from chunkbench.bench.store.results import Calibration

_SIZE = 128
_CALLS = 4


class CalibrationMeter:
    """Times two pieces of work: matrix products in each core's private cache, and sweeps of the caches."""

    def __init__(self, threads: int) -> None:
        self._factor = torch.full((threads, _SIZE, _SIZE), 1 / _SIZE)
        self._product = torch.empty_like(self._factor)
        self._arithmetic_us: list[float] = []
        self._memory_us: list[float] = []

    def arithmetic(self) -> None:
        """Time the matrix products. This takes 0.1 to 0.5 ms."""
        for _ in range(_CALLS):
            started = perf_counter_ns()
            torch.bmm(self._factor, self._factor, out=self._product)
            self._arithmetic_us.append((perf_counter_ns() - started) / 1000)

    def timed(self, sweep: Callable[[], None]) -> Callable[[], None]:
        """Wrap a sweep so that each call of it is timed."""

        def timed_sweep() -> None:
            started = perf_counter_ns()
            sweep()
            self._memory_us.append((perf_counter_ns() - started) / 1000)

        return timed_sweep

    def take(self) -> Calibration:
        """Mean times since the last call of `take`."""
        means = Calibration(
            arithmetic_us=fmean(self._arithmetic_us), memory_us=fmean(self._memory_us) if self._memory_us else None
        )
        self._arithmetic_us.clear()
        self._memory_us.clear()
        return means
