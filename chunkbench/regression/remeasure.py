"""Measuring again what looks changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from chunkbench.regression.verdicts import EXACT, CaseVerdict, Comparison

_BUDGETS = 6
"""A gate takes at most this many times the budget of one measurement, if one re-measurement leaves that choice: the
fewest processes may take longer than the budget, and whoever waits for a gate wants an answer within minutes."""
_RESERVE = 1.1
"""A re-measurement is expected to take this many times as long as the longest one so far."""


@dataclass(frozen=True)
class GateResult:
    """The result of `gate` or `regress`."""

    comparison: Comparison | None
    """None if an interruption came before there was anything to compare."""
    interrupted: bool


def remeasure_changed(
    compare: Callable[[], Comparison],
    measure: Callable[[int, frozenset[str]], bool],
    again: int,
    threshold: float,
    interrupted: bool,
    began: float,
    budget_s: float,
) -> GateResult:
    """Compare. While a case looks changed, measure it again and compare again, at most `again` times.

    The second re-measurement and later ones start only if they are expected to end within six times `budget_s` from
    `began`, when the gate began (`time.monotonic`). `measure` takes the number of the re-measurement and the keys of
    the cases; it returns whether it was interrupted.
    """
    comparison = compare()
    longest_s = longest_per_case_s = 0.0
    for number in range(1, again + 1):
        changed = frozenset(case.key for case in comparison.cases if _looks_changed(case, threshold))
        started = monotonic()
        expected_s = _RESERVE * max(longest_s, longest_per_case_s * len(changed))
        too_late = number > 1 and started + expected_s > began + _BUDGETS * budget_s
        if interrupted or not changed or too_late:
            break
        interrupted = measure(number, changed)
        comparison = compare()
        took_s = monotonic() - started
        longest_s, longest_per_case_s = max(longest_s, took_s), max(longest_per_case_s, took_s / len(changed))
    return GateResult(comparison, interrupted)


def _looks_changed(case: CaseVerdict, threshold: float) -> bool:
    """Whether another measurement of the case can change its verdict.

    It can if the verdict is slower or faster and no re-measurement has confirmed it; and if the verdict is inconclusive
    and the ratio lies beyond half the threshold. A first measurement in a noisy minute has an error of that size.
    """
    if case.metric in EXACT or case.ratio is None:
        return False
    if case.verdict in ("slower", "faster"):
        return not case.remeasured
    return case.verdict == "inconclusive" and not 1 / (1 + threshold / 2) <= case.ratio <= 1 + threshold / 2
