"""Random distributions of the times at which requests are due, and of their lengths."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class Arrivals:
    """The distribution of the gaps between requests. All distributions have the same mean.

    poisson: exponential gaps, as in section 4.2 of the paper; gamma: gaps of the given spread; constant: equal gaps.
    """

    kind: Literal["poisson", "gamma", "constant"] = "poisson"
    spread: float = 1.0
    """gamma only: standard deviation of the gaps divided by their mean. 1 is the same as poisson; above 1 requests come
    in bursts."""

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


@dataclass(frozen=True)
class LogNormal:
    """A distribution of numbers of tokens from 1 to `most`: a log-normal number is rounded, then limited to this range.

    Raises ValueError.
    """

    mean: float
    """Mean of the draws, after rounding and limiting."""
    sigma: float
    """Standard deviation of the logarithm before rounding. The median of the draws is about
    `mean * exp(-sigma**2 / 2)`."""
    most: int

    def __post_init__(self) -> None:
        if not (1 < self.mean < self.most and self.sigma > 0):
            raise ValueError(f"a length needs 1 < mean < most and sigma > 0, not {self}")

    def draw(self, chance: random.Random) -> int:
        """Draw one length, in tokens."""
        return min(max(round(chance.lognormvariate(self._mu, self.sigma)), 1), self.most)

    @cached_property
    def _mu(self) -> float:
        """Mean of the logarithm, found by bisection, so that rounding and limiting do not change the mean of the
        draws."""
        low, high = -4 * self.sigma, math.log(self.most) + 4 * self.sigma
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self._mean_of(middle) < self.mean else (low, middle)
        return low

    def _mean_of(self, mu: float) -> float:
        """Mean of the draws: the sum of the chances that a draw is at least 1, 2, ..., most."""
        scale = self.sigma * math.sqrt(2)
        return 1 + sum(math.erfc((math.log(n - 0.5) - mu) / scale) / 2 for n in range(2, self.most + 1))


class Lengths(NamedTuple):
    """The distributions of prompt and answer lengths of a workload."""

    prompt: LogNormal
    answer: LogNormal


LENGTHS: Mapping[str, Lengths] = {
    "sharegpt": Lengths(LogNormal(161, 1.0, 2048), LogNormal(338, 1.0, 2048)),
    "alpaca": Lengths(LogNormal(19, 1.0, 2048), LogNormal(58, 1.0, 2048)),
}
"""Lengths of ShareGPT and Alpaca. The means are those of the PagedAttention paper. The rest is our choice: the
log-normal form, sigma = 1 (half of the lengths lie within a factor of 2 of the median), and at most 2048 tokens, the
context of the models in that paper."""
