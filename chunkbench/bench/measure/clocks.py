"""The clock guard. It discards a sample that was taken below the GPU's usual clock, and takes the sample again."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from statistics import median
from time import sleep
from typing import Protocol

from chunkbench.bench.environment.gpu import Clock, Condition, throttle_words
from chunkbench.bench.store.results import GpuState

SLOW_BELOW = 0.75
_PAUSES_S = (0.0, 0.01, 0.1)
"""Pause before each further try: a short dip of the clock ends at once, but a hot device needs time to cool down."""


class ClockReader(Protocol):
    """Reads a device's clock and condition for the guard (`chunkbench.bench.environment.gpu.Nvml`)."""

    def clock(self) -> Clock: ...

    def condition(self) -> Condition: ...


def throttled(sm_mhz: int, usual: Sequence[int]) -> bool:
    """Whether a clock is below 75% of the median of `usual`, a sorted list of earlier clocks. False if the list is
    empty."""
    return bool(usual) and sm_mhz < SLOW_BELOW * usual[len(usual) // 2]


class ClockGuard:
    """Watches one device during the whole life of the process, so that it knows the usual clock after a few samples.

    Without a `reader` the clock is unknown, and the guard keeps every sample.
    """

    def __init__(self, reader: ClockReader | None, pause: Callable[[float], None] = sleep) -> None:
        self._reader, self._pause = reader, pause
        self._usual: list[int] = []
        self._clear()

    def take(self, sample: Callable[[], float]) -> float:
        """Take one sample, in microseconds.

        While the clock is throttled, the sample is repeated, at most three times. The last sample is always kept, and
        `finish` reports the throttling.
        """
        sample_us, clock = sample(), self._clock()
        for pause_s in _PAUSES_S:
            if clock is None or not throttled(clock, self._usual):
                break
            self._discarded += 1
            self._pause(pause_s)
            sample_us, clock = sample(), self._clock()
        if clock is not None:
            self._slow += throttled(clock, self._usual)
            # Only the clocks of kept samples: the repeated tries of throttled samples would soon look usual.
            insort(self._usual, clock)
            self._clocks.append(clock)
        return sample_us

    def finish(self) -> tuple[GpuState | None, int]:
        """The state of the GPU and the number of discarded samples, both since the last call of `finish`."""
        state, discarded = None, self._discarded
        if self._reader is not None:
            condition = self._reader.condition()
            state = GpuState(
                sm_mhz=round(median(self._clocks)) if self._clocks else None,
                sm_mhz_lowest=min(self._clocks, default=None),
                slow_samples=self._slow,
                throttled_by=throttle_words(self._reasons),
                **condition._asdict(),
            )
        self._clear()
        return state, discarded

    def _clock(self) -> int | None:
        """The GPU's clock right after a sample; None if unknown."""
        if self._reader is None:
            return None
        clock = self._reader.clock()
        self._reasons |= clock.reasons
        return clock.sm_mhz

    def _clear(self) -> None:
        self._clocks: list[int] = []
        self._reasons = self._discarded = self._slow = 0
