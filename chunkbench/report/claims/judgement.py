"""The judgement of a claim, and the figures that it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Literal, NamedTuple

from chunkbench.bench.analysis.derive import Row

ClaimVerdict = Literal[
    "holds", "more than stated", "does not hold", "different here", "cannot tell", "replayed", "not measured"
]
"""cannot tell: the figure was measured, but its interval allows more than one verdict. replayed: the figure comes from
a virtual clock, which proves nothing; the reason says whether the figure agrees with the text."""


class Words(NamedTuple):
    """The words that reports print for a verdict: for one claim, for several claims, and as the start of a sentence."""

    word: str
    several: str
    sentence: str


WORDS: Mapping[ClaimVerdict, Words] = {
    "holds": Words("holds", "hold", "It holds"),
    "more than stated": Words("more than stated", "more than stated", "It is more than stated"),
    "does not hold": Words("does not hold", "do not hold", "It does not hold"),
    "different here": Words("different here", "different here", "It is different here"),
    "cannot tell": Words("cannot tell", "cannot tell", "These runs cannot tell"),
    "replayed": Words("replayed", "replayed", "It was replayed"),
    "not measured": Words("not measured", "not measured", "It was not measured"),
}
Bound = Literal["", "at least", "at most"]
"""Whether a figure is only a bound, because the measured range ends there."""


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
    experiment: str = ""
    """The experiment that would measure what is missing; empty if none does, or if nothing is missing."""


@dataclass(frozen=True)
class Figure:
    """A measured figure with its interval, and the rows that it was computed from."""

    value: float
    low: float
    high: float
    rows: tuple[Row, ...]
    place: str = ""
    """Where the figure was measured, in words that follow the value."""

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
        """1 - ratio: the fraction that a ratio below 1 saves."""
        return replace(self, value=1 - self.value, low=1 - self.high, high=1 - self.low)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(row.facts.key for row in self.rows)


def listed(figures: Iterable[Figure], each: str = "{:.2f}") -> str:
    """Values with their places in words, as text. `each` is the format of a value."""
    return ", ".join(f"{each.format(figure.value)} {figure.place}" for figure in figures)


@dataclass(frozen=True)
class Stated:
    """A bound that a text states for a figure. `decimals`: decimals of the printed bound; of a share, decimals of the
    fraction. `most`: the upper end, if the text states a range; a figure above it is more than stated."""

    direction: Bound
    bound: float
    decimals: int
    most: float = inf

    def verdict(self, low: float, high: float) -> Literal["holds", "more than stated", "cannot tell", "wrong"]:
        """Round both ends of the interval to the decimals of the text, then compare both with the bound. All claims use
        this rule.

        A counted figure is a point: both ends are equal. `wrong`: the whole interval lies on the wrong side. `more than
        stated`: the whole interval lies above the stated range.
        """
        low, high = round(low, self.decimals), round(high, self.decimals)
        if self.direction == "at most":
            return "holds" if high <= self.bound else "wrong" if low > self.bound else "cannot tell"
        if low >= self.bound:
            return "more than stated" if low > self.most else "holds"
        return "wrong" if high < self.bound else "cannot tell"

    def worst_first(self, figures: Iterable[Figure]) -> list[Figure]:
        """Sort figures: those on the wrong side first, then those that cannot be told, then the others; within each by
        the end of the interval that lies furthest on the wrong side. So the interval decides, not the value alone."""
        at_most = self.direction == "at most"
        return sorted(figures, key=lambda figure: (self.goodness(figure), -figure.high if at_most else figure.low))

    def goodness(self, figure: Figure) -> int:
        """0 for a figure on the wrong side, more for the other verdicts."""
        order = ("wrong", "cannot tell", "holds", "more than stated")
        return order.index(self.verdict(figure.low, figure.high))


ABOVE_1 = Stated("at least", 1 + 1e-9, 9)
"""More than 1, without rounding: the text gives no figure."""

UNCLEAR = "the interval lies on both sides of the bound"
NO_SIGN = "the interval lies on both sides of no effect"


def decided(
    worst: Figure,
    stated: Stated,
    words: str,
    figures: Iterable[Figure] = (),
    cause: str = "",
    cause_above: float = -inf,
) -> Judgement:
    """The judgement of a bound by the figure of the worst point.

    `cause`: another explanation of a figure on the wrong side, used if the whole interval lies above `cause_above`;
    empty without such an explanation. An explanation counts only for an effect with the stated sign.
    """
    found = stated.verdict(worst.low, worst.high)
    if found == "cannot tell":
        return judged("cannot tell", f"{words}: {UNCLEAR}", [worst, *figures])
    if found != "wrong":
        return judged(found, words, [worst, *figures])
    if cause and worst.low > cause_above:
        return judged("different here", f"{words}; {cause}", [worst, *figures])
    if cause and worst.high > cause_above:
        return judged("cannot tell", f"{words}: {NO_SIGN}", [worst, *figures])
    return judged("does not hold", words, [worst, *figures])


def held(is_so: bool) -> ClaimVerdict:
    """The verdict on a claim without a bound."""
    return "holds" if is_so else "does not hold"


def judged(verdict: ClaimVerdict, reason: str, figures: Sequence[Figure]) -> Judgement:
    """A verdict on several figures. The first figure is reported as the measured figure."""
    first = figures[0]
    keys = dict.fromkeys(key for figure in figures for key in figure.keys)
    return Judgement(verdict, reason, first.value, first.low, first.high, tuple(keys))


def replayed(words: str, figures: Sequence[Figure], agrees: bool | None = None) -> Judgement:
    """The judgement of replayed figures. `agrees`: whether the figure agrees with the stated figure; None adds no words
    about that."""
    ends = {None: "", True: "; this agrees with the text", False: "; the text says otherwise"}
    return judged("replayed", words + ends[agrees], figures)


def absent(what: str, experiment: str) -> Judgement:
    """The judgement of a claim that no run can decide: the claim needs `what`, which the named experiment measures."""
    reason = f"it needs {what}, which `chunkbench run {experiment}` measures"
    return Judgement("not measured", reason, experiment=experiment)
