"""Figure of ChunkAttn's speed-up over each implementation, against the shared part of the prompt, with the paper's
values.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from chunkbench.bench.store import Manifest
from chunkbench.report.columns import Columns, LineStyle
from chunkbench.report.figures.style import (
    MOST_PANELS,
    caption,
    conditions,
    handle,
    left_out,
    panel_title,
    paper_line,
    round_values,
    sheet,
    ticks_at,
)
from chunkbench.report.layout import Report
from chunkbench.report.numbers import count
from chunkbench.workloads.decode.curves import Curve, Panel, panels, undrawn, x_label

_BAR_ROOM = 2.0
_DOUBLED = 8


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw one panel for each combination of the other axes. Returns None if no implementation was measured beside the
    baseline.
    """
    all_panels = panels(report)
    if not any(panel.here for panel in all_panels):
        return None
    shown = all_panels[:MOST_PANELS]
    page = sheet(_caption(report, manifest, len(all_panels)), _handles(report, shown), len(shown))
    limits = _limits(shown)
    for plot, panel in zip(page.panels, shown, strict=True):
        _panel(plot, panel, report.columns)
        _scale(plot, limits)
    page.label(x_label(report), f"speed-up of {report.columns.name(report.baseline)}")
    return page.figure


def _panel(plot: Axes, panel: Panel, columns: Columns) -> None:
    plot.axhline(1, color="#000000", linewidth=0.9, zorder=1)
    plot.axhspan(1e-9, 1, color="#F2F2F2", linewidth=0, zorder=0)
    for curve in panel.curves:
        style = columns.line_style(curve.implementation)
        _paper_line(plot, curve, style)
        if not curve.here:
            continue
        values = [spot.value for spot in curve.here]
        errors = [
            [spot.value - spot.bounds[0] for spot in curve.here],
            [spot.bounds[1] - spot.value for spot in curve.here],
        ]
        plot.errorbar(
            [spot.x for spot in curve.here],
            values,
            yerr=errors,
            **style.line2d(markersize=6, linewidth=1.6),
            elinewidth=1,
            capsize=2,
            label=curve.label,
            zorder=3,
        )
    xs = sorted({spot.x for spot in (*panel.here, *panel.paper)})
    if 0 < _DOUBLED * xs[0] <= xs[-1]:  # batch sizes, chunk sizes and heads double from value to value
        plot.set_xscale("log", base=2)
    ticks_at(plot.xaxis, xs)
    plot.margins(x=0.08)
    panel_title(plot, panel.title)


def _paper_line(plot: Axes, curve: Curve, style: LineStyle) -> None:
    if curve.paper:
        xs, speedups = [spot.x for spot in curve.paper], [spot.value for spot in curve.paper]
        plot.plot(xs, speedups, **paper_line(style), label=f"{curve.label}, paper", zorder=2)


def _limits(shown: Sequence[Panel]) -> tuple[float, float]:
    """Limits slightly beyond everything drawn; 1 is always inside."""
    spots = [spot for panel in shown for spot in (*panel.here, *panel.paper)]
    low, high = min(0.9, *(spot.value for spot in spots)), max(1.2, *(spot.value for spot in spots))
    # Bars of a very noisy run may exceed the limits; limits that contain them would flatten the curves.
    lowest = max(low / _BAR_ROOM, min(low, *(spot.low or low for spot in spots)))
    highest = min(high * _BAR_ROOM, max(high, *(spot.high or high for spot in spots)))
    return lowest / 1.15, highest * 1.15


def _scale(plot: Axes, limits: tuple[float, float]) -> None:
    """Scale the ratios logarithmically, so that half and double speed are equally far from 1."""
    plot.set_yscale("log")
    plot.set_ylim(*limits)
    ticks_at(plot.yaxis, round_values(*limits), "x")


def _handles(report: Report, shown: Sequence[Panel]) -> list[Line2D]:
    curves = [curve for panel in shown for curve in panel.curves]
    here = {curve.implementation for curve in curves if curve.here}
    labels = {curve.implementation: curve.label for curve in curves}
    handles = []
    for implementation, label in labels.items():
        measured = implementation in here
        words = label if measured else f"{label} (paper only)"
        handles.append(handle(report.columns.line_style(implementation), words, measured))
    if any(panel.paper for panel in shown):
        black = LineStyle("#000000", "o", "solid")
        handles += [handle(black, "filled: here"), handle(black, "hollow, dotted: paper", here=False)]
    return handles


def _caption(report: Report, manifest: Manifest, total: int) -> str:
    baseline = report.columns.name(report.baseline)
    parts = [
        f"Latency of each implementation over {baseline}'s; {baseline} is slower in the grey band",
        conditions(report, manifest),
        f"Bars: {_bars(report)}",
    ]
    if any(row.derived.paper_ratio is not None for row in report.rows):
        parts.append("Paper: Table 3, A100 80 GB, float16")
    missing = undrawn(report)
    if missing:
        parts.append(f"{count(missing, 'point')} without a place on this axis: only in the table")
    return caption([*parts, *left_out(total)], report)


def _bars(report: Report) -> str:
    kinds = {row.derived.ratio_kind for row in report.rows if row.derived.ratio_kind}
    texts = {"range": "smallest and largest ratio of a round", "confidence": "confidence interval over rounds"}
    return " or ".join(texts[kind] for kind in ("range", "confidence") if kind in kinds)
