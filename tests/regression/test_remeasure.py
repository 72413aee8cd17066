"""How often a case that looks changed is measured again."""

from __future__ import annotations

from time import monotonic

import pytest

from chunkbench.regression import remeasure
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


@pytest.mark.parametrize(("takes_s", "expected"), [(19.0, 3), (21.0, 2), (29.0, 1)])
def test_a_re_measurement_starts_only_if_it_is_expected_to_end_in_time(
    facts: MakeFacts, monkeypatch: pytest.MonkeyPatch, takes_s: float, expected: int
) -> None:
    """60 s are there; a re-measurement is expected to take a tenth longer than the longest before it."""
    make = RunMaker(facts)
    unsettled = compare(make.runs(8), make.runs(4, 1.05), Options())
    clock = [0.0]
    numbers: list[int] = []
    monkeypatch.setattr(remeasure, "monotonic", lambda: clock[0])

    def measure(number: int, changed: frozenset[str]) -> bool:
        numbers.append(number)
        clock[0] += takes_s
        return False

    remeasure_changed(lambda: unsettled, measure, 3, 0.05, False, began=0.0, budget_s=10.0)
    assert len(numbers) == expected


@pytest.mark.parametrize(("later", "expected"), [(1, 2), (2, 1)], ids=["the same case", "one case more"])
def test_a_re_measurement_of_more_cases_is_expected_to_take_longer(
    facts: MakeFacts, monkeypatch: pytest.MonkeyPatch, later: int, expected: int
) -> None:
    """25 of 60 s are gone after the first, of one case: another of one case fits, one of two cases does not."""
    make = RunMaker(facts)
    one = compare(make.runs(8), make.runs(4, 1.05), Options())
    then = one.model_copy(update={"cases": [one.cases[0].model_copy(update={"key": str(n)}) for n in range(later)]})
    clock = [0.0]
    numbers: list[int] = []
    comparisons = iter([one, then, then])
    monkeypatch.setattr(remeasure, "monotonic", lambda: clock[0])

    def measure(number: int, changed: frozenset[str]) -> bool:
        numbers.append(number)
        clock[0] += 25.0 * len(changed)
        return False

    remeasure_changed(lambda: next(comparisons), measure, 2, 0.05, False, began=0.0, budget_s=10.0)
    assert len(numbers) == expected
