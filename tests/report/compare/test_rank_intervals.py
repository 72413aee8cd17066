"""The intervals agree with scipy's exact tests, and contain a simulated shift as often as they claim."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, mannwhitneyu, wilcoxon

from chunkbench.report.compare.rank_intervals import between, centre

Noise = Callable[[np.random.Generator, int], np.ndarray]

NOISES: dict[str, Noise] = {
    "skewed": lambda rng, n: rng.lognormal(0.0, 0.8, n) * 0.05,
    "two peaks": lambda rng, n: rng.normal(0.0, 0.01, n) + 0.2 * (rng.random(n) < 0.4),
    "heavy tail": lambda rng, n: rng.standard_t(1.5, n) * 0.02,
    "normal": lambda rng, n: rng.normal(0.0, 0.03, n),
}
TRIALS = 250


@given(
    noise=st.sampled_from(sorted(NOISES)),
    seed=st.integers(0, 2**32 - 1),
    base=st.integers(6, 40),
    head=st.integers(6, 25),
    shift=st.floats(-0.5, 0.5),
    confidence=st.sampled_from([0.9, 0.95, 0.99]),
)
@settings(max_examples=30, deadline=None)
def test_holds_the_true_shift_as_often_as_it_claims(
    noise: str, seed: int, base: int, head: int, shift: float, confidence: float
) -> None:
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(TRIALS):
        interval = between(NOISES[noise](rng, base), NOISES[noise](rng, head) + shift, confidence)
        hits += interval.low <= shift <= interval.high
    # If the claim holds, the chance of fewer hits is one in a million.
    assert hits >= binom.ppf(1e-6, TRIALS, confidence)


@given(
    noise=st.sampled_from(sorted(NOISES)),
    seed=st.integers(0, 2**32 - 1),
    pairs=st.integers(8, 40),
    shift=st.floats(-0.5, 0.5),
    confidence=st.sampled_from([0.9, 0.95, 0.99]),
)
@settings(max_examples=30, deadline=None)
def test_pairs_hold_the_true_shift_as_often_as_they_claim(
    noise: str, seed: int, pairs: int, shift: float, confidence: float
) -> None:
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(TRIALS):
        both = NOISES[noise](rng, 2 * pairs)
        interval = centre(both[:pairs] + shift - both[pairs:], confidence)
        hits += interval.low <= shift <= interval.high
    assert hits >= binom.ppf(1e-6, TRIALS, confidence)


def test_three_rounds_have_no_interval_of_95_percent() -> None:
    """A bootstrap of three rounds would have one, and cover only 76%."""
    interval = between([1.0, 1.1, 0.9], [1.0, 1.2, 1.1], 0.95)
    assert not interval.enough
    assert (interval.low, interval.high) == (-math.inf, math.inf)
    assert interval.value == pytest.approx(0.1)
    assert not centre([0.1, 0.2, 0.1], 0.95).enough


@pytest.mark.parametrize(("base", "head"), [(7, 5), (12, 12), (30, 10)])
def test_an_interval_ends_where_the_exact_test_stops_rejecting(base: int, head: int) -> None:
    rng = np.random.default_rng(base)
    x, y = rng.normal(size=base), rng.normal(size=head) + 0.3
    interval = between(x, y, 0.95)
    assert interval.enough

    def chance(shift: float) -> float:
        return float(mannwhitneyu(y - shift, x, method="exact").pvalue)

    assert chance(interval.low - 1e-9) <= 0.05 < chance(interval.low + 1e-9)
    assert chance(interval.high + 1e-9) <= 0.05 < chance(interval.high - 1e-9)


def test_an_interval_of_pairs_ends_where_the_exact_test_stops_rejecting() -> None:
    differences = np.random.default_rng(3).normal(0.1, 1.0, 14)
    interval = centre(differences, 0.95)

    def chance(shift: float) -> float:
        return float(wilcoxon(differences - shift, method="exact").pvalue)

    assert chance(interval.low - 1e-9) <= 0.05 < chance(interval.low + 1e-9)
    assert chance(interval.high + 1e-9) <= 0.05 < chance(interval.high - 1e-9)


def test_many_values_use_the_normal_approximation_without_a_jump() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=60), rng.normal(size=60)
    exact = between(x[:24], y[:24], 0.95)
    large = between(x, y, 0.95)
    assert large.high - large.low < exact.high - exact.low
    expected = 2 * 1.96 * math.sqrt(2 / 60)
    assert large.high - large.low == pytest.approx(expected, rel=0.35)


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(ValueError, match="both sides"):
        between([], [1.0], 0.95)
    with pytest.raises(ValueError, match="at least one"):
        centre([], 0.95)
