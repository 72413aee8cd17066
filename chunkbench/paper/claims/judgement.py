"""What can be said of a claim, and what it is said from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chunkbench.analysis.derive import Row

Verdict = Literal["holds", "does not hold", "different here", "needs a GPU", "not measured"]


@dataclass(frozen=True)
class Judgement:
    """A verdict, with the figure that it rests on, the interval of that, and the keys of the cases used."""

    verdict: Verdict
    reason: str
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """A measured figure with its interval and the rows that it was formed from."""

    value: float
    low: float
    high: float
    rows: tuple[Row, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(row.facts.key for row in self.rows)


def judged(verdict: Verdict, reason: str, figures: Sequence[Figure]) -> Judgement:
    """A verdict on several figures, the first of which stands for them all."""
    first = figures[0]
    keys = dict.fromkeys(key for figure in figures for key in figure.keys)
    return Judgement(verdict, reason, first.value, first.low, first.high, tuple(keys))


def absent(what: str, run: str) -> Judgement:
    """`what` it takes to judge a claim was not measured."""
    return Judgement("not measured", f"it takes {what}, which `chunkbench run {run}` measures")
