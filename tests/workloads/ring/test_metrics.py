"""Figures of rings."""

from __future__ import annotations

import pytest

from chunkbench.workloads.ring.metrics import BLOCKS, METRICS, block_bytes, busy
from chunkbench.workloads.ring.result import RingResult
from tests.workloads.ring.made import ring_result


def with_times(result: RingResult, *rounds: list[dict[str, float]]) -> RingResult:
    """The same result with other times."""
    return RingResult.model_validate(result.model_dump(mode="json") | {"times": rounds})


def test_figures_are_medians_over_rounds_of_the_slowest_or_least_hidden_rank() -> None:
    def rank(total: float, compute: float, wait: float, transfer: float) -> dict[str, float]:
        return {"total_s": total, "compute_s": compute, "wait_s": wait, "transfer_s": transfer}

    result = with_times(
        ring_result("ring"),
        [rank(1, 0.5, 0.1, 0.4), rank(2, 0.2, 0.6, 0.8)],
        [rank(3, 1.2, 0.2, 0.4), rank(1, 0.3, 0.4, 0.8)],
        [rank(5, 4.5, 0.3, 0.4), rank(4, 2.8, 0.2, 0.8)],
    )
    assert busy(result) == pytest.approx((0.5, 0.3))  # of 50, 40 and 90%, and of 10, 30 and 70%
    found = {name: metric.value(result) for name, metric in METRICS.items()}
    assert found["least_busy"] == pytest.approx(0.3)
    assert found["most_busy"] == pytest.approx(0.5)
    assert found["exposed"] == pytest.approx(0.75)  # of 75, 50 and 75%
    assert found["work"] == 1.5  # of 100 and 300 pairs
    assert (found["sent_bytes"], found["peak_bytes"]) == (2_000_000, 3_000_000)


def test_six_blocks_of_float32_and_the_larger_output_of_bfloat16() -> None:
    """q, K, V, the K and V that arrive, and the output: 2,048 tokens, 8 heads of 128 numbers."""
    block = 2048 * 8 * 128
    assert block_bytes(ring_result("ring")) == BLOCKS * 4 * block
    assert block_bytes(ring_result("ring", dtype="bfloat16")) == (5 * 2 + 4) * block
    assert block_bytes(ring_result("ring", kv_heads=2)) == (4 + 4 * 4 / 4 + 4) * block
    assert METRICS["of_six_blocks"].value(ring_result("ring", peak=BLOCKS * 4 * block * 2)) == 2
    assert METRICS["of_six_blocks"].value(ring_result("ring", peak=None)) is None


def test_where_nothing_moves_nothing_is_exposed() -> None:
    assert METRICS["exposed"].value(ring_result("no_exchange", sent=0, wait=0.0)) is None


def test_what_was_not_timed_has_no_figures() -> None:
    result = ring_result("ring", status="crashed")
    assert {name for name, metric in METRICS.items() if metric.value(result) is not None} == set()
