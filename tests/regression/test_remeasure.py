"""How often a case that looks changed is measured again."""

from __future__ import annotations

from time import monotonic

import pytest

from chunkbench.regression.compare import Options, compare
from chunkbench.regression.remeasure import remeasure_changed
from tests.invented_facts import MakeFacts
from tests.regression.made_runs import RunMaker


@pytest.mark.parametrize(
    ("spent_s", "again", "expected"),
    [(0.0, 3, 3), (0.0, 0, 0), (100.0, 3, 1), (1000.0, 3, 1)],
    ids=["time is left", "not wanted", "the time ends during the first", "the first is allowed in any case"],
)
def test_later_re_measurements_start_only_while_time_is_left(
    facts: MakeFacts, spent_s: float, again: int, expected: int
) -> None:
    make = RunMaker(facts)
    unsettled = compare(make.runs(8), make.runs(4, 1.05), Options())
    assert unsettled.cases[0].verdict == "inconclusive"
    numbers: list[int] = []

    def measure(number: int, changed: frozenset[str]) -> bool:
        numbers.append(number)
        return False

    began = monotonic() - spent_s
    result = remeasure_changed(lambda: unsettled, measure, again, 0.05, False, began, budget_s=10.0)
    assert numbers == list(range(1, expected + 1))
    assert result.comparison is unsettled
