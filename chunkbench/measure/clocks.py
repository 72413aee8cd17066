"""The clock guard: a sample taken while a GPU ran below its usual clock is thrown away and taken again."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from statistics import median
from time import sleep
from typing import Protocol

from chunkbench.environment.gpu import Clock, Condition, throttle_words
from chunkbench.store.facts import GpuState

SLOW_BELOW = 0.75
_PAUSES_S = (0.0, 0.01, 0.1)
"""Before each further try: a clock that sagged for a moment is back at once, a hot device has to cool down."""


class ClockReader(Protocol):
    """What the guard asks of a device (`chunkbench.environment.gpu.Nvml`)."""

    def clock(self) -> Clock: ...

    def condition(self) -> Condition: ...


def throttled(sm_mhz: int, usual: Sequence[int]) -> bool:
    """Whether a clock is below 75% of the usual, the median of all clocks seen (in rising order); never of none."""
    return bool(usual) and sm_mhz < SLOW_BELOW * usual[len(usual) // 2]


class ClockGuard:
    """Watches one device for as long as its process lives, so that what is usual is known after a few samples.

    `reader` None: nothing is known, and every sample is kept.
    """

    def __init__(self, reader: ClockReader | None, pause: Callable[[float], None] = sleep) -> None:
        self._reader, self._pause = reader, pause
        self._usual: list[int] = []
        self._clear()

    def take(self, sample: Callable[[], float]) -> float:
        """One sample in microseconds: the first that was not throttled, or, of four that were, the last.

        So there always is one: a device that is throttled for good is measured as it is, and that is recorded.
        """
        taken, clock = sample(), self._clock()
        for pause_s in _PAUSES_S:
            if clock is None or not throttled(clock, self._usual):
                break
            self._discarded += 1
            self._pause(pause_s)
            taken, clock = sample(), self._clock()
        if clock is not None:
            self._slow += throttled(clock, self._usual)
            # Only of samples that are kept: tries of one that is throttled would soon look usual.
            insort(self._usual, clock)
            self._clocks.append(clock)
        return taken

    def finish(self) -> tuple[GpuState | None, int]:
        """What was seen since the last time, and how many samples were discarded."""
        state, discarded = None, self._discarded
        if self._reader is not None:
            found = self._reader.condition()
            state = GpuState(
                sm_mhz=round(median(self._clocks)) if self._clocks else None,
                sm_mhz_lowest=min(self._clocks, default=None),
                slow_samples=self._slow,
                throttled_by=throttle_words(self._reasons),
                **found._asdict(),
            )
        self._clear()
        return state, discarded

    def _clock(self) -> int | None:
        """The clock that the sample just taken ran at, as far as is known."""
        if self._reader is None:
            return None
        clock = self._reader.clock()
        self._reasons |= clock.reasons
        return clock.sm_mhz

    def _clear(self) -> None:
        self._clocks: list[int] = []
        self._reasons = self._discarded = self._slow = 0
