from __future__ import annotations

import random
import statistics as stdlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.analysis.statistics import (
    enough,
    interval,
    latency_us,
    timed_steps,
)

times = st.floats(min_value=1e-3, max_value=1e9)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_confidence_is_a_probability_and_rounds_are_needed(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        interval([1.0], confidence)
    with pytest.raises(ValueError, match="no rounds"):
        interval([], 0.95)
    with pytest.raises(ValueError, match="no rounds"):
        latency_us([])


@pytest.mark.parametrize(
    ("confidence", "ranks"),
    [
        # From published tables of distribution-free intervals for a median.
        (0.95, {6: 1, 8: 1, 9: 2, 10: 2, 12: 3, 15: 4, 20: 6, 25: 8, 50: 18}),
        (0.99, {8: 1, 10: 1, 20: 4}),
    ],
)
def test_ranks_of_the_order_statistics(confidence: float, ranks: dict[int, int]) -> None:
    for rounds, rank in ranks.items():
        means = [float(i) for i in range(1, rounds + 1)]
        random.Random(1).shuffle(means)
        assert interval(means, confidence) == (rank, rounds + 1 - rank, "confidence")


@pytest.mark.parametrize(("rounds", "confidence"), [(1, 0.95), (3, 0.95), (5, 0.95), (5, 0.8), (6, 0.99), (7, 0.99)])
def test_too_few_rounds_give_the_range(rounds: int, confidence: float) -> None:
    means = [float(i) for i in range(1, rounds + 1)]
    assert interval(means, confidence) == (1.0, rounds, "range")


def test_thousands_of_rounds_do_not_underflow() -> None:
    low, high, kind = interval([float(i) for i in range(5000)], 0.95)
    # Normal approximation: n/2 -+ 1.96 sqrt(n)/2.
    assert low == pytest.approx(2500 - 69, abs=3)
    assert high == pytest.approx(2500 + 69, abs=3)
    assert kind == "confidence"


@given(st.lists(times, min_size=1, max_size=40), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_an_interval_holds_the_median(means: list[float], confidence: float) -> None:
    low, high, _ = interval(means, confidence)
    assert min(means) <= low <= stdlib.median(means) <= high <= max(means)


def test_stop_only_when_every_case_is_narrow_enough() -> None:
    narrow, wide = [100.0, 101.0, 99.0], [100.0, 150.0, 99.0]
    assert enough([narrow, narrow], 3, 0.02, 0.95)
    assert not enough([narrow, wide], 3, 0.02, 0.95)
    assert not enough([narrow, narrow[:2]], 3, 0.02, 0.95)
    assert not enough([[]], 0, 0.02, 0.95)
    assert enough([[*[100.0, 100.1, 99.9] * 6, 500.0]], 3, 0.02, 0.95)  # past an outlier


@given(st.integers(1, 5000), st.integers(0, 6000))
def test_timed_steps_are_spread_evenly(n_c: int, count: int) -> None:
    steps = timed_steps(n_c, count)
    assert len(steps) == min(n_c, max(count, 8))
    assert steps[0] == 1
    assert steps[-1] == n_c
    gaps = [b - a for a, b in pairwise(steps)]
    assert not gaps or (min(gaps) >= 1 and max(gaps) - min(gaps) <= 1)
