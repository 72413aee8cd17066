"""Token rate against completion tokens (the paper's Figure 3) or batch size (Figure 4), with the paper's points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store import Manifest
from chunkbench.report.columns import Columns, LineStyle
from chunkbench.report.figures.style import (
    MOST_PANELS,
    axis_label,
    by_values,
    caption,
    conditions,
    handle,
    left_out,
    panel_title,
    round_values,
    sheet,
    ticks_at,
)
from chunkbench.report.layout import Report
from chunkbench.report.printed import SETUP, StatedRate, stated_token_rates
from chunkbench.workloads.decode.curves import Curve, Panel, Spot, by_x


def x_axis(report: Report) -> str:
    return "n_c" if "n_c" in report.varying else "batch_size"


def panels(report: Report, paper: str | None) -> list[Panel]:
    """A panel for each combination of the axes that are not on the x-axis, in thousands of tokens per second."""
    axis = x_axis(report)
    drawn = by_values(report.groups, [other for other in report.varying if other != axis])
    candidates = [Panel(title, _curves(groups, axis, report.columns, paper)) for title, groups in drawn.items()]
    return [panel for panel in candidates if panel.here]


def _curves(groups: Sequence[Group], axis: str, columns: Columns, paper: str | None) -> tuple[Curve, ...]:
    stated = _stated(groups, axis, paper)
    curves = []
    for implementation in dict.fromkeys((*columns.ids, *(rate.implementation for rate in stated))):
        rows = [(group.axes[axis], group.rows[implementation]) for group in groups if implementation in group.rows]
        here = by_x([spot for x, row in rows if (spot := _spot(x, row)) is not None])
        of_paper = [rate for rate in stated if rate.implementation == implementation]
        printed = tuple(Spot(getattr(rate, axis), rate.tokens_per_s / 1e3) for rate in of_paper)
        if here or printed:
            curves.append(Curve(implementation, columns.name(implementation), here, printed))
    return tuple(curves)


def _spot(x: int, row: Row) -> Spot | None:
    derived, tokens = row.derived, row.facts.batch_size * 1e3  # divided by microseconds: thousands per second
    if derived.latency_us is None or derived.low_us is None or derived.high_us is None:
        return None
    return Spot(x, tokens / derived.latency_us, tokens / derived.high_us, tokens / derived.low_us)


def _stated(groups: Sequence[Group], axis: str, paper: str | None) -> list[StatedRate]:
    """The paper's points at the axes of these groups; empty for shapes other than the paper's (`SETUP`)."""
    if paper is None:
        return []
    axes = groups[0].axes
    if any(axes.get(key) != value for key, value in SETUP.items() if key not in ("n_c", "batch_size", "chunk_size")):
        return []
    other = "batch_size" if axis == "n_c" else "n_c"
    return [
        rate
        for rate in stated_token_rates(paper)
        if (rate.n_p, rate.n_s, getattr(rate, other)) == (axes.get("n_p"), axes.get("n_s"), axes.get(other))
    ]


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw the figure. Returns None if no token rate is known."""
    all_panels = panels(report, manifest.experiment.paper)
    if not all_panels:
        return None
    shown = all_panels[:MOST_PANELS]
    labels = {curve.implementation: curve.label for panel in shown for curve in panel.curves if curve.here}
    handles = [handle(report.columns.line_style(implementation), label) for implementation, label in labels.items()]
    stated = any(panel.paper for panel in shown)
    if stated:
        handles.append(handle(LineStyle("#000000", "o", "none"), "hollow: stated in the paper", here=False))
        handles[-1].set_linestyle("none")
    page = sheet(_caption(report, manifest, len(all_panels), stated), handles, len(shown), right_axis=stated)
    for plot, panel in zip(page.panels, shown, strict=True):
        _panel(plot, panel, report.columns)
    page.label(axis_label(x_axis(report)), "1000 tokens/s")
    factor = _factor(shown)
    low, high = _limits(shown, factor)
    for plot, panel in zip(page.panels, shown, strict=True):
        plot.set_ylim(low, high)
        if panel.paper:
            _paper_axis(plot, panel, report.columns, (low * factor, high * factor))
    page.log_ticks()
    return page.figure


def _factor(shown: Sequence[Panel]) -> float:
    """Factor from the rates here to the paper's: geometric mean of the ratios at points where both are known."""
    logs = [
        math.log(spot.value / here[spot.x])
        for panel in shown
        for curve in panel.curves
        if (here := {spot.x: spot.value for spot in curve.here})
        for spot in curve.paper
        if spot.x in here
    ]
    paper = [spot.value for panel in shown for spot in panel.paper]
    if not logs and paper:  # no common point: ratio of the geometric means
        measured = [spot.value for panel in shown for spot in panel.here]
        logs = [fmean(map(math.log, paper)) - fmean(map(math.log, measured))]
    return math.exp(fmean(logs)) if logs else 1.0


def _limits(shown: Sequence[Panel], factor: float) -> tuple[float, float]:
    """Limits of the y-axis: slightly beyond everything that is drawn for either axis."""
    bounds = [bound for panel in shown for spot in panel.here for bound in spot.bounds]
    paper = [spot.value / factor for panel in shown for spot in panel.paper]
    return min(*bounds, *paper, math.inf) / 1.2, max(*bounds, *paper, 0.0) * 1.2


def _paper_axis(plot: Axes, panel: Panel, columns: Columns, limits: tuple[float, float]) -> None:
    """Draw the paper's rates on an axis of their own: an A100 is about ten times faster than any CPU."""
    right = plot.twinx()
    right.set_yscale("log")
    for curve in panel.curves:
        style = columns.line_style(curve.implementation)
        for spot in curve.paper:
            right.plot([spot.x], [spot.value], **style.line2d(markersize=6, markerfacecolor="white", linestyle="none"))
    right.set_ylim(*limits)
    ticks_at(right.yaxis, round_values(*limits))
    right.grid(False)
    right.spines["right"].set_visible(True)
    right.set_ylabel("paper (A100), 1000 tokens/s")


def _panel(plot: Axes, panel: Panel, columns: Columns) -> None:
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    for curve in panel.curves:
        style = columns.line_style(curve.implementation)
        xs, rates = [spot.x for spot in curve.here], [spot.value for spot in curve.here]
        lows, highs = [spot.bounds[0] for spot in curve.here], [spot.bounds[1] for spot in curve.here]
        if curve.here:
            plot.fill_between(xs, lows, highs, color=style.colour, alpha=0.15, linewidth=0)
            plot.plot(xs, rates, **style.line2d(markersize=5, linewidth=1.6), label=curve.label)
    ticks_at(plot.xaxis, [spot.x for spot in (*panel.here, *panel.paper)])
    panel_title(plot, panel.title)


def _caption(report: Report, manifest: Manifest, total: int, stated: bool) -> str:
    parts = [
        "Tokens per second of decode attention alone: batch size over the mean time of a call",
        conditions(report, manifest),
        "Bands: intervals over rounds, as in the table",
    ]
    if x_axis(report) == "n_c":
        parts.append("One pass to the longest n_c; each point is the mean over its first n_c steps")
    if stated:
        parts.append(
            "Hollow, on the right axis: rates that the paper's text states for an A100 80 GB in float16. The right "
            "axis is shifted so that both sets of rates have the same height: compare shapes, not heights"
        )
    return caption([*parts, *left_out(total)], report)
