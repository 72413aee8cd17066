"""Performance profile of kernels and planners over many trees."""

from __future__ import annotations

from matplotlib.figure import Figure

from chunkbench.bench.analysis.ranking import contests, standings
from chunkbench.bench.store import Manifest
from chunkbench.report.figures.style import caption, conditions, handle, sheet, ticks_at
from chunkbench.report.layout import Report

_WIDEST = 4.0
"""Largest ratio on the x-axis."""


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw a line for each implementation (Dolan, More 2002). y is the share of points at which the implementation
    takes at most x times as long as the fastest one.
    """
    ranked = standings(contests(report.groups, manifest.experiment.confidence))
    if len(ranked) < 2:
        return None
    handles = [
        handle(report.columns.line_style(standing.implementation), report.columns.name(standing.implementation))
        for standing in ranked
    ]
    points = max(len(standing.ratios) for standing in ranked)
    text = (
        f"A line shows the share of {points} points (y) at which a row takes at most x times as long as the fastest row"
    )
    page = sheet(caption([text, conditions(report, manifest)], report), handles, 1)
    (plot,) = page.panels
    for standing in ranked:
        ratios = sorted(over.value for over in standing.ratios)
        shares = [100 * (number + 1) / points for number in range(len(ratios))]
        style = report.columns.line_style(standing.implementation)
        # One step for each point, a mark at every seventh; the line goes on at its last height.
        line = style.line2d(linewidth=1.2, markersize=6, markevery=(1, 7))
        plot.step([1, *ratios, _WIDEST], [0, *shares, shares[-1]], where="post", **line)
    plot.set_xscale("log")
    plot.set_xlim(1, _WIDEST)
    plot.set_ylim(0, 102)
    ticks_at(plot.xaxis, (1, 1.1, 1.25, 1.5, 2, 3, 4), "x")
    page.label("latency over the fastest row's", "points, %")
    return page.figure
