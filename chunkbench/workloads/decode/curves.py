"""The curves of the speed-up figure: latency of every other implementation over the baseline's latency. Values are
measured here or printed in the paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chunkbench.bench.analysis.derive import Group
from chunkbench.report.figures.style import Values, axis_label, by_values
from chunkbench.report.layout import Report
from chunkbench.report.printed import STANDS_FOR

SHARE = "n_s / n_p"


@dataclass(frozen=True)
class Spot:
    """A point of a curve. `low` and `high` are the ends of its interval. The paper's values have none."""

    x: float
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the interval. Without an interval both ends are the value."""
        return self.low or self.value, self.high or self.value


@dataclass(frozen=True)
class Curve:
    """The values of one implementation, sorted by x. `here`: measured values. `paper`: values that the paper prints."""

    implementation: str
    label: str
    here: tuple[Spot, ...]
    paper: tuple[Spot, ...]


@dataclass(frozen=True)
class Panel:
    """Curves for one combination of the axes that are not on the x-axis."""

    title: Values
    curves: tuple[Curve, ...]

    @property
    def here(self) -> list[Spot]:
        return [spot for curve in self.curves for spot in curve.here]

    @property
    def paper(self) -> list[Spot]:
        return [spot for curve in self.curves for spot in curve.paper]


def x_axis(report: Report) -> str:
    """Name of the numeric axis with the most values. For `n_s / n_p`, only values at one n_p count. If several axes
    have equally many values, `n_s / n_p` is preferred, then the last axis of `report.varying`. Without an axis of two
    values, it is `n_s / n_p`.
    """
    shares: dict[object, set[object]] = {}
    for group in report.groups:
        if _x(group, SHARE) is not None:
            shares.setdefault(group.axes["n_p"], set()).add(group.axes["n_s"])
    counts = {SHARE: max(map(len, shares.values()), default=0)}
    for axis in reversed(report.varying):
        values = {_x(group, axis) for group in report.groups} - {None}
        counts[axis] = 0 if axis == "n_s" else len(values)
    best = max(counts, key=lambda axis: counts[axis])
    return best if counts[best] > 1 else SHARE


def x_label(report: Report) -> str:
    axis = x_axis(report)
    return "shared part of the prompt, $n_s / n_p$" if axis == SHARE else axis_label(axis)


def undrawn(report: Report) -> int:
    """Number of points that have no value on the x-axis. Example: trees, if the x-axis is the number of prompts."""
    axis = x_axis(report)
    return sum(_x(group, axis) is None for group in report.groups)


def panels(report: Report) -> list[Panel]:
    """A panel for each combination of the axes that are not on the x-axis. Panels without curves are left out."""
    axis = x_axis(report)
    panel_axes = [a for a in report.varying if a != axis and not (axis == SHARE and a == "n_s")]
    drawn = by_values((group for group in report.groups if _x(group, axis) is not None), panel_axes)
    candidates = [Panel(title, tuple(_curves(groups, report, axis))) for title, groups in drawn.items()]
    return [panel for panel in candidates if panel.curves]


def _curves(groups: Sequence[Group], report: Report, axis: str) -> list[Curve]:
    others = [name for name in report.columns.ids if name != report.baseline]
    owners = _owners(report, others)
    curves = []
    for implementation in others:
        here: list[Spot] = []
        paper: list[Spot] = []
        for group in groups:
            x, row = _x(group, axis), group.rows.get(implementation)
            if x is None or row is None:
                continue
            derived = row.derived
            if derived.ratio_to_baseline is not None:
                here.append(Spot(x, derived.ratio_to_baseline, derived.ratio_low, derived.ratio_high))
            if (
                derived.paper_ratio is not None
                and owners[STANDS_FOR.get(implementation, implementation)] == implementation
            ):
                paper.append(Spot(x, derived.paper_ratio))
        if here or paper:
            curves.append(Curve(implementation, report.columns.name(implementation), by_x(here), by_x(paper)))
    return curves


def _owners(report: Report, implementations: Sequence[str]) -> Mapping[str, str]:
    """Column of the paper -> the implementation that gives its style to the paper's curve.

    Of several candidates, a measured one comes first, then the paper's own implementation, then a substitute for it.
    """

    def rank(implementation: str) -> tuple[bool, bool]:
        ran = any(
            implementation in group.rows and group.rows[implementation].derived.ratio_to_baseline is not None
            for group in report.groups
        )
        return (not ran, implementation in STANDS_FOR)

    owners: dict[str, str] = {}
    for implementation in sorted(implementations, key=rank):
        owners.setdefault(STANDS_FOR.get(implementation, implementation), implementation)
    return owners


def by_x(spots: Sequence[Spot]) -> tuple[Spot, ...]:
    return tuple(sorted(spots, key=lambda spot: spot.x))


def _x(group: Group, axis: str) -> float | None:
    if axis != SHARE:
        # A tree has no number of prompts.
        value = None if axis == "prompts" and group.axes.get("tree") is not None else group.axes.get(axis)
        return float(value) if isinstance(value, int) else None
    n_p, n_s = group.axes.get("n_p"), group.axes.get("n_s")
    return n_s / n_p if isinstance(n_p, int) and isinstance(n_s, int) else None
