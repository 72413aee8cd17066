"""Tables that rank implementations over many points: of one run, or of several runs of a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chunkbench.analysis.derive import Group
from chunkbench.analysis.ranking import CLOSE, Standing, is_close, over_fastest, standings
from chunkbench.report.columns import Columns
from chunkbench.report.model import Column, Table
from chunkbench.report.numbers import percent, times
from chunkbench.report.view import View

TITLE = "Kernels and planners over the points of all these runs"
LEGEND = (
    "mean, worst = latency over that of the fastest row of the same point, geometric mean and largest; "
    f"close = points with at least {CLOSE} of the fastest row's speed; roofline = geometric mean of its share"
)


def ranking_table(title: str, groups: Sequence[Group], name: Callable[[str], str]) -> Table:
    """A line for each implementation, the best mean first. `name` gives its name by id."""

    columns: Sequence[Column[Standing]] = (
        Column("implementation", lambda standing: name(standing.implementation), align="left"),
        Column("points", lambda standing: str(len(standing.ratios))),
        Column("mean", lambda standing: times(standing.mean)),
        Column("worst", lambda standing: times(standing.worst)),
        Column("close", lambda standing: percent(standing.close / len(standing.ratios))),
        Column("roofline", lambda standing: percent(standing.roofline_fraction)),
    )
    return Table(title, tuple(columns), standings(groups), 1)


def losses(view: View) -> str:
    """One line that names all points where the baseline is not close to the fastest row; empty if there are none."""
    lost, compared = [], 0
    for group in view.groups:
        ratios = over_fastest(group)
        if view.baseline not in ratios:
            continue
        compared += 1
        ratio = ratios[view.baseline]
        if not is_close(ratio):
            fastest = min(ratios, key=ratios.__getitem__)
            place = "/".join(view.text(axis, group.axes.get(axis)) for axis in view.axes)
            lost.append((ratio, f"{place} than {view.columns.name(fastest)} ({times(1 / ratio)})"))
    if not lost:
        return ""
    places = ", ".join(text for _, text in sorted(lost, reverse=True))
    axes = f" ({'/'.join(view.axes)})" if view.axes else ""
    label = view.columns.name(view.baseline)
    return f"{label} is more than {1 - CLOSE:.0%} slower at {len(lost)} of {compared} points{axes}: {places}."


def headline(groups: Sequence[Group], baseline: str, columns: Columns) -> str:
    """How often the baseline is close to the fastest row, and its mean beside the next one's."""
    found = {standing.implementation: standing for standing in standings(groups)}
    if baseline not in found or len(found) < 2:
        return f"{columns.name(baseline)} and another implementation were not measured side by side at any point."
    own = found.pop(baseline)
    best = min(found.values(), key=lambda standing: standing.mean)
    return (
        f"{columns.name(baseline)} has at least {CLOSE} of the fastest row's speed at {own.close} of "
        f"{len(own.ratios)} points; its latency is {times(own.mean)} of the fastest row's (geometric mean), that of "
        f"the best other row over all points, {columns.name(best.implementation)}, {times(best.mean)}."
    )
