"""When requests are due."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal


@dataclass(frozen=True)
class Arrivals:
    """How the gaps between requests are distributed, around the same mean.

    poisson: exponential gaps, as in section 4.2 of the paper; gamma: gaps of the given spread; constant: equal gaps.
    """

    kind: Literal["poisson", "gamma", "constant"] = "poisson"
    spread: float = 1.0
    """gamma only: standard deviation of the gaps over their mean. 1 is poisson; above 1 requests come in bursts."""

    def __post_init__(self) -> None:
        if not 1e-3 <= self.spread <= 1e3:  # beyond, gaps of the gamma law overflow
            raise ValueError(f"the spread of arrivals must be from 0.001 to 1000, not {self.spread}")


def due_times(arrivals: Arrivals, rate: float, count: int, seed: int | str) -> list[float]:
    """Seconds at which `count` requests are due, at `rate` requests per second in the mean. The first one is due at 0.

    The same seed gives the same sequence of gaps in units of 1 / rate at every rate. Raises ValueError.
    """
    if not rate > 0:
        raise ValueError(f"the rate must be above 0 requests per second, not {rate}")
    chance = random.Random(f"arrivals {seed}")
    gaps = [_gap(arrivals, chance) / rate for _ in range(count - 1)]
    return list(accumulate(gaps, initial=0.0))[:count]


def _gap(arrivals: Arrivals, chance: random.Random) -> float:
    """One gap with mean 1."""
    if arrivals.kind == "constant":
        return 1.0
    if arrivals.kind == "poisson":
        return chance.expovariate(1.0)
    shape = arrivals.spread**-2
    return chance.gammavariate(shape, 1 / shape)
