"""Sums over traced units, and overlap, by hand."""

from __future__ import annotations

import pytest

from chunkbench.workloads.decode.profile_numbers import Overlap, middle, overlap, phases, threads, wall_s
from tests.invented_facts import MakeFacts
from tests.invented_profiles import profile, trace


def test_phases_add_up() -> None:
    shared, private, everything = phases(trace())
    assert (shared.name, shared.units, shared.read_bytes, shared.flops) == ("shared", 1, 2000, 64_000)
    assert (private.units, private.read_bytes, private.flops) == (2, 10_000, 10_000)
    assert shared.seconds == pytest.approx(0.004)
    assert (shared.scores_s, shared.softmax_s, shared.values_s) == pytest.approx((0.002, 0.0005, 0.001))
    assert shared.merging_s == pytest.approx(0.0005)  # 4 ms less 2, 0.5 and 1
    assert (private.waiting_s, private.seconds) == pytest.approx((0.001, 0.013))
    for number in range(1, len(everything)):
        assert everything[number] == pytest.approx(shared[number] + private[number])
    for phase in (shared, private, everything):
        parts = (phase.scores_s, phase.softmax_s, phase.values_s, phase.merging_s, phase.waiting_s)
        assert sum(parts) == pytest.approx(phase.seconds)


def test_without_shared_chunks_there_is_one_phase() -> None:
    only = trace().model_copy(update={"units": trace().units[1:]})
    assert [phase.name for phase in phases(only)] == ["private"]


def test_threads_work_wait_or_have_nothing_to_do() -> None:
    first, second, third = threads(trace())
    assert first[1:] == pytest.approx((0.010, 0, 0))
    assert second[1:] == pytest.approx((0.006, 0.001, 0.003))
    assert third[1:] == pytest.approx((0, 0, 0.010))


def test_the_call_in_the_middle() -> None:
    assert wall_s(middle([trace(3), trace(1), trace(2)])) == pytest.approx(0.020)
    assert wall_s(middle([trace(3), trace(1)])) == pytest.approx(0.010)


@pytest.mark.parametrize(
    ("decode", "hidden"),
    [(11, 0), (12, 0), (9, 2), (6, 5), (5.5, 5)],  # more than both together; both; less; the longer one; less than that
)
def test_what_the_longer_part_hides(decode: float, hidden: float) -> None:
    both = Overlap(6, 5, decode)
    assert both.hideable_s == 5
    assert both.hidden_s == hidden


def test_computing_alone_counts_only_if_it_reads_from_a_cores_own_cache(facts: MakeFacts) -> None:
    assert overlap(profile(facts)) == pytest.approx((0.006, 0.005, 0.010))
    assert overlap(profile(facts, place_bytes=1 << 20)) is not None
    assert overlap(profile(facts, place_bytes=(1 << 20) + 1)) is None
    assert overlap(profile(facts).model_copy(update={"l2_bytes": None})) is None
    assert overlap(profile(facts, read=None)) is None
