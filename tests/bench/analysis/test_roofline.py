from __future__ import annotations

import pytest

from chunkbench.bench.analysis.roofline import (
    bandwidth_fraction,
    flops,
    mean_roofline_us,
    moved_bytes,
    probe_error,
    roofline_fraction,
    roofline_us,
)
from chunkbench.bench.store.results import Peaks


def peaks(read: float, matrix: float = 1e15) -> Peaks:
    return Peaks(read_bytes_per_s=read, matrix_flops_per_s=matrix, matrix_torch_flops_per_s=matrix)


def test_roofline_of_table_3_without_sharing() -> None:
    # 32 sequences of 1024 tokens, 32 heads of 128, two bytes: 537 MB of K and V, half a megabyte of q and out.
    moved = moved_bytes(32 * 1024, 2 * 32 * 128 * 2, 32, 32, 128, 2)
    assert moved == 536_870_912 + 524_288
    # A GPU that reads 3.0 TB/s needs 179 us.
    assert roofline_us(moved, flops(32 * 1024, 32, 128), peaks(3.0e12)) == pytest.approx(179, abs=0.5)


def test_flops_of_the_papers_table_1() -> None:
    # Table 1: 33.57e6 for one sequence, 1074.27e6 for 32, of 2049 tokens each.
    assert flops(2049, 32, 128) == pytest.approx(33.57e6, rel=1e-4)
    assert flops(32 * 2049, 32, 128) == pytest.approx(1074.27e6, rel=1e-4)


def test_the_longer_of_memory_and_arithmetic_time_bounds_a_step() -> None:
    assert roofline_us(1000, 10, peaks(1e9, 1e12)) == pytest.approx(1.0)
    assert roofline_us(1000, 10_000_000, peaks(1e9, 1e12)) == pytest.approx(10.0)


def test_fraction_sums_bounds_and_latencies_over_the_steps(facts) -> None:
    case = facts()
    # Bounds of 6 and 9 us against 10 and 20 us.
    assert roofline_fraction(case) == pytest.approx(15 / 30)
    assert bandwidth_fraction(case) == pytest.approx(21 / 30)
    assert mean_roofline_us(case) == pytest.approx(7.5)


def test_every_round_uses_its_own_peaks(facts) -> None:
    # In the last two rounds the machine has half its speed and so has the kernel: the fraction stays.
    slow = ((20.0, 40.0),) * 2
    case = facts(samples_us=((10.0, 20.0), *slow), peaks=(peaks(1e9), peaks(0.5e9), peaks(0.5e9)))
    assert roofline_fraction(case) == pytest.approx(0.5)


def test_faster_than_the_machine_is_an_error_of_the_probe(facts) -> None:
    assert probe_error(facts(samples_us=((7.0, 7.85),))) is None  # 101%
    message = probe_error(facts(samples_us=((6.0, 8.0),)))  # 107%
    assert message is not None
    assert "107%" in message
    assert "probe" in message
    assert "warm" in (probe_error(facts(samples_us=((6.0, 8.0),), cache="warm")) or "")


def test_without_peaks_or_samples_there_is_no_fraction(facts) -> None:
    assert roofline_fraction(facts(peaks=())) is None
    assert roofline_fraction(facts(samples_us=(), status="error")) is None
    assert bandwidth_fraction(facts(read_bytes=())) is None
    assert probe_error(facts(peaks=())) is None
