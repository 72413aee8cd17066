"""Drawn lengths."""

from __future__ import annotations

import math
import random
from statistics import fmean, median, pstdev

import pytest

from chunkbench.traffic.lengths import LENGTHS, LogNormal


def draws(law: LogNormal, count: int = 40_000) -> list[int]:
    chance = random.Random("test")
    return [law.draw(chance) for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "prompt", "answer"),
    # Figure 11 of the PagedAttention paper, to whole tokens.
    [("sharegpt", 161, 338), ("alpaca", 19, 58)],
)
def test_the_published_means(name: str, prompt: int, answer: int) -> None:
    for law, mean in zip(LENGTHS[name], (prompt, answer), strict=True):
        drawn = draws(law)
        assert fmean(drawn) == pytest.approx(mean, rel=0.02)
        assert median(drawn) == pytest.approx(mean / math.exp(0.5), rel=0.05)


@pytest.mark.parametrize("law", [LogNormal(2, 1.0, 9), LogNormal(50, 2.0, 100), LogNormal(8.5, 0.3, 10)])
def test_rounding_and_cutting_do_not_move_the_mean(law: LogNormal) -> None:
    drawn = draws(law)
    assert fmean(drawn) == pytest.approx(law.mean, rel=0.02)
    assert all(isinstance(one, int) for one in drawn)
    assert min(drawn) >= 1
    assert max(drawn) == law.most


def test_sigma_is_the_spread_of_the_logarithms() -> None:
    assert pstdev(math.log(one) for one in draws(LogNormal(1000, 0.5, 10**4))) == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(("mean", "sigma", "most"), [(1, 1, 9), (9, 1, 9), (5, 0, 9), (float("nan"), 1, 9)])
def test_impossible_laws_are_refused(mean: float, sigma: float, most: int) -> None:
    with pytest.raises(ValueError, match="1 < mean < most and sigma > 0"):
        LogNormal(mean, sigma, most)
