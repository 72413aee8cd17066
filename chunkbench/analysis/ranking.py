"""How implementations rank over many points: each against the fastest one of the same point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from chunkbench.analysis.derive import Group
from chunkbench.analysis.ratio import Ratio, ratio

CLOSE = 0.97
"""A row that reaches this share of the fastest row's speed counts as equally fast."""


@dataclass(frozen=True)
class Standing:
    """An implementation over all points where it was measured beside the baseline."""

    implementation: str
    ratios: Sequence[Ratio]
    """Its latency over that of the fastest row of each point."""
    roofline_fraction: float | None
    """Geometric mean; None where nothing was probed."""

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return geometric_mean(over.value for over in self.ratios)

    @property
    def worst(self) -> float:
        return max(over.value for over in self.ratios)

    @property
    def close(self) -> int:
        """Number of points where it is as fast as the fastest row, or nearly."""
        return sum(is_close(over.value) for over in self.ratios)

    @property
    def maybe_close(self) -> int:
        """Number of points where the interval of the ratio allows that."""
        return sum(is_close(over.low) for over in self.ratios)


def is_close(over: float) -> bool:
    """Whether a latency over the fastest one counts as equally fast."""
    return over * CLOSE <= 1


def over_fastest(group: Group, confidence: float) -> dict[str, Ratio]:
    """Latency over that of the fastest row, of all rows that were measured side by side with the baseline."""
    ratios = {name: row.derived.ratio_to_baseline for name, row in group.rows.items()}
    measured = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    if not measured:
        return {}
    fastest = group.rows[min(measured, key=measured.__getitem__)].facts
    found = {name: ratio(group.rows[name].facts, fastest, confidence) for name in measured}
    return {name: each for name, each in found.items() if each is not None}


def standings(groups: Iterable[Group], confidence: float) -> list[Standing]:
    """All implementations, the best mean first."""
    ratios: dict[str, list[Ratio]] = {}
    fractions: dict[str, list[float]] = {}
    for group in groups:
        for name, over in over_fastest(group, confidence).items():
            ratios.setdefault(name, []).append(over)
            fraction = group.rows[name].derived.roofline_fraction
            if fraction is not None:
                fractions.setdefault(name, []).append(fraction)
    found = [
        Standing(name, each, geometric_mean(fractions[name]) if name in fractions else None)
        for name, each in ratios.items()
    ]
    return sorted(found, key=lambda standing: standing.mean)
