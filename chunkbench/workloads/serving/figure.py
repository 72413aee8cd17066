"""Draws the figure of a serving run: normalized latency against load (the paper's Figure 5), and K/V memory and batch
over time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunkbench.bench.analysis.derive import Group
from chunkbench.bench.experiment.axes import AXES
from chunkbench.bench.store import Manifest
from chunkbench.report.figures.style import (
    DASHES,
    MOST_PANELS,
    caption,
    conditions,
    handle,
    panel_title,
    sharing,
    sheet,
    ticks_at,
    values,
)
from chunkbench.report.layout import Report
from chunkbench.workloads.serving import strip
from chunkbench.workloads.serving.constrained import answers_per_s
from chunkbench.workloads.serving.objective import OBJECTIVE_LOAD, objective_s, shares_one_prefix
from chunkbench.workloads.serving.result import ServerFacts, ServingResult

Spot = tuple[float, float, float, float]
"""(requests per second, latency, latency of the fastest arrival seed, latency of the slowest)."""
_MOST_POINTS = 4


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw the figure of a serving run. Latency against load is drawn if systems were measured at several rates. None
    if there is nothing to draw.
    """
    points = _servers_at_points(report)
    panels = _by_length(report.groups, report.columns.ids)
    closed = _by_clients(report)
    pieces: list[strip.Written] = []
    if closed:
        pieces = strip.written(report)
        points, across = [], len(closed) + bool(pieces)
    elif panels:
        points = [point for n_p in panels if (point := _closest([p for p in points if p[0].axes["n_p"] == n_p]))]
        across = len(panels)
    else:
        points = points[:_MOST_POINTS]
        across = len(points)
    if not across:
        return None
    columns = report.columns
    shown = {name for lines in panels.values() for name, _ in lines} | {name for _, lines in points for name in lines}
    shown |= {name for _, lines in closed for name in lines}
    handles = [handle(columns.line_style(name), columns.name(name)) for name in columns.ids if name in shown]
    total = len(closed) + bool(pieces) + len(panels) + 2 * len(points)
    page = sheet(_caption(report, manifest, bool(panels), bool(points), bool(closed)), handles, total, across, False)
    plots = iter(page.panels)
    for axes, answered in closed:
        _answered(next(plots), axes, answered, report)
    if pieces:
        strip.draw(next(plots), pieces)
    for n_p, lines in panels.items():
        _latencies(next(plots), n_p, lines, objective_s(report.rows, n_p), report)
    for label, value in (("K/V of live requests, MB", _megabytes), ("batch, sequences", _batch)):
        for group, servers in points:
            plot = next(plots)
            for name, server in servers.items():
                spots = [(moment[0], value(moment)) for moment in server.timeline if value(moment) is not None]
                if spots:
                    seconds, amounts = zip(*spots, strict=True)
                    style = columns.line_style(name)
                    plot.plot(seconds, amounts, **style.line2d(markevery=10, markersize=4, linewidth=1.4))
            panel_title(plot, values(group.axes, report.varying))
            plot.set_ylim(bottom=0)
            plot.set_xlabel("seconds after the first request")
            plot.set_ylabel(label)
    return page.figure


def _latencies(
    plot: Axes, n_p: int, lines: Mapping[tuple[str, int], Sequence[Spot]], objective: float | None, report: Report
) -> None:
    """Draw latency against the rate, with a line for each system and n_s."""
    most = max(n_s for _, n_s in lines)
    for (name, n_s), spots in lines.items():
        style = report.columns.line_style(name)
        rates, middles, lows, highs = zip(*sorted(spots), strict=True)
        plot.plot(rates, middles, **style.line2d(markersize=5, **sharing(n_s == most)))
        plot.fill_between(rates, lows, highs, color=style.colour, alpha=0.12, linewidth=0)
        # Labels of the baseline are below the lines, other labels above, because the lines often lie close together.
        above = name != report.baseline
        plot.annotate(
            f"$n_s = {n_s}$",
            (rates[-1], middles[-1]),
            fontsize="small",
            color=style.colour,
            xytext=(0, 6 if above else -6),
            textcoords="offset points",
            ha="right",
            va="bottom" if above else "top",
        )
    if objective is not None:
        plot.axhline(objective * 1e3, color="#444444", linewidth=0.9, linestyle=DASHES)
        place = (0.99, objective * 1e3)
        across = plot.get_yaxis_transform()
        plot.text(*place, "objective", transform=across, fontsize="small", color="#444444", ha="right", va="bottom")
    panel_title(plot, values({"n_p": n_p}, ["n_p"]))
    plot.set_ylim(bottom=0)
    plot.margins(x=0.15)
    plot.set_xlabel("requests per second")
    plot.set_ylabel("normalized latency, ms/token")


def _answered(plot: Axes, axes: Mapping[str, Any], lines: Mapping[str, Sequence[Spot]], report: Report) -> None:
    """Draw answers per second of a closed loop, with a line for each system."""
    across = _across(report)
    for name, spots in lines.items():
        style = report.columns.line_style(name)
        places, middles, lows, highs = zip(*sorted(spots), strict=True)
        plot.plot(places, middles, **style.line2d(markersize=5))
        plot.fill_between(places, lows, highs, color=style.colour, alpha=0.12, linewidth=0)
    panel_title(plot, values(axes, list(axes)))
    plot.set_ylim(bottom=0)
    if across == "clients":
        plot.set_xscale("log", base=2)
    ticks = sorted({spot[0] for spots in lines.values() for spot in spots})
    apart = 0 if across == "clients" else (ticks[-1] - ticks[0]) / 15  # so that the tick labels do not overlap
    ticks_at(
        plot.xaxis, [tick for tick, next in zip(ticks, [*ticks[1:], math.inf], strict=True) if next - tick >= apart]
    )
    plot.set_xlabel(AXES[across].label)
    plot.set_ylabel("answers per second")


def _across(report: Report) -> str:
    """The x-axis of the panels of closed loops."""
    return "forced" if "forced" in report.varying else "clients"


def _by_clients(report: Report) -> Sequence[tuple[Mapping[str, Any], Mapping[str, Sequence[Spot]]]]:
    """Panels of a closed loop: (values of the other axes that vary, system -> answers per second along the x-axis)."""
    found: dict[tuple[Any, ...], dict[str, list[Spot]]] = defaultdict(lambda: defaultdict(list))
    others = [axis for axis in report.varying if axis != _across(report)]
    for group in report.groups:
        for name in report.columns.ids if group.axes.get("clients") else ():
            row = group.rows.get(name)
            if row is not None and row.derived.latency_us is not None and isinstance(row.facts, ServingResult):
                rates = [answers_per_s(measurement) for measurement in row.facts.measurements]
                spot = group.axes[_across(report)], median(rates), min(rates), max(rates)
                found[tuple(group.axes[axis] for axis in others)][name].append(spot)
    return [(dict(zip(others, chosen, strict=True)), lines) for chosen, lines in found.items()][:MOST_PANELS]


ServersAtPoint = tuple[Group, Mapping[str, ServerFacts]]


def _servers_at_points(report: Report) -> list[ServersAtPoint]:
    """(point, system -> facts of its server during the first arrival seed) for each point where servers recorded a
    timeline.
    """
    found: list[ServersAtPoint] = []
    for group in report.groups:
        servers = {}
        for name in report.columns.ids:
            row = group.rows.get(name)
            facts = row.facts if row is not None else None
            server = facts.measurements[0].server if isinstance(facts, ServingResult) and facts.measurements else None
            if server is not None and server.timeline:
                servers[name] = server
        if servers:
            found.append((group, servers))
    return found


def _closest(points: Sequence[ServersAtPoint]) -> ServersAtPoint | None:
    """The point with the largest n_s, and among those the load that is closest to the objective's."""
    return min(
        points,
        key=lambda point: (-(point[0].axes["n_s"] or 0), abs((point[0].axes["load"] or 0) - OBJECTIVE_LOAD)),
        default=None,
    )


Moment = tuple[float, int, int | None]


def _megabytes(moment: Moment) -> float | None:
    return None if moment[2] is None else moment[2] / 1e6


def _batch(moment: Moment) -> float | None:
    return moment[1]


def _by_length(groups: Sequence[Group], names: Sequence[str]) -> dict[int, dict[tuple[str, int], list[Spot]]]:
    """n_p -> (system, n_s) -> rates and latencies, for lines with more than one rate."""
    panels: dict[int, dict[tuple[str, int], list[Spot]]] = defaultdict(lambda: defaultdict(list))
    for group in filter(lambda group: shares_one_prefix(group.axes), groups):
        for name in names:
            row = group.rows.get(name)
            if row is None or row.derived.latency_us is None or not isinstance(row.facts, ServingResult):
                continue
            if row.facts.requests_per_s is None:  # a closed loop
                continue
            low, high = row.derived.low_us or 0.0, row.derived.high_us or 0.0
            spot = (row.facts.requests_per_s, row.derived.latency_us / 1e3, low / 1e3, high / 1e3)
            panels[group.axes["n_p"]][name, group.axes["n_s"]].append(spot)
    several = {
        n_p: {line: spots for line, spots in lines.items() if len(spots) > 1} for n_p, lines in sorted(panels.items())
    }
    return {n_p: lines for n_p, lines in several.items() if lines}


def _caption(report: Report, manifest: Manifest, latencies: bool, timelines: bool, closed: bool) -> str:
    parts = ["Median over arrival seeds, smallest and largest seed shaded"] if closed else []
    if latencies:
        parts.append(
            "Median over arrival seeds, smallest and largest seed shaded; latency counts from when a request was due"
        )
    if timelines:
        parts.append("K/V of blocks or chunks that live requests refer to; K/V and batch: first arrival seed")
    return caption([*parts, conditions(report, manifest, timed=False)], report)
