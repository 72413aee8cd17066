"""Shares the budget of a run among its passes, and estimates how much of the run is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chunkbench.bench.runner.passes import Budget, Pass

_KEPT = 1.25
"""Limit for the time of all ended passes, divided by their budgets. Above this limit, `left_s` may exceed the rest of
the budget. A budget that is too small for the minimum number of rounds has this effect."""


class Pace:
    """Divides the budget of a run among its passes, in proportion to their weights.

    The budget is machine time: the times of machines that measure at the same time add up. With two machines, a run
    ends after about half of the budget.
    """

    def __init__(self, weights: Mapping[Pass, int], pending: Iterable[Pass], budget_s: float) -> None:
        """`weights`: weight of every pass of the run. `pending`: the passes that must still be measured."""
        self._weights = weights
        self._total = sum(weights.values())
        self._waiting = sum(weights[pass_] for pass_ in pending)
        self._before = self._total - self._waiting
        self._budget_s = budget_s * self._waiting / self._total if self._total else 0.0
        self._running: dict[Pass, Budget] = {}
        self._spent_s = self._granted_s = 0.0  # time of passes that have ended, and their shares
        self.machines = 1
        """Number of machines that measure at the same time."""

    def begin(self, pass_: Pass) -> Budget:
        """Start a pass. Returns its part of the remaining budget."""
        weight = self._weights[pass_]
        promised_s = sum(max(other.seconds, other.spent_s) for other in self._running.values())
        left_s = max(0.0, self._budget_s - self._spent_s - promised_s)
        self._running[pass_] = budget = Budget(left_s * weight / self._waiting)
        self._waiting -= weight
        return budget

    def end(self, pass_: Pass) -> float:
        """End a pass. Returns the seconds that the pass took."""
        ended = self._running.pop(pass_)
        took_s = ended.spent_s
        self._spent_s += took_s
        self._granted_s += ended.seconds
        return took_s

    def lose(self, pass_: Pass) -> None:
        """Note that a pass was lost with its machine. The pass must be measured again. The lost time does not count."""
        del self._running[pass_]
        self._waiting += self._weights[pass_]

    @property
    def done(self) -> float:
        """Share of the whole run that is done, 0 to 1."""
        return (self._total - self._left()) / self._total

    @property
    def left_s(self) -> float:
        """Estimated seconds until the run ends, at the present speed.

        In the first 2% of the run, the result is the rest of the budget. Later, the rest of the budget is an upper
        limit, as long as passes keep to their budgets.
        """
        machines = max(1, min(self.machines, len(self._running) or self.machines))
        spent_s = self._spent_s + sum(budget.spent_s for budget in self._running.values())
        measured = self._total - self._before - self._left()
        rest_s = max(0.0, self._budget_s - spent_s)
        if measured < 0.02 * self._total:
            return rest_s / machines
        expected_s = spent_s / measured * self._left()
        kept = rest_s and self._spent_s <= _KEPT * self._granted_s
        return (min(expected_s, rest_s) if kept else expected_s) / machines

    def _left(self) -> float:
        running = (self._weights[pass_] * (1 - budget.share_done) for pass_, budget in self._running.items())
        return self._waiting + sum(running)
