from __future__ import annotations

import pytest

from chunkbench.regression.by_far import by_far
from chunkbench.regression.own_ratio import OwnRatio

STILL = OwnRatio(1.0, 1.0)


def verdict(base: list[float], head: list[float], own: OwnRatio | None = STILL) -> str | None:
    far = by_far(base, head, own, threshold=0.05, error=0.01)
    return None if far is None else far.verdict


def test_twenty_times_as_slow_is_slower_with_any_number_of_processes() -> None:
    for count in (1, 2, 12):
        assert verdict([1.0] * count, [20.0] * count) == "slower"
        assert verdict([20.0] * count, [1.0] * count) == "faster"


def test_what_the_machine_explains_is_no_verdict() -> None:
    slowed = OwnRatio(0.9, 1.5)
    assert verdict([1.0] * 12, [2.2] * 12, slowed) is None
    assert verdict([1.0] * 12, [2.5] * 12, slowed) == "slower"
    assert verdict([1.0] * 12, [0.8] * 12, slowed) is None
    assert verdict([1.0] * 12, [0.7] * 12, slowed) == "faster"
    # Without fixed work nobody knows what the machine did.
    assert verdict([1.0] * 12, [2.0] * 12, None) is None
    assert verdict([1.0] * 12, [2.2] * 12, None) == "slower"


def test_one_process_that_overlaps_is_enough_for_no_verdict() -> None:
    assert verdict([1.0] * 11 + [3.0], [2.0] * 12) is None


@pytest.mark.parametrize(("count", "least"), [(1, 2.0), (2, 1.5), (12, 1.05)])
def test_few_processes_need_a_larger_ratio(count: int, least: float) -> None:
    assert verdict([1.0] * count, [least * 0.99] * count) is None
    assert verdict([1.0] * count, [least * 1.01] * count) == "slower"
