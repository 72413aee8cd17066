"""The verdict on a claim, and the figures that decide it."""

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
"""The verdict on a claim. "different here": the figure has the stated sign, but a reason other than a wrong claim
explains why it misses the bound, or it was measured under another condition than the text's. "cannot tell": the
interval of the figure allows more than one verdict. "replayed": the figure comes from a virtual clock, which proves
nothing."""


class Words(NamedTuple):
    """How reports print a verdict: on one claim, on several claims, and as the start of a sentence."""

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
"""Direction of a bound. A measured figure is a bound if the measured range ended too early. "at least": the true figure
may be higher. "at most": the true figure may be lower. Empty: the figure is no bound."""


@dataclass(frozen=True)
class Judgement:
    """A verdict, its reason, the figure that decides it, the figure's interval, and the keys of the cases used.

    If `measured` is None, no single figure decides. Then `low` and `high` are the minimum and maximum of several
    figures.
    """

    verdict: ClaimVerdict
    reason: str
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    rows: tuple[str, ...] = ()
    bound: Bound = ""
    experiment: str = ""
    """If the verdict is `not measured`: the experiment that would measure the claim, if one exists. Else empty."""


@dataclass(frozen=True)
class Figure:
    """A measured figure with its interval, and the rows that it was computed from."""

    value: float
    low: float
    high: float
    rows: tuple[Row, ...]
    place: str = ""
    """Text that is printed after the value and says where it was measured, such as "at n_p 1024"."""

    @classmethod
    def counted(cls, value: float, *rows: Row, place: str = "") -> Figure:
        """Make a figure from an exact count. Both ends of its interval are equal to the value."""
        return cls(value, value, value, rows, place)

    @classmethod
    def of_repeats(cls, values: Sequence[float], rows: Iterable[Row], place: str = "") -> Figure:
        """Make a figure from repeated measurements: their median, with their minimum and maximum as the interval."""
        return cls(median(values), min(values), max(values), tuple(rows), place)

    @property
    def saved(self) -> Figure:
        """A copy with 1 - `value`. If `value` is a ratio of costs, this is the fraction that is saved."""
        return replace(self, value=1 - self.value, low=1 - self.high, high=1 - self.low)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(row.facts.key for row in self.rows)


def listed(figures: Iterable[Figure], each: str = "{:.2f}") -> str:
    """A text that lists the figures, with commas between them. Each figure is its value in the format `each`, then the
    text `place`."""
    return ", ".join(f"{each.format(figure.value)} {figure.place}" for figure in figures)


@dataclass(frozen=True)
class Stated:
    """A bound that a source text states for a figure.

    `decimals`: number of decimals of `bound`. A percentage is stored as a fraction: 52% is 0.52, with 2 decimals.
    `most`: upper end of a stated range."""

    direction: Bound
    bound: float
    decimals: int
    most: float = inf

    def verdict(self, low: float, high: float) -> Literal["holds", "more than stated", "cannot tell", "wrong"]:
        """Round both ends of the interval to `decimals`, then compare them with the bound. All claims use this rule.

        `wrong`: the whole interval lies on the wrong side of the bound. `more than stated`: the whole interval lies
        above `most`.
        """
        low, high = round(low, self.decimals), round(high, self.decimals)
        if self.direction == "at most":
            return "holds" if high <= self.bound else "wrong" if low > self.bound else "cannot tell"
        if low >= self.bound:
            return "more than stated" if low > self.most else "holds"
        return "wrong" if high < self.bound else "cannot tell"

    def worst_first(self, figures: Iterable[Figure]) -> list[Figure]:
        """Sort figures by their verdict: wrong, cannot tell, more than stated, holds. Among figures with the same
        verdict, the highest `high` comes first for the bound "at most", else the lowest `low`.

        So a range holds only if no figure lies above it.
        """
        at_most = self.direction == "at most"
        return sorted(figures, key=lambda figure: (self.goodness(figure), -figure.high if at_most else figure.low))

    def goodness(self, figure: Figure) -> int:
        """Rank of a figure's verdict: 0 if the figure is on the wrong side of the bound, up to 3 if it holds."""
        order = ("wrong", "cannot tell", "more than stated", "holds")
        return order.index(self.verdict(figure.low, figure.high))


ABOVE_1 = Stated("at least", 1 + 1e-9, 9)
"""A bound for texts that claim an increase but give no number: the figure must be above 1."""

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
    """Compare the figure of the worst point with the bound, and return the judgement.

    `cause`: a reason, other than a wrong claim, why a figure may miss the bound. `cause_above`: figures above this
    value show an effect in the direction that the text claims. The cause counts only if the whole interval lies above
    `cause_above`.
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
    """The verdict on a claim that states no bound: "holds" if `is_so`, else "does not hold"."""
    return "holds" if is_so else "does not hold"


def judged(verdict: ClaimVerdict, reason: str, figures: Sequence[Figure]) -> Judgement:
    """Make a judgement that rests on several figures. Reports print the first figure."""
    first = figures[0]
    keys = dict.fromkeys(key for figure in figures for key in figure.keys)
    return Judgement(verdict, reason, first.value, first.low, first.high, tuple(keys))


def replayed(words: str, figures: Sequence[Figure], agrees: bool | None = None) -> Judgement:
    """Make the judgement on a claim whose figures come from a virtual clock. `agrees`: whether the figures agree with
    the source text. With None, the reason says nothing about agreement."""
    ends = {None: "", True: "; this agrees with the text", False: "; the text says otherwise"}
    return judged("replayed", words + ends[agrees], figures)


def absent(what: str, experiment: str) -> Judgement:
    """Make the judgement "not measured". `what`: the measurement that the claim needs. `experiment`: the experiment
    that makes it."""
    reason = f"it needs {what}, which `chunkbench run {experiment}` measures"
    return Judgement("not measured", reason, experiment=experiment)
