"""Fixed pieces of work that are timed beside every round: how fast the machine was just then.

On a shared machine other tenants slow a core or the memory down for seconds at a time, unseen by any counter that a
guest can read. Work that never changes shows it. Comparisons between runs use the rounds beside which it took its
usual time (`chunkbench.analysis.undisturbed`).
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from time import perf_counter_ns

import torch

from chunkbench.store.facts import Yardsticks

_SIZE = 128
_CALLS = 4


class YardstickMeter:
    """Times matrix products that fit a core's own cache, one for each thread, and the sweeps of the caches."""

    def __init__(self, threads: int) -> None:
        self._factor = torch.full((threads, _SIZE, _SIZE), 1 / _SIZE)
        self._product = torch.empty_like(self._factor)
        self._arithmetic_us: list[float] = []
        self._memory_us: list[float] = []

    def arithmetic(self) -> None:
        """Time the products once: 0.1 to 0.5 ms."""
        for _ in range(_CALLS):
            started = perf_counter_ns()
            torch.bmm(self._factor, self._factor, out=self._product)
            self._arithmetic_us.append((perf_counter_ns() - started) / 1000)

    def timed(self, sweep: Callable[[], None]) -> Callable[[], None]:
        """The sweep, timed at every call."""

        def timed_sweep() -> None:
            started = perf_counter_ns()
            sweep()
            self._memory_us.append((perf_counter_ns() - started) / 1000)

        return timed_sweep

    def take(self) -> Yardsticks:
        """Means since the last time."""
        taken = Yardsticks(
            arithmetic_us=fmean(self._arithmetic_us), memory_us=fmean(self._memory_us) if self._memory_us else None
        )
        self._arithmetic_us.clear()
        self._memory_us.clear()
        return taken
