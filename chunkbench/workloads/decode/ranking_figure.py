"""Kernels and planners over many trees: how often each is how near to the fastest row (a performance profile)."""

from __future__ import annotations

from matplotlib.figure import Figure

from chunkbench.bench.analysis.ranking import contests, standings
from chunkbench.bench.store import Manifest
from chunkbench.report.figures.style import caption, conditions, handle, sheet, ticks_at
from chunkbench.report.layout import Report

_WIDEST = 4.0
"""Ratio at the right end of the figure."""


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Share of the points (y) at which a row takes at most x times as long as the fastest one (Dolan, More 2002)."""
    found = standings(contests(report.groups, manifest.experiment.confidence))
    if len(found) < 2:
        return None
    handles = [
        handle(report.columns.line_style(one.implementation), report.columns.name(one.implementation)) for one in found
    ]
    points = max(len(one.ratios) for one in found)
    text = f"Share of {points} points at which a row takes at most so many times as long as the fastest row"
    page = sheet(caption([text, conditions(report, manifest)], report), handles, 1)
    (plot,) = page.panels
    for one in found:
        ratios = sorted(over.value for over in one.ratios)
        shares = [100 * (number + 1) / points for number in range(len(ratios))]
        style = report.columns.line_style(one.implementation)
        # A step for each point, every seventh with a mark; the line goes on at its last height.
        line = style.line2d(linewidth=1.2, markersize=6, markevery=(1, 7))
        plot.step([1, *ratios, _WIDEST], [0, *shares, shares[-1]], where="post", **line)
    plot.set_xscale("log")
    plot.set_xlim(1, _WIDEST)
    plot.set_ylim(0, 102)
    ticks_at(plot.xaxis, (1, 1.1, 1.25, 1.5, 2, 3, 4), "x")
    page.label("latency over the fastest row's", "points, %")
    return page.figure
