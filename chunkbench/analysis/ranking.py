"""How implementations rank over many points: each against the fastest one of the same point."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from chunkbench.analysis.derive import Group

CLOSE = 0.97
"""A row that reaches this share of the fastest row's speed counts as equally fast."""


@dataclass(frozen=True)
class Standing:
    """An implementation over all points where it was measured beside the baseline."""

    implementation: str
    ratios: Sequence[float]
    """Its latency over that of the fastest row of each point, from 1."""
    roofline_fraction: float | None
    """Geometric mean; None where nothing was probed."""

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios."""
        return geometric_mean(self.ratios)

    @property
    def worst(self) -> float:
        return max(self.ratios)

    @property
    def close(self) -> int:
        """Number of points where it is as fast as the fastest row, or nearly."""
        return sum(is_close(ratio) for ratio in self.ratios)


def is_close(ratio: float) -> bool:
    """Whether a latency over the fastest one counts as equally fast."""
    return 1 / ratio >= CLOSE


def over_fastest(group: Group) -> dict[str, float]:
    """Latency over that of the fastest row, of all rows that were measured side by side with the baseline."""
    ratios = {name: row.derived.ratio_to_baseline for name, row in group.rows.items()}
    measured = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    return {name: ratio / min(measured.values()) for name, ratio in measured.items()}


def standings(groups: Iterable[Group]) -> list[Standing]:
    """All implementations, the best mean first."""
    ratios: dict[str, list[float]] = {}
    fractions: dict[str, list[float]] = {}
    for group in groups:
        for name, ratio in over_fastest(group).items():
            ratios.setdefault(name, []).append(ratio)
            fraction = group.rows[name].derived.roofline_fraction
            if fraction is not None:
                fractions.setdefault(name, []).append(fraction)
    found = [
        Standing(name, each, geometric_mean(fractions[name]) if name in fractions else None)
        for name, each in ratios.items()
    ]
    return sorted(found, key=lambda standing: standing.mean)
