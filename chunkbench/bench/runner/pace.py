"""Shares the budget of a run among its passes, and knows how much of the run is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chunkbench.bench.runner.passes import Budget, Pass

_KEPT = 1.25
"""Passes keep to the budget while they take at most this part of their shares. A small one has no room for the fewest
rounds, and then it bounds nothing."""


class Pace:
    """Passes share the budget by their weights. Several can run at the same time, each on a machine of its own.

    The budget is time of machines: with two machines, a run ends after about half of it.
    """

    def __init__(self, weights: Mapping[Pass, int], pending: Iterable[Pass], budget_s: float) -> None:
        """`weights` has all passes of the run. Those that are not `pending` were measured before it was resumed."""
        self._weights = weights
        self._total = sum(weights.values())
        self._waiting = sum(weights[pass_] for pass_ in pending)
        self._before = self._total - self._waiting
        self._budget_s = budget_s * self._waiting / self._total if self._total else 0.0
        self._running: dict[Pass, Budget] = {}
        self._spent_s = self._granted_s = 0.0  # by passes that have ended, and what they were to take
        self.machines = 1
        """How many machines measure at the same time."""

    def begin(self, pass_: Pass) -> Budget:
        """A pass starts. Returns its share of the budget that is left."""
        weight = self._weights[pass_]
        promised_s = sum(max(other.seconds, other.spent_s) for other in self._running.values())
        left_s = max(0.0, self._budget_s - self._spent_s - promised_s)
        self._running[pass_] = budget = Budget(left_s * weight / self._waiting)
        self._waiting -= weight
        return budget

    def end(self, pass_: Pass) -> float:
        """A pass is done. Returns the seconds that it took."""
        ended = self._running.pop(pass_)
        took_s = ended.spent_s
        self._spent_s += took_s
        self._granted_s += ended.seconds
        return took_s

    def lose(self, pass_: Pass) -> None:
        """A pass was lost with its machine: it has to be measured again, and costs the others nothing."""
        del self._running[pass_]
        self._waiting += self._weights[pass_]

    @property
    def done(self) -> float:
        """Share of the whole run that is done, 0 to 1."""
        return (self._total - self._left()) / self._total

    @property
    def left_s(self) -> float:
        """Seconds left at the pace so far. While passes keep to their shares of the budget, no more than its rest; in
        the first 2% of the run it is that rest."""
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
