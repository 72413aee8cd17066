"""Figure of answers: needles found and equal next tokens, over the length of the context or over the window."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunkbench.bench.store import Manifest
from chunkbench.report.figures.style import (
    axis_label,
    by_values,
    caption,
    conditions,
    handle,
    panel_title,
    sheet,
    ticks_at,
)
from chunkbench.report.layout import Report
from chunkbench.workloads.answers.metrics import METRICS

_FIGURES = {"found_share": "needles found, %", "agreement": "next tokens, % equal"}
"""Metric -> label of its y-axis."""


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw both metrics over the length of the context, and over the window. Returns None if neither length nor window
    varies.
    """
    tried = [
        group for group in report.groups if any(METRICS["agreement"].known(row.facts) for row in group.rows.values())
    ]
    blocks = []
    for axis in ("n_p", "window"):
        others = [name for name in report.varying if name != axis]
        drawn = by_values([group for group in tried if group.axes.get(axis) is not None], others)
        blocks += [(axis, title, groups) for title, groups in drawn.items() if len(groups) > 1]
    if not blocks:
        return None
    columns = report.columns
    handles = [handle(columns.line_style(name), columns.name(name)) for name in columns.ids]
    parts = [
        "Needles: share of those that the model finds with the full cache; next tokens: share equal to that cache's",
        conditions(report, manifest, timed=False),
    ]
    page = sheet(caption(parts, report), handles, 2 * len(blocks), across=2, share_y=False)
    plots = iter(page.panels)
    for axis, title, groups in blocks:
        for metric, label in _FIGURES.items():
            plot = next(plots)
            for name in columns.ids:
                rows = [(group.axes[axis], group.rows[name].facts) for group in groups if name in group.rows]
                shares = [(place, METRICS[metric].value(facts)) for place, facts in rows]
                spots = [(place, 100 * share) for place, share in shares if share is not None]
                if spots:
                    style = columns.line_style(name)
                    plot.plot(*zip(*sorted(spots), strict=True), **style.line2d(markersize=5))
            _label(plot, axis, label, sorted({group.axes[axis] for group in groups}))
            panel_title(plot, title)
    return page.figure


def _label(plot: Axes, axis: str, label: str, places: list[int]) -> None:
    plot.set_ylim(-4, 104)
    plot.set_xscale("log", base=2)
    ticks_at(plot.xaxis, places)
    plot.set_xlabel(axis_label(axis))
    plot.set_ylabel(label)
