"""Ranks implementations over many points: each is compared with the fastest implementation of the same point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from chunkbench.bench.analysis.derive import Group
from chunkbench.bench.analysis.ratio import Ratio, ratio

CLOSE = 0.97
"""A row that reaches this share of the fastest row's speed counts as equally fast."""


@dataclass(frozen=True)
class Standing:
    """How one implementation ranks over all points where it was measured together with the baseline."""

    implementation: str
    ratios: Sequence[Ratio]
    """For each point: the latency of the implementation divided by the latency of the fastest row."""
    roofline_fraction: float | None
    """Geometric mean of the roofline fractions of the points; None if no round probed the machine's peaks."""

    @property
    def mean(self) -> float:
        return geometric_mean(over.value for over in self.ratios)

    @property
    def worst(self) -> float:
        return max(over.value for over in self.ratios)

    @property
    def close(self) -> int:
        """Number of points where the implementation counts as equally fast as the fastest row (`CLOSE`)."""
        return sum(is_close(over.value) for over in self.ratios)

    @property
    def maybe_close(self) -> int:
        """Number of points where the implementation may be as fast as the fastest row: `is_close` is true for the lower
        end of the ratio's interval."""
        return sum(is_close(over.low) for over in self.ratios)


def is_close(over: float) -> bool:
    """Whether `over`, a latency divided by the fastest latency, counts as equally fast."""
    return over * CLOSE <= 1


@dataclass(frozen=True)
class Contest:
    """The rows of a point that were measured together with the baseline."""

    group: Group
    fastest: str
    over: Mapping[str, Ratio]
    """Latency of each row divided by the latency of the fastest row."""


def contests(groups: Iterable[Group], confidence: float) -> list[Contest]:
    """Every point with rows that were measured together with the baseline."""
    found = []
    for group in groups:
        ratios = {name: row.derived.ratio_to_baseline for name, row in group.rows.items()}
        measured = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        if measured:
            fastest = min(measured, key=measured.__getitem__)
            over = {name: ratio(group.rows[name].facts, group.rows[fastest].facts, confidence) for name in measured}
            found.append(Contest(group, fastest, {name: each for name, each in over.items() if each is not None}))
    return found


def standings(contests: Iterable[Contest]) -> list[Standing]:
    """Rank all implementations, the best mean first."""
    ratios: dict[str, list[Ratio]] = {}
    fractions: dict[str, list[float]] = {}
    for contest in contests:
        for name, over in contest.over.items():
            ratios.setdefault(name, []).append(over)
            fraction = contest.group.rows[name].derived.roofline_fraction
            if fraction is not None:
                fractions.setdefault(name, []).append(fraction)
    found = [
        Standing(name, each, geometric_mean(fractions[name]) if name in fractions else None)
        for name, each in ratios.items()
    ]
    return sorted(found, key=lambda standing: standing.mean)
