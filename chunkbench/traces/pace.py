"""When the requests of a trace are due in a replay."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from chunkbench.traces.arrivals import Arrivals, due_times


@dataclass(frozen=True)
class Pace:
    """What a replay changes in the times of a trace. Raises ValueError."""

    rate: float | None = None
    """Requests per second in the mean: their number less one over the time from the first to the last. All times are
    multiplied by one number to reach it. None: the rate of the trace."""
    coarse: Literal["bursts", "spread"] = "bursts"
    """What to make of requests with equal times. bursts: they are due together; spread: they are due at even chance
    anywhere between the time that the trace gives and the next one in the trace. The last one reaches as far as the one
    before it. Requests of one time keep their order."""
    arrivals: Arrivals | None = None
    """Drawn times instead of those of the trace, at `rate`."""
    seed: int | str = 0

    def __post_init__(self) -> None:
        if self.rate is not None and not self.rate > 0:
            raise ValueError(f"the rate must be above 0 requests per second, not {self.rate}")
        if self.arrivals is not None and self.rate is None:
            raise ValueError("drawn arrivals need a rate")


def paced(times: Sequence[float], clock: Sequence[float], pace: Pace) -> list[float]:
    """Due times of requests that have these ascending times in a trace; the first one is due at 0 s.

    `clock` are the times of all requests of the trace, also of those that are not replayed. Raises ValueError.
    """
    if pace.arrivals is not None and pace.rate is not None:
        return due_times(pace.arrivals, pace.rate, len(times), pace.seed)
    if pace.coarse == "spread":
        times = _spread(times, clock, pace.seed)
    moved = [time - times[0] for time in times]
    if pace.rate is None or len(moved) == 1:
        return moved
    if moved[-1] == 0:
        raise ValueError("all requests have the same time: no factor gives them a rate, so let arrivals be drawn")
    factor = (len(moved) - 1) / (moved[-1] * pace.rate)
    return [time * factor for time in moved]


def _spread(times: Sequence[float], clock: Sequence[float], seed: int | str) -> list[float]:
    ticks = sorted(set(clock))
    widths = [later - earlier for earlier, later in pairwise(ticks)]
    width = dict(zip(ticks, [*widths, *widths[-1:]], strict=False))
    chance = random.Random(f"spread {seed}")
    # Sorted, because requests of one time keep their order.
    return sorted(time + chance.random() * width.get(time, 0.0) for time in times)
