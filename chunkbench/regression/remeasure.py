"""Measuring again what looks changed, as often as is allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chunkbench.regression.verdicts import EXACT, CaseVerdict, Comparison


@dataclass(frozen=True)
class Gated:
    """What a gate found."""

    comparison: Comparison | None
    """None when it was interrupted before there was anything to compare."""
    interrupted: bool


def look_again(
    compared: Callable[[], Comparison],
    measure: Callable[[int, frozenset[str]], bool],
    again: int,
    threshold: float,
    interrupted: bool,
) -> Gated:
    """Compare, and while something looks changed, up to `again` times, measure that once more and compare anew.

    `measure` is given the number of the re-measurement and the keys of the cases, and says whether it was interrupted.
    """
    comparison = compared()
    for number in range(1, again + 1):
        changed = frozenset(case.key for case in comparison.cases if _looks_changed(case, threshold))
        if interrupted or not changed:
            break
        interrupted = measure(number, changed)
        comparison = compared()
    return Gated(comparison, interrupted)


def _looks_changed(case: CaseVerdict, threshold: float) -> bool:
    """Whether measuring a case again could change what is said of it: no later measurement has agreed with its verdict
    yet, or it has none and its ratio lies beyond half the threshold. A first look in a noisy minute is off by that."""
    if case.metric in EXACT or case.ratio is None:
        return False
    if case.verdict in ("slower", "faster"):
        return not case.remeasured
    return case.verdict == "inconclusive" and not 1 / (1 + threshold / 2) <= case.ratio <= 1 + threshold / 2
