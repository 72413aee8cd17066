"""Makes tables that rank implementations over many points. The points come from one run or from several runs of one
machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chunkbench.bench.analysis.ranking import CLOSE, Contest, Standing, is_close
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import ABSENT, count, percent, times
from chunkbench.report.view import View

TITLE = "Kernels and planners over the points of all these runs"
LEGEND = (
    "mean, worst = latency over the latency of the point's fastest row: geometric mean and maximum over the points; "
    f"close = share of points with at least {CLOSE} of the fastest row's speed; or maybe = share of points where the "
    "interval allows that; roofline = geometric mean of the roofline fraction. "
    "Rows with the same plan differ only by noise"
)


def ranking_table(title: str, ranked: Sequence[Standing], name: Callable[[str], str]) -> Table:
    """Make a table with one line for each implementation, in the order of `ranked`. `name` takes an id and returns the
    name to print."""

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
    return Table(title, tuple(columns), ranked, 1)


def fastest_table(view: View, contests: Sequence[Contest]) -> Table:
    """Make a table with one line for each point. It names the fastest variant of the baseline, and the fastest
    implementation of all."""
    name = view.columns.name

    def fastest_plan(contest: Contest) -> Cell | str:
        plans = [one for one in contest.over if not view.columns.competes(one, view.baseline)]
        return name(min(plans, key=lambda one: contest.over[one].value)) if plans else ABSENT

    def own(contest: Contest) -> str:
        over = contest.over.get(view.baseline)
        return times(over.value if over else None)

    columns: Sequence[Column[Contest]] = (
        Column("fastest plan", fastest_plan, ("fastest", "plan"), align="left"),
        Column("fastest row", lambda contest: name(contest.fastest), ("fastest", "row"), align="left"),
        Column(f"{name(view.baseline)} over it", own, (*view.columns.heading(view.baseline), "over it")),
    )
    of_point = {id(contest.group): contest for contest in contests}
    return view.only([contest.group for contest in contests]).table(
        "Fastest at each point", lambda group: [of_point[id(group)]], columns
    )


def losses(view: View, contests: Sequence[Contest]) -> str:
    """One line that lists the points where the baseline is surely not close to the fastest implementation. Empty
    without such points."""
    with_baseline = [contest for contest in contests if view.baseline in contest.over]
    own = [(contest.over[view.baseline], contest) for contest in with_baseline]
    lost = [(over.value, contest) for over, contest in own if not is_close(over.low)]
    if not lost:
        return ""

    def named(value: float, contest: Contest) -> str:
        place = "/".join(view.text(axis, contest.group.axes.get(axis)) for axis in view.axes)
        return f"{place} than {view.columns.name(contest.fastest)} ({times(1 / value)})"

    worst_first = sorted(lost, key=lambda pair: pair[0], reverse=True)
    places = ", ".join(named(*pair) for pair in worst_first)
    axes = f" ({'/'.join(view.axes)})" if view.axes else ""
    unclear = sum(is_close(over.low) and not is_close(over.value) for over, _ in own)
    more = f"; at {count(unclear, 'more point')} it may be" if unclear else ""
    label = view.columns.name(view.baseline)
    return f"{label} is more than {1 - CLOSE:.0%} slower at {len(lost)} of {len(own)} points{axes}: {places}{more}."


def headline(view: View, ranked: Sequence[Standing]) -> str:
    """A sentence that says how often the baseline is close to the fastest implementation, and compares its mean with
    the mean of the best other implementation."""
    name = view.columns.name
    found = {one.implementation: one for one in ranked}
    if view.baseline not in found or len(found) < 2:
        return f"At no point was {name(view.baseline)} measured beside another implementation."
    own = found.pop(view.baseline)
    best = min(found.values(), key=lambda standing: (-len(standing.ratios), standing.mean))
    return (
        f"{name(view.baseline)} has at least {CLOSE} of the fastest row's speed at {own.close} of {len(own.ratios)} "
        f"points, or maybe at {own.maybe_close}; its latency is {times(own.mean)} of the fastest row's (geometric "
        f"mean), that of the best other row, {name(best.implementation)}, {times(best.mean)}."
    )
