"""Tables that rank implementations over many points: of one run, or of several runs of a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chunkbench.analysis.derive import Group
from chunkbench.analysis.ranking import CLOSE, Standing, is_close, over_fastest, standings
from chunkbench.report.cells import ABSENT
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import percent, times
from chunkbench.report.view import View

TITLE = "Kernels and planners over the points of all these runs"
LEGEND = (
    "mean, worst = latency over that of the fastest row of the same point, geometric mean and largest; "
    f"close = points with at least {CLOSE} of the fastest row's speed, or maybe = its interval allows that; "
    "roofline = geometric mean of its share. Rows with the same plan differ only by noise"
)


def ranking_table(title: str, groups: Sequence[Group], name: Callable[[str], str], confidence: float) -> Table:
    """A line for each implementation, the best mean first. `name` gives its name by id."""

    def share(points: int, standing: Standing) -> str:
        return percent(points / len(standing.ratios))

    columns: Sequence[Column[Standing]] = (
        Column("implementation", lambda standing: name(standing.implementation), align="left"),
        Column("points", lambda standing: str(len(standing.ratios))),
        Column("mean", lambda standing: times(standing.mean)),
        Column("worst", lambda standing: times(standing.worst)),
        Column("close", lambda standing: share(standing.close, standing)),
        Column("or maybe", lambda standing: share(standing.maybe_close, standing), ("or", "maybe")),
        Column("roofline", lambda standing: percent(standing.roofline_fraction)),
    )
    return Table(title, tuple(columns), standings(groups, confidence), 1)


def fastest_table(view: View) -> Table:
    """A line for each point: the fastest plan over the baseline's kernel, and the fastest row of all."""

    def fastest(group: Group, plans: bool) -> Cell | str:
        ratios = over_fastest(group, view.experiment.confidence)
        names = [name for name in ratios if not (plans and view.columns.competes(name, view.baseline))]
        return view.columns.name(min(names, key=lambda name: ratios[name].value)) if names else ABSENT

    def own(group: Group) -> str:
        over = over_fastest(group, view.experiment.confidence).get(view.baseline)
        return times(over.value if over else None)

    columns: Sequence[Column[Group]] = (
        Column("fastest plan", lambda group: fastest(group, True), ("fastest", "plan"), align="left"),
        Column("fastest row", lambda group: fastest(group, False), ("fastest", "row"), align="left"),
        Column(f"{view.columns.name(view.baseline)} over it", own, (*view.columns.heading(view.baseline), "over it")),
    )
    return view.table("Fastest at each point", lambda group: [group], columns)


def losses(view: View) -> str:
    """One line that names all points where the baseline is surely not close to the fastest row; empty if none is."""
    lost, unclear, compared = [], 0, 0
    for group in view.groups:
        ratios = over_fastest(group, view.experiment.confidence)
        if view.baseline not in ratios:
            continue
        compared += 1
        over = ratios[view.baseline]
        if is_close(over.low):
            unclear += not is_close(over.value)
            continue
        fastest = view.columns.name(min(ratios, key=lambda name: ratios[name].value))
        place = "/".join(view.text(axis, group.axes.get(axis)) for axis in view.axes)
        lost.append((over.value, f"{place} than {fastest} ({times(1 / over.value)})"))
    if not lost:
        return ""
    places = ", ".join(text for _, text in sorted(lost, reverse=True))
    axes = f" ({'/'.join(view.axes)})" if view.axes else ""
    more = f"; at {unclear} more it may be" if unclear else ""
    label = view.columns.name(view.baseline)
    return f"{label} is more than {1 - CLOSE:.0%} slower at {len(lost)} of {compared} points{axes}: {places}{more}."


def headline(view: View) -> str:
    """How often the baseline is close to the fastest row, and its mean beside the next one's."""
    name = view.columns.name
    found = {one.implementation: one for one in standings(view.groups, view.experiment.confidence)}
    if view.baseline not in found or len(found) < 2:
        return f"{name(view.baseline)} and another implementation were not measured side by side at any point."
    own = found.pop(view.baseline)
    best = min(found.values(), key=lambda standing: (-len(standing.ratios), standing.mean))
    return (
        f"{name(view.baseline)} has at least {CLOSE} of the fastest row's speed at {own.close} of {len(own.ratios)} "
        f"points, or maybe at {own.maybe_close}; its latency is {times(own.mean)} of the fastest row's (geometric "
        f"mean), that of the best other row, {name(best.implementation)}, {times(best.mean)}."
    )
