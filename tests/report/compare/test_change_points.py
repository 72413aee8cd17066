from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkbench.report.compare.change_points import change_points


def test_finds_levels_and_their_shifts() -> None:
    rng = np.random.default_rng(1)
    series = np.r_[rng.normal(0.0, 0.02, 12), rng.normal(0.1, 0.02, 10), rng.normal(0.03, 0.02, 9)]
    points = change_points(series.tolist(), 0.01, math.log(1.05))
    assert [point.place for point in points] == [12, 22]
    assert points[0].shift > 0.08
    assert points[1].shift < -0.05
    assert all(point.chance <= 0.01 for point in points)


def test_an_early_change_is_found_at_the_confidence_of_six_series() -> None:
    rng = np.random.default_rng(3)
    series = np.r_[rng.normal(0.0, 0.01, 5), rng.normal(-0.22, 0.01, 11)].tolist()
    assert [point.place for point in change_points(series, 0.01 / 6, math.log(1.05))] == [5]


def test_an_outlier_is_no_level() -> None:
    series = [0.0, 0.01, -0.01, 0.0, 0.02, 0.8, 0.0, 0.01, -0.02, 0.0, 0.01]
    assert change_points(series, 0.01, 0.05) == []


def test_a_shift_within_the_threshold_is_no_change() -> None:
    rng = np.random.default_rng(2)
    series = np.r_[rng.normal(0.0, 0.002, 15), rng.normal(0.03, 0.002, 15)].tolist()
    assert change_points(series, 0.01, 0.05) == []
    assert len(change_points(series, 0.01, 0.02)) == 1


def test_five_runs_are_too_few() -> None:
    assert change_points([0.0, 0.0, 0.0, 1.0, 1.0], 0.05, 0.0) == []


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=5, deadline=None)
def test_noise_alone_is_rarely_a_change(seed: int) -> None:
    rng = np.random.default_rng(seed)
    wrong = sum(bool(change_points(rng.lognormal(0, 0.3, 20).tolist(), 0.05, 0.0)) for _ in range(60))
    assert wrong <= 12  # 3 are expected; the chance of 12 is 1 in 30,000
