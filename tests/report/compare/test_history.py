"""Histories of runs: change points and intervals of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, mannwhitneyu, wilcoxon

from chunkbench.bench.store import Manifest, Noise, Run, open_run
from chunkbench.report.compare.change_points import change_points
from chunkbench.report.compare.history import history
from chunkbench.report.compare.rank_intervals import between, centre
from tests.invented_runs import MakeFacts


def recording(facts: MakeFacts, number: int, us: float, model: str = "A", **changes: Any) -> list[Run]:
    manifest = {
        "schema_version": 4,
        "started_at": f"2026-01-{number:02}T00:00:00+00:00",
        "git": {"commit": f"{number:040x}", "dirty": False},
        "environment": {"cpu": {"model": model}},
    }
    made = Manifest.model_validate(manifest)
    cases = [facts(key="k", samples_us=((us, us),) * 3, **({"machine": made.only_machine} | changes))]
    return [Run(Path("run"), made, cases)]


def test_a_change_is_found_with_its_commit(facts: MakeFacts) -> None:
    rng = np.random.default_rng(0)
    levels = [100.0] * 8 + [120.0] * 8
    runs = [recording(facts, 1 + i, us * rng.lognormal(0, 0.02)) for i, us in enumerate(levels)]
    (series,) = history(list(reversed(runs)), "latency", 0.05, 0.99)  # history sorts the runs by time
    assert [change.index for change in series.changes] == [8]
    assert series.changes[0].commit == f"{9:040x}"[:12]
    assert 1.15 < series.changes[0].ratio < 1.25
    assert [m.started_at for m in series.measurements] == sorted(m.started_at for m in series.measurements)


def test_each_machine_has_its_own_series(facts: MakeFacts) -> None:
    runs = [recording(facts, 1 + i, 100.0 if i < 6 else 300.0, "A" if i < 6 else "B") for i in range(12)]
    all_series = history(runs, "latency", 0.05, 0.99)
    assert [(series.machine, len(series.measurements), series.changes) for series in all_series] == [
        (1, 6, ()),
        (2, 6, ()),
    ]


def test_equal_machines_with_different_ids_are_two_machines(facts: MakeFacts) -> None:
    runs = [recording(facts, 1 + i, 100.0, machine=f"host-{i % 2}") for i in range(4)]
    assert [(series.machine, len(series.measurements)) for series in history(runs, "latency", 0.05, 0.99)] == [
        (1, 2),
        (2, 2),
    ]


def test_only_undisturbed_processes_count_if_there_are_any(facts: MakeFacts) -> None:
    runs = recording(facts, 1, 100.0) + recording(facts, 1, 900.0, noise=Noise(foreign_cpus=1.0))
    (series,) = history([runs], "latency", 0.05, 0.99)
    assert series.measurements[0].latency_us == pytest.approx(100.0)
    assert series.measurements[0].undisturbed


@pytest.mark.parametrize(
    ("name", "value", "unit"),
    [("kv_bytes", 64.0, "bytes"), ("token_rate", 10_000.0, "tokens/s"), ("append", 1e-3, "us")],
)
def test_other_figures_have_a_history(facts: MakeFacts, name: str, value: float, unit: str) -> None:
    values = {"kv_bytes": 64, "batch_size": 1, "append_samples_us": ((0.0, 0.0),) * 3}
    runs = [recording(facts, 1 + i, 100.0, **values) for i in range(2)]
    (series,) = history(runs, name, 0.05, 0.99)
    assert [measurement.value for measurement in series.measurements] == pytest.approx([value] * 2)
    assert {measurement.latency_us for measurement in series.measurements} == {None}
    assert (series.metric, series.unit) == (name, unit)


def test_kinds_of_work_have_figures_of_the_same_name() -> None:
    paths = ("replays/replay-table4", "epyc-zen4-2-cores/table4-smollm2", "xeon-amx-2-cores/table4-ablations")
    recorded = [open_run(Path(__file__).parents[3] / "results" / "recorded" / path) for path in paths]
    all_series = history([[run] for run in recorded], "first_token_p50", 0.05, 0.99)
    assert len(all_series) == sum(len(run.cases) for run in recorded)
    assert {series.unit for series in all_series} == {"s"}


def test_a_figure_of_zero_has_a_history_without_changes(facts: MakeFacts) -> None:
    runs = [recording(facts, 1 + i, 100.0, deviation=float(i)) for i in range(4)]
    (series,) = history(runs, "deviation", 0.05, 0.99)
    assert (series.levels, series.changes) == ([1.5], ())


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


NoisyProcess = Callable[[np.random.Generator, int], np.ndarray]

NOISES: dict[str, NoisyProcess] = {
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
