"""The judgement of a claim, and the figures that it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Literal, NamedTuple

from chunkbench.bench.analysis.derive import Row

ClaimVerdict = Literal["holds", "does not hold", "different here", "cannot tell", "replayed", "not measured"]
"""cannot tell: the figure was measured, but its interval allows more than one verdict. replayed: the figure comes from
a virtual clock, maybe with drawn requests, which proves nothing; the reason says whether it agrees."""


class Words(NamedTuple):
    """What reports print for a verdict: as a word, for several claims, and as the start of a sentence."""

    word: str
    several: str
    sentence: str


WORDS: Mapping[ClaimVerdict, Words] = {
    "holds": Words("holds", "hold", "It holds"),
    "does not hold": Words("does not hold", "do not hold", "It does not hold"),
    "different here": Words("different here", "different here", "It is different here"),
    "cannot tell": Words("cannot tell", "cannot tell", "These runs cannot tell"),
    "replayed": Words("replayed", "replayed", "It was replayed"),
    "not measured": Words("not measured", "not measured", "It was not measured"),
}
Bound = Literal["", "at least", "at most"]
"""What is known of a figure where the measured range ends."""


@dataclass(frozen=True)
class Judgement:
    """A verdict, its reason, the figure that decides it with its interval, and the keys of the cases used.

    `low` and `high` without `measured` are the range of several figures, of which none decides.
    """

    verdict: ClaimVerdict
    reason: str
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    rows: tuple[str, ...] = ()
    bound: Bound = ""


@dataclass(frozen=True)
class Figure:
    """A measured figure with its interval, and the rows that it was computed from."""

    value: float
    low: float
    high: float
    rows: tuple[Row, ...]
    place: str = ""
    """Where it was measured, in words that follow the value."""

    @classmethod
    def counted(cls, value: float, *rows: Row, place: str = "") -> Figure:
        """A counted figure: a point."""
        return cls(value, value, value, rows, place)

    @classmethod
    def of_repeats(cls, values: Sequence[float], rows: Iterable[Row], place: str = "") -> Figure:
        """The median of these values, with their range."""
        return cls(median(values), min(values), max(values), tuple(rows), place)

    @property
    def saved(self) -> Figure:
        """What a ratio below 1 saves, as a fraction."""
        return replace(self, value=1 - self.value, low=1 - self.high, high=1 - self.low)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(row.facts.key for row in self.rows)


def listed(figures: Iterable[Figure], each: str = "{:.2f}") -> str:
    """Figures with their places, as text. `each` writes a value."""
    return ", ".join(f"{each.format(figure.value)} {figure.place}" for figure in figures)


@dataclass(frozen=True)
class Stated:
    """What a text says of a figure: a bound, printed with so many decimals (of a share: of the fraction)."""

    direction: Bound
    bound: float
    decimals: int

    def verdict(self, low: float, high: float) -> Literal["holds", "cannot tell", "wrong"]:
        """The one rule: both ends of the interval are rounded as the text prints them, and compared with the bound.

        A counted figure is a point: both ends are equal. `wrong`: the whole interval lies on the wrong side.
        """
        low, high = round(low, self.decimals), round(high, self.decimals)
        if self.direction == "at most":
            return "holds" if high <= self.bound else "wrong" if low > self.bound else "cannot tell"
        return "holds" if low >= self.bound else "wrong" if high < self.bound else "cannot tell"

    def worst_first(self, figures: Iterable[Figure]) -> list[Figure]:
        """Figures by how far they are on the wrong side of the bound."""
        return sorted(figures, key=lambda figure: figure.value, reverse=self.direction == "at most")


UNCLEAR = "the interval lies on both sides of the bound"


def decided(
    worst: Figure,
    stated: Stated,
    words: str,
    figures: Iterable[Figure] = (),
    cause: str = "",
    cause_above: float = -inf,
) -> Judgement:
    """The judgement of a bound by the figure of the worst point.

    `cause`: what else may explain a figure on the wrong side, if its interval reaches above `cause_above`; empty if
    nothing does.
    """
    found = stated.verdict(worst.low, worst.high)
    if found == "cannot tell":
        return judged("cannot tell", f"{words}: {UNCLEAR}", [worst, *figures])
    if found == "holds":
        return judged("holds", words, [worst, *figures])
    if cause and worst.high > cause_above:
        return judged("different here", f"{words}; {cause}", [worst, *figures])
    return judged("does not hold", words, [worst, *figures])


def held(is_so: bool) -> ClaimVerdict:
    """The verdict on a claim that needs no bound."""
    return "holds" if is_so else "does not hold"


def judged(verdict: ClaimVerdict, reason: str, figures: Sequence[Figure]) -> Judgement:
    """A verdict on several figures. The first one is reported as the measured figure."""
    first = figures[0]
    keys = dict.fromkeys(key for figure in figures for key in figure.keys)
    return Judgement(verdict, reason, first.value, first.low, first.high, tuple(keys))


def replayed(words: str, figures: Sequence[Figure], agrees: bool | None = None) -> Judgement:
    """A replayed figure, whether it agrees with the stated one or not; None: the words say enough."""
    ends = {None: "", True: "; this agrees with the text", False: "; the text says otherwise"}
    return judged("replayed", words + ends[agrees], figures)


def absent(what: str, experiment: str) -> Judgement:
    """The judgement of a claim that needs `what`, which no run has and which this experiment measures."""
    return Judgement("not measured", f"it needs {what}, which `chunkbench run {experiment}` measures")
