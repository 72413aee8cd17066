"""What fits: estimates, memory, the budget of time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench import workload
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.runner import dry_run, estimate
from chunkbench.bench.runner import passes as passes_module
from chunkbench.bench.runner.memory_guard import group
from chunkbench.bench.runner.pace import Pace
from chunkbench.bench.runner.passes import Budget, Pass
from chunkbench.bench.runner.target import Target, resolve_target
from chunkbench.bench.store.results import Peaks


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that a test sets."""
    now = [0.0]
    monkeypatch.setattr(passes_module, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def passes() -> list[Pass]:
    points = load_experiment("smoke").points("cpu", "float32")[:4]
    return [Pass((point,), "") for point in points]


def test_one_after_the_other_they_share_what_is_left(passes: list[Pass], clock: list[float]) -> None:
    pace = Pace(dict.fromkeys(passes, 1), passes, 40.0)
    assert pace.begin(passes[0]).seconds == 10
    clock[0] = 4  # it took less than its share
    assert pace.end(passes[0]) == 4
    second = pace.begin(passes[1])
    assert second.seconds == 12
    assert pace.done == 0.25
    second.share_done = 0.5
    assert pace.done == 0.375


def test_side_by_side_each_has_the_share_that_it_has_alone(passes: list[Pass], clock: list[float]) -> None:
    pace = Pace(dict.fromkeys(passes, 1), passes, 40.0)
    pace.machines = 4
    budgets = [pace.begin(pass_) for pass_ in passes]
    assert [budget.seconds for budget in budgets] == [10, 10, 10, 10]
    clock[0] = 5
    for budget in budgets:
        budget.share_done = 0.5
    assert pace.left_s == pytest.approx(5)


def test_what_is_left_is_within_the_budget_until_it_is_overrun(passes: list[Pass], clock: list[float]) -> None:
    pace = Pace(dict.fromkeys(passes, 1), passes, 40.0)
    pace.begin(passes[0])
    clock[0] = 12  # at this pace the others take 36 s
    pace.end(passes[0])
    assert pace.left_s == 28
    pace.begin(passes[1])
    clock[0] = 32
    pace.end(passes[1])
    assert pace.left_s == 32  # it took twice its share: the budget does not bound the others


def test_a_lost_pass_costs_the_others_nothing(passes: list[Pass], clock: list[float]) -> None:
    pace = Pace(dict.fromkeys(passes, 1), passes, 40.0)
    pace.begin(passes[0])
    clock[0] = 100
    pace.lose(passes[0])
    assert pace.done == 0
    assert pace.begin(passes[0]).seconds == 10


def test_a_resumed_run_has_the_budget_of_what_is_pending(passes: list[Pass], clock: list[float]) -> None:
    pace = Pace(dict.fromkeys(passes, 1), passes[2:], 40.0)
    assert pace.done == 0.5
    assert pace.left_s == 20
    assert pace.begin(passes[2]).seconds == 10


def test_another_part_fits_if_it_takes_as_long_as_those_before(clock: list[float]) -> None:
    budget = Budget(10.0)
    clock[0] = 6
    assert budget.left_s == 4
    assert not budget.fits_another(1)
    assert budget.fits_another(2)


GB = 10**9
SHARES = {"naive": False, "chunk_attn": True}
AXES = {"n_p": "1024", "n_s": "0,1024", "n_c": "64", "batch_size": "32"}
KV = 32 * (1024 + 64 + 64) * 2 * 32 * 128 * 2 * 1.04
"""Bytes of K and V of 32 sequences at the end, with a chunk to spare and the guard's slack, in bfloat16."""


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the estimate of a budget, on a machine that reads 20 GB/s and has 30 GB free."""
    peaks = Peaks(read_bytes_per_s=20 * GB, matrix_flops_per_s=1, matrix_torch_flops_per_s=1)

    def make(
        budget_s: float, axes: dict[str, str] | None = None, free: int = 30 * GB, **changes: Any
    ) -> estimate.Estimate:
        machine = {"cpu_peaks": peaks, "available_memory": free, "last_level_cache_bytes": 32 << 20}
        for name, value in machine.items():
            monkeypatch.setattr(estimate, name, lambda *_, value=value: value)
        names = {"implementations": ("naive", "chunk_attn"), "budget_s": budget_s, "dtype": "bfloat16"}
        experiment = load_experiment("table3", axes or AXES, "test").model_copy(update=names)
        found = resolve_target(experiment, describing=True)
        target = Target("cpu", "bfloat16", found.environment, "here")
        return estimate.estimate(experiment, workload.get("decode"), replace(target, **changes), SHARES)

    return make


def test_memory_is_that_of_the_largest_group(expected: Any) -> None:
    # With nothing shared both implementations hold all K/V; besides them the probe, the sweep and the worker.
    beside = (512 << 20) + 2 * (32 << 20) + 600_000_000
    assert expected(1.0).memory_bytes == pytest.approx(2 * KV + beside, rel=0.01)
    assert expected(1.0).together_bytes == pytest.approx(2 * KV, rel=0.01)


def test_a_long_budget_is_the_time_and_a_short_one_is_not(expected: Any) -> None:
    besides = 5 + 2 * 0.5 + 0.9 * (2 * KV + (512 << 20)) / GB
    assert expected(600.0).seconds == pytest.approx(600 + besides, rel=0.02)
    # The fewest rounds: 24 calls and 26 times preparing and checking, of 2 * KV with nothing shared and of KV and the
    # shared prompt with everything shared; each call sweeps 64 MiB.
    shared = (1024 + 32 * 128) / (32 * (1024 + 128))
    reading = (2 * KV + KV + shared * KV) * 50 / 20 / GB
    sweeping = 2 * 2 * 24 * (64 << 20) / 20 / GB
    assert expected(1.0).seconds == pytest.approx(besides + reading + sweeping + 2 * 1.0 + 4 * 0.1, rel=0.03)


def test_more_to_measure_takes_longer_and_nothing_is_said_about_a_gpu(expected: Any) -> None:
    assert expected(1.0, {**AXES, "n_p": "2048", "n_s": "0"}).seconds > expected(1.0, {**AXES, "n_s": "0"}).seconds
    assert expected(60.0, device="cuda").seconds is None


def test_a_kind_without_sessions_has_only_its_budget() -> None:
    experiment = load_experiment("replay-caches")
    assert "at most its budget of" in dry_run.brief(experiment, resolve_target(experiment))


def test_a_point_that_does_not_fit_does_not_hide_those_that_do(expected: Any) -> None:
    found = expected(1.0, {**AXES, "n_p": "256,8192", "n_s": "0"}, free=5 * GB)
    assert found.grouping.groups == ()
    assert found.memory_bytes > 600_000_000 + 0.3 * GB


NEEDS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 100), min_size=1)


@given(NEEDS, st.integers(1, 250))
def test_every_implementation_is_in_a_group_that_fits_or_is_refused_with_figures(
    needs: dict[str, int], room: int
) -> None:
    grouping = group(needs, list(needs), "a", room)
    placed = [name for members in grouping.groups for name in members]
    for name, need in needs.items():
        assert (name in grouping.too_large) == (need > room)
        assert (placed.count(name) >= 1) == (need <= room)
        if name != "a":
            assert placed.count(name) <= 1
    for members in grouping.groups:
        assert sum(needs[name] for name in members) <= room
        assert len(set(members)) == len(members)
        others = [name for name in members if name != "a"]
        if "a" in needs and others and needs["a"] + needs[others[0]] <= room:
            assert members[0] == "a", "the baseline is in every group where it fits"
    refused = group({"a": 30_000_000_000, "b": 10}, ["a", "b"], "b", 20_000_000_000).too_large["a"]
    assert "30.0 GB" in refused
    assert "20.0 GB" in refused


def test_what_reads_the_memory_of_the_baseline_goes_with_it() -> None:
    sizes = {"chunk_attn": 50, "plan_pack": 0, "naive": 60}
    assert group(sizes, list(sizes), "chunk_attn", 100).groups == (("chunk_attn", "plan_pack"), ("naive",))
    refused = group(sizes, list(sizes), "chunk_attn", 40)
    assert refused.groups == ()
    assert refused.too_large["plan_pack"].startswith("it reads the K and V of chunk_attn: ")
    # A baseline that needs no memory of its own is still in every group.
    assert group({"plan_flat": 0, "plan_pack": 0}, ["plan_flat", "plan_pack"], "plan_flat", 9).groups == (
        ("plan_flat", "plan_pack"),
    )
