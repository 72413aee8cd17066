from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkbench.bench.analysis.ratio import ratio


def rounds(*means: float) -> tuple[tuple[float, float], ...]:
    return tuple((mean - 1, mean + 1) for mean in means)


def test_only_rounds_of_shared_groups_count(facts) -> None:
    # The baseline ran in both groups, Naive only in group 1, where the machine was twice as slow.
    base = facts(samples_us=rounds(100, 110, 90, 200, 220, 180), groups=(0, 0, 0, 1, 1, 1))
    other = facts("naive", samples_us=rounds(400, 440, 360), groups=(1, 1, 1))
    result = ratio(other, base, 0.95)
    assert result is not None
    assert result.value == pytest.approx(2.0)
    assert result.kind == "range"


def test_rounds_are_paired_inside_their_group(facts) -> None:
    # The latencies drift by a factor of ten, the ratio stays.
    base = facts(samples_us=rounds(10, 100, 50), groups=(0, 1, 1))
    other = facts("naive", samples_us=rounds(200, 100, 20), groups=(1, 1, 0))
    assert ratio(other, base, 0.95) == pytest.approx((2.0, 2.0, 2.0, "range"))


def test_cases_without_a_shared_group_have_no_ratio(facts) -> None:
    base, other = facts(groups=(0, 0, 0)), facts("naive", groups=(1, 1, 1))
    assert ratio(other, base, 0.95) is None


@pytest.mark.parametrize("status", ["incorrect", "error", "timeout", "crashed", "oom", "unsupported", "unavailable"])
def test_only_measured_cases_have_a_ratio(facts, status: str) -> None:
    # A failed case has no ratio, even if it has samples.
    assert ratio(facts("naive", status=status), facts(), 0.95) is None
    assert ratio(facts(), facts("naive", status=status), 0.95) is None


def test_a_noisy_case_has_a_ratio(facts) -> None:
    assert ratio(facts("naive", status="noisy"), facts(), 0.95) is not None


def test_six_paired_rounds_give_a_confidence_interval(facts) -> None:
    base = facts(samples_us=rounds(*[100.0] * 6))
    other = facts("naive", samples_us=rounds(200, 210, 220, 230, 240, 250))
    assert ratio(other, base, 0.95) == pytest.approx((2.25, 2.0, 2.5, "confidence"))


@given(st.lists(st.tuples(st.floats(2, 1e6), st.floats(2, 1e6)), min_size=1, max_size=12))
def test_the_interval_holds_the_ratio_and_inverts(pairs: list[tuple[float, float]]) -> None:
    from types import SimpleNamespace

    def case(means: list[float]) -> SimpleNamespace:
        return SimpleNamespace(status="ok", rounds=[(mean,) for mean in means], round_groups=(0,) * len(means))

    a, b = case([x for x, _ in pairs]), case([y for _, y in pairs])
    forward, inverse = ratio(a, b, 0.95), ratio(b, a, 0.95)  # type: ignore[arg-type]
    assert forward is not None
    assert inverse is not None
    assert forward.low <= forward.value <= forward.high
    assert forward.value * inverse.value == pytest.approx(1)
    assert forward.low * inverse.high == pytest.approx(1)
