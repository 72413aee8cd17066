"""Estimates of memory and time, on a machine whose numbers are given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chunkbench.bench import workload
from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.runner import dry_run, estimate
from chunkbench.bench.runner.target import Target, resolve_target
from chunkbench.bench.store.results import Peaks

GB = 10**9
SHARES = {"naive": False, "chunk_attn": True}
AXES = {"n_p": "1024", "n_s": "0,1024", "n_c": "64", "batch_size": "32"}
KV = 32 * (1024 + 64 + 64) * 2 * 32 * 128 * 2 * 1.04
"""Bytes of K and V of 32 sequences at the end, with a chunk to spare and the guard's slack, in bfloat16."""


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the estimate of a budget; the machine reads 20 GB/s and has 30 GB free."""
    peaks = Peaks(read_bytes_per_s=20 * GB, matrix_flops_per_s=1, matrix_torch_flops_per_s=1)
    monkeypatch.setattr(estimate, "cpu_peaks", lambda _: peaks)
    monkeypatch.setattr(estimate, "available_memory", lambda: 30 * GB)
    monkeypatch.setattr(estimate, "last_level_cache_bytes", lambda _: 32 << 20)

    def make(budget_s: float, axes: dict[str, str] | None = None, **changes: Any) -> estimate.Estimate:
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


def test_more_to_measure_takes_longer(expected: Any) -> None:
    assert expected(1.0, {**AXES, "n_p": "2048", "n_s": "0"}).seconds > expected(1.0, {**AXES, "n_s": "0"}).seconds


def test_nothing_is_said_about_a_gpu(expected: Any) -> None:
    assert expected(60.0, device="cuda").seconds is None


@pytest.mark.parametrize(("seconds", "words"), [(45, "45 s"), (400, "6.7 min"), (9000, "2.5 h")])
def test_durations_in_words(seconds: float, words: str) -> None:
    assert dry_run.words_of(seconds) == words


def test_a_kind_without_sessions_has_only_its_budget() -> None:
    experiment = load_experiment("replay-caches")
    assert "at most its budget of" in dry_run.brief(experiment, resolve_target(experiment))


def test_a_point_that_does_not_fit_does_not_hide_those_that_do(expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "available_memory", lambda: 5 * GB)
    small = {**AXES, "n_p": "256,8192", "n_s": "0"}
    found = expected(1.0, small)
    assert found.grouping.groups == ()
    assert found.memory_bytes > 600_000_000 + 0.3 * GB
