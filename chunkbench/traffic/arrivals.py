"""Random due times of requests, and random lengths of prompts and answers."""

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
    """The distribution of the gaps between the due times of requests.

    poisson: exponential gaps, as in section 4.2 of the paper; gamma: gamma-distributed gaps; constant: equal gaps.
    The request rate sets the mean gap.
    """

    kind: Literal["poisson", "gamma", "constant"] = "poisson"
    spread: float = 1.0
    """For gamma: standard deviation of the gaps divided by their mean. 1 equals poisson; a larger value gives bursts
    of requests."""

    def __post_init__(self) -> None:
        if not 1e-3 <= self.spread <= 1e3:  # beyond, gaps of the gamma law overflow
            raise ValueError(f"the spread of arrivals must be from 0.001 to 1000, not {self.spread}")


def due_times(arrivals: Arrivals, rate: float, count: int, seed: int | str) -> list[float]:
    """Draw the due times of `count` requests, in seconds. The first is 0; `rate` is the mean number of requests per
    second.

    With the same seed, another rate only stretches the times. Raises ValueError.
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
    """A distribution of numbers of tokens. A log-normal number is rounded, then limited to the range from 1 to `most`.

    Raises ValueError.
    """

    mean: float
    """Mean of the drawn numbers of tokens, after rounding and limiting."""
    sigma: float
    """Standard deviation of the number's logarithm before rounding. The median is about `mean * exp(-sigma**2 / 2)`."""
    most: int

    def __post_init__(self) -> None:
        if not (1 < self.mean < self.most and self.sigma > 0):
            raise ValueError(f"a length needs 1 < mean < most and sigma > 0, not {self}")

    def draw(self, chance: random.Random) -> int:
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
    prompt: LogNormal
    answer: LogNormal


LENGTHS: Mapping[str, Lengths] = {
    "sharegpt": Lengths(LogNormal(161, 1.0, 2048), LogNormal(338, 1.0, 2048)),
    "alpaca": Lengths(LogNormal(19, 1.0, 2048), LogNormal(58, 1.0, 2048)),
}
"""Lengths like those of ShareGPT and Alpaca. The means come from the PagedAttention paper. We chose the rest: a
log-normal distribution, sigma = 1 (half of the lengths lie within a factor of 2 of the median), and at most 2048
tokens, the context of that paper's models."""
