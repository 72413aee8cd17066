"""How passes share the budget of a run."""

from __future__ import annotations

import pytest

from chunkbench.bench.experiment import load_experiment
from chunkbench.bench.runner import passes as passes_module
from chunkbench.bench.runner.pace import Pace
from chunkbench.bench.runner.passes import Budget, Pass


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
