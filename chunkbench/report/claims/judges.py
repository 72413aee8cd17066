"""What judges claims of a usual shape. A line of `JUDGES` names the question, and the bound that the text states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from chunkbench.report.claims.evidence import Judge
from chunkbench.report.claims.judgement import ClaimVerdict, Figure, Judgement, Stated, absent, decided, listed


def largest(figures: Sequence[Figure]) -> Sequence[Figure]:
    """An order in which the largest figure decides."""
    return [max(figures, key=lambda figure: figure.value), *figures]


def smallest(figures: Sequence[Figure]) -> Sequence[Figure]:
    """An order in which the smallest figure decides."""
    return [min(figures, key=lambda figure: figure.value), *figures]


def bounded(
    found: Iterable[Figure],
    stated: Stated,
    says: str,
    needs: tuple[str, str],
    each: str = "{:.2f}",
    cause: str = "",
    cause_above: float = -inf,
    order: Callable[[Sequence[Figure]], Sequence[Figure]] | None = None,
) -> Judgement:
    """The judgement of a claim that the figures of points keep to a bound.

    says: words of the verdict; {each} lists the figures, {it} is the one that decides, {least} and {most} are the ends
        of all {count}.
    needs: what has to be measured, and the experiment that measures it.
    each: how a listed value is written.
    cause, cause_above: as `decided` takes them.
    order: puts the figure that decides before the others (`list`: it is the first one); None: the worst before all.
    """
    figures = list(found)
    if not figures:
        return absent(*needs)
    values = [figure.value for figure in figures]
    first, *others = (order or stated.worst_first)(figures)
    ends = {"it": first.value, "least": min(values), "most": max(values), "count": len(values)}
    return decided(first, stated, says.format(each=listed(figures, each), **ends), others, cause, cause_above)


def fixed(verdict: ClaimVerdict, reason: str, measured: float | None = None) -> Judge:
    """The judge of a claim that follows from shapes or printed numbers, or that nothing here can measure."""
    judgement = Judgement(verdict, reason, measured)
    return lambda _: judgement
