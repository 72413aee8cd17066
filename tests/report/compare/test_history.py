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
from chunkbench.report.compare.rank_intervals import Shift, between, centre
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


def test_each_machine_has_its_own_series(facts: MakeFacts) -> None:
    def series(runs: list[list[Run]]) -> list[tuple[object, ...]]:
        return [(one.machine, len(one.measurements), one.changes) for one in history(runs, "latency", 0.05, 0.99)]

    models = [recording(facts, 1 + i, 100.0 if i < 6 else 300.0, "A" if i < 6 else "B") for i in range(12)]
    assert series(models) == [(1, 6, ()), (2, 6, ())]
    hosts = [recording(facts, 1 + i, 100.0, machine=f"host-{i % 2}") for i in range(4)]
    assert series(hosts) == [(1, 2, ()), (2, 2, ())]


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
    (series,) = history(runs[::-1], "deviation", 0.05, 0.99)  # it sorts the runs by time
    assert [measurement.value for measurement in series.measurements] == [0, 1, 2, 3]
    assert (series.levels, series.changes) == ([1.5], ())


NORMAL = np.random.default_rng(3).normal


@pytest.mark.parametrize(
    ("series", "chance", "threshold", "places"),
    [
        # An early change, at the confidence of six series.
        ([*NORMAL(0.0, 0.01, 5), *NORMAL(-0.22, 0.01, 11)], 0.01 / 6, math.log(1.05), [5]),
        # An outlier is no level.
        ([0.0, 0.01, -0.01, 0.0, 0.02, 0.8, 0.0, 0.01, -0.02, 0.0, 0.01], 0.01, 0.05, []),
        # A shift within the threshold.
        ([*NORMAL(0.0, 0.002, 15), *NORMAL(0.03, 0.002, 15)], 0.01, 0.05, []),
        ([*NORMAL(0.0, 0.002, 15), *NORMAL(0.03, 0.002, 15)], 0.01, 0.02, [15]),
        # Five runs are too few.
        ([0.0, 0.0, 0.0, 1.0, 1.0], 0.05, 0.0, []),
    ],
)
def test_a_change_is_a_lasting_shift_beyond_the_threshold(
    series: list[float], chance: float, threshold: float, places: list[int]
) -> None:
    assert [point.place for point in change_points(list(map(float, series)), chance, threshold)] == places


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=5)
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
    sizes=st.tuples(st.integers(6, 40), st.integers(6, 25)) | st.integers(8, 40),
    shift=st.floats(-0.5, 0.5),
    confidence=st.sampled_from([0.9, 0.95, 0.99]),
)
@settings(max_examples=60)
def test_an_interval_holds_the_true_shift_as_often_as_it_claims(
    noise: str, seed: int, sizes: tuple[int, int] | int, shift: float, confidence: float
) -> None:
    """Of two sides with so many values, and of so many pairs."""
    rng, draw = np.random.default_rng(seed), NOISES[noise]
    hits = 0
    for _ in range(TRIALS):
        if isinstance(sizes, int):
            interval = centre(draw(rng, sizes) + shift - draw(rng, sizes), confidence)
        else:
            interval = between(draw(rng, sizes[0]), draw(rng, sizes[1]) + shift, confidence)
        hits += interval.low <= shift <= interval.high
    # If the claim holds, the chance of fewer hits is one in a million.
    assert hits >= binom.ppf(1e-6, TRIALS, confidence)


def test_three_rounds_have_no_interval_of_95_percent() -> None:
    """A bootstrap of three rounds would have one, and cover only 76%."""
    interval = between([1.0, 1.1, 0.9], [1.0, 1.2, 1.1], 0.95)
    assert not interval.enough
    assert (interval.low, interval.high) == (-math.inf, math.inf)
    assert interval.value == pytest.approx(0.1)
    assert not centre([0.1, 0.2, 0.1], 0.95).enough


def check_ends(interval: Shift, chance: Callable[[float], float]) -> None:
    for end, inwards in ((interval.low, 1e-9), (interval.high, -1e-9)):
        assert chance(end - inwards) <= 0.05 < chance(end + inwards)


@pytest.mark.parametrize(("base", "head"), [(7, 5), (12, 12), (30, 10)])
def test_an_interval_ends_where_the_exact_test_stops_rejecting(base: int, head: int) -> None:
    rng = np.random.default_rng(base)
    x, y = rng.normal(size=base), rng.normal(size=head) + 0.3
    interval = between(x, y, 0.95)
    assert interval.enough
    check_ends(interval, lambda shift: float(mannwhitneyu(y - shift, x, method="exact").pvalue))
    pairs = rng.normal(0.1, 1.0, 14)
    check_ends(centre(pairs, 0.95), lambda shift: float(wilcoxon(pairs - shift, method="exact").pvalue))


def test_many_values_use_the_normal_approximation_without_a_jump() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=60), rng.normal(size=60)
    exact = between(x[:24], y[:24], 0.95)
    large = between(x, y, 0.95)
    assert large.high - large.low < exact.high - exact.low
    expected = 2 * 1.96 * math.sqrt(2 / 60)
    assert large.high - large.low == pytest.approx(expected, rel=0.35)
