"""Differences that nothing but a change of the code explains, however the machine behaved meanwhile.

Intervals need rounds that ran while the machine was in the same state. Sometimes there are none, or too few, though one
side is twenty times as slow. This rule needs none: every process of HEAD must lie beyond every process of BASE, by more
than twice (in logarithms) what fixed work, timed beside both, says about the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Literal, NamedTuple

from chunkbench.regression.own_ratio import OwnRatio

_FEW, _ONE = 1.5, 2.0
"""Ratios that are left for the code, at least: with few processes on a side, and with one."""


class ByFar(NamedTuple):
    """A verdict, and the ratio of times that it rests on, HEAD over BASE: the middle, the least and the most."""

    verdict: Literal["slower", "faster"]
    ratio: float
    low: float
    high: float
    explained: float
    """The largest ratio that the machine's own change explains."""


def by_far(
    base: Sequence[float], head: Sequence[float], own: OwnRatio | None, threshold: float, error: float
) -> ByFar | None:
    """The verdict on the times of both sides, one per process; None unless it is one by far.

    `own` is None if no fixed work was timed on both sides: then the machine may have changed by a factor of two.
    `error` is the error probability that the caller allows: all of one side beyond all of the other happens by chance
    once in (m + n over m) tries.
    """
    machine = OwnRatio(0.5, 2.0) if own is None else OwnRatio(min(own.low, 1.0) ** 2, max(own.high, 1.0) ** 2)
    low, high = min(head) / max(base), max(head) / min(base)
    left = _left_for_code(len(base), len(head), threshold, error)
    middle = sorted(head)[len(head) // 2] / sorted(base)[len(base) // 2]
    if low > machine.high * left:
        return ByFar("slower", middle, low, high, machine.high)
    if high < machine.low / left:
        return ByFar("faster", middle, low, high, machine.low)
    return None


def _left_for_code(base: int, head: int, threshold: float, error: float) -> float:
    """How large a ratio must be beyond what the machine explains."""
    if min(base, head) == 1:
        return _ONE
    return 1 + threshold if 2 / comb(base + head, base) <= error else _FEW
