"""Numbers of systems under load."""

from __future__ import annotations

import pytest

from chunkbench.bench.analysis.derive import Row, derive
from chunkbench.workloads.serving.metrics import METRICS
from chunkbench.workloads.serving.objective import goodput_per_s, objective_s, sustained_rate
from chunkbench.workloads.serving.objective import spots as line
from tests.workloads.serving.made import measurement, serving_facts


def test_medians_over_seeds_and_largest_peaks() -> None:
    facts = serving_facts(
        "chunk_llama",
        measurements=[
            measurement(0, latency=0.2, peak_kv_bytes=100, peak_batch=3),
            measurement(1, latency=0.4, peak_kv_bytes=300, peak_batch=2),
            measurement(2, latency=0.3, peak_kv_bytes=200, peak_batch=4),
        ],
    )
    (row,) = derive([facts], "chunk_llama")
    assert row.derived.latency_us == pytest.approx(0.3e6)
    assert (row.derived.low_us, row.derived.high_us) == pytest.approx((0.2e6, 0.4e6))
    assert row.derived.interval_kind == "range"
    found = {name: metric.value(facts) for name, metric in METRICS.items()}
    assert (found["peak_kv_bytes"], found["peak_batch"]) == (300, 4)
    assert found["cached_share"] == 0.5
    assert found["per_token_p50"] == pytest.approx(0.3 * 10 / 2 / 9)


def test_ratios_are_formed_between_measurements_of_the_same_requests() -> None:
    """Each seed is twice as slow as the one before, for both systems: the ratio is two at every seed."""
    ours = serving_facts("chunk_llama", measurements=[measurement(n, latency=0.1 * 2**n) for n in range(3)])
    theirs = serving_facts("vllm", measurements=[measurement(n, latency=0.2 * 2**n) for n in range(3)])
    _, row = derive([ours, theirs], "chunk_llama")
    assert row.derived.ratio_to_baseline == pytest.approx(2)
    assert (row.derived.ratio_low, row.derived.ratio_high) == pytest.approx((2, 2))


def test_a_system_that_was_not_measured_has_no_numbers() -> None:
    facts = serving_facts("vllm", status="unavailable")
    assert {name for name, metric in METRICS.items() if metric.value(facts) is not None} == set()


def rates(*spots: tuple[float, float]) -> list[Row]:
    """Rows of a system at these (requests per second, normalized latency in seconds)."""
    facts = [
        serving_facts("vllm", load=n, rate=rate, measurements=[measurement(0, latency)])
        for n, (rate, latency) in enumerate(spots)
    ]
    return list(derive(facts, "vllm"))


@pytest.mark.parametrize(
    ("spots", "rate", "at_least"),
    [
        ([(1, 0.1), (2, 0.3)], 1.5, False),
        ([(2, 0.3), (1, 0.1)], 1.5, False),
        ([(1, 0.1), (2, 0.2)], 2, True),
        ([(1, 0.1), (2, 0.3), (3, 0.15), (4, 0.25)], 3.5, False),
    ],
)
def test_a_sustained_rate_lies_between_two_measured_ones(
    spots: list[tuple[float, float]], rate: float, at_least: bool
) -> None:
    found = sustained_rate(line(rates(*spots)), 0.2)
    assert found is not None
    assert (found.per_s, found.at_least) == (pytest.approx(rate), at_least)


def test_no_rate_is_sustained_where_all_are_too_slow() -> None:
    assert sustained_rate(line(rates((1, 0.3))), 0.2) is None
    assert sustained_rate([], 0.2) is None


def test_the_objective_is_the_reference_with_nothing_shared_at_90_percent() -> None:
    facts = [
        serving_facts(system, n_p=n_p, n_s=n_s, load=load, measurements=[measurement(0, latency)])
        for system, n_p, n_s, load, latency in (
            ("chunk_llama", 1024, 0, 90, 0.1),
            ("vllm", 1024, 1024, 90, 0.2),
            ("vllm", 1024, 0, 60, 0.3),
            ("vllm", 1024, 0, 90, 0.4),
            ("vllm", 2048, 0, 90, 0.8),
        )
    ]
    rows = derive(facts, "chunk_llama")
    assert objective_s(rows, 1024) == pytest.approx(0.4)
    assert objective_s(rows, 2048) == pytest.approx(0.8)
    assert objective_s(rows, 4096) is None


def test_goodput_counts_requests_within_the_objective() -> None:
    facts = serving_facts("vllm", measurements=[measurement(0, 0.2)])
    assert goodput_per_s(facts, 0.2) == METRICS["answered_per_s"].value(facts)
    assert goodput_per_s(facts, 0.19) == 0
