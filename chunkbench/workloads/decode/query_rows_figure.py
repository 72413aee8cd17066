"""Figure of several query rows: time over that of one row, against the number of rows."""

from __future__ import annotations

from matplotlib.figure import Figure

from chunkbench.bench.store import Manifest
from chunkbench.draft import CHAIN
from chunkbench.report.figures.style import (
    MOST_PANELS,
    by_values,
    caption,
    conditions,
    handle,
    left_out,
    panel_title,
    sheet,
    ticks_at,
)
from chunkbench.report.layout import Report
from chunkbench.workloads.decode.query_rows import facts_of, over_single, single_rows

_GREY = "#777777"


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw a curve for each implementation, a panel for each context. Only chains: trees are in the tables."""
    singles = single_rows(report.groups)
    chains = [group for group in report.groups if (facts := facts_of(group)) is not None and facts.draft == CHAIN]
    rows_of = {id(group): group.axes.get("query_rows", 1) for group in chains}
    axes = [axis for axis in report.varying if axis not in ("query_rows", "draft")]
    panels = {
        title: members
        for title, members in by_values(chains, axes).items()
        if len({rows_of[id(group)] for group in members}) > 2
    }
    if not panels:
        return None
    columns, parts = report.columns, ["Latency over that of one query row of each sequence; dotted: of all rows apart"]
    handles = [handle(columns.line_style(name), columns.name(name)) for name in columns.ids]
    parts += [conditions(report, manifest), *left_out(len(panels))]
    shown = list(panels.items())[:MOST_PANELS]
    page = sheet(caption(parts, report), handles, len(shown))
    for plot, (title, members) in zip(page.panels, shown, strict=True):
        counts = sorted({rows_of[id(group)] for group in members})
        for name in columns.ids:
            spots = [(rows_of[id(group)], over_single(group, singles, name)) for group in members]
            measured = sorted((count, value) for count, value in spots if value is not None)
            if measured:
                plot.plot(*zip(*measured, strict=True), **columns.line_style(name).line2d(markersize=5))
        plot.plot(counts, counts, color=_GREY, linewidth=0.9, linestyle="dotted")
        plot.set_xscale("log")
        plot.set_yscale("log")
        ticks_at(plot.xaxis, counts)
        ticks_at(plot.yaxis, [1, 2, 4, 8, 16, 32])
        panel_title(plot, title)
    page.label("query rows of a sequence", "latency over one row's")
    return page.figure
