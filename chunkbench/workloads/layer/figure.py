"""The modules of a decoder layer under the machine's roofline: arithmetic intensity against what was reached."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunkbench.analysis.derive import Row
from chunkbench.analysis.points import describe
from chunkbench.report.columns import Columns
from chunkbench.report.figures.style import (
    MOST_PANELS,
    caption,
    conditions,
    handle,
    left_out,
    panel_title,
    sheet,
    ticks_at,
)
from chunkbench.report.report import Report
from chunkbench.store import Manifest

_BESIDE = {"qkv_projection": -9, "mlp": 3}
"""Points by which labels are moved up: two projections of a layer lie close together."""


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """One panel for each model, context and data type; None when nothing was measured."""
    apart = [axis for axis in report.varying if axis != "batch_size"]
    found: dict[str, list[Row]] = {}
    for group in report.groups:
        rows = [row for row in group.rows.values() if row.derived.latency_us is not None and row.facts.peaks]
        found.setdefault(describe(group.axes, apart), []).extend(rows)
    measured = [(title, rows) for title, rows in found.items() if rows]
    if not measured:
        return None
    shown = measured[:MOST_PANELS]
    labels = {row.facts.implementation: row.facts.label for _, rows in shown for row in rows}
    handles = [handle(*report.columns.style(module), label) for module, label in labels.items()]
    for one in handles:
        one.set_linestyle("none")
    page = sheet(report.title, _caption(report, manifest, len(measured)), handles, len(shown))
    for plot, (title, rows) in zip(page.panels, shown, strict=True):
        _panel(plot, rows, report.columns)
        panel_title(plot, title)
    page.label("FLOP per byte", "GFLOP per second")
    page.log_ticks()
    return page.figure


def _panel(plot: Axes, rows: Sequence[Row], columns: Columns) -> None:
    bandwidth = median(peak.read_bytes_per_s for row in rows for peak in row.facts.peaks) / 1e9
    rate = median(peak.matrix_flops_per_s for row in rows for peak in row.facts.peaks) / 1e9
    intensities = [_intensity(row) for row in rows]
    low, high = min(intensities) / 2, max(*intensities, rate / bandwidth) * 2
    ridge = rate / bandwidth
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    plot.plot([low, ridge, high], [low * bandwidth, rate, rate], color="#000000", linewidth=1.2, label="roofline")
    for module in dict.fromkeys(row.facts.implementation for row in rows):
        own = [row for row in rows if row.facts.implementation == module]
        colour, marker = columns.style(module)
        spots = [(_intensity(row), _reached(row)) for row in own]
        plot.plot(*zip(*spots, strict=True), color=colour, marker=marker, markersize=6, linestyle="none")
        for spot, batches in _labels(spots, [row.facts.batch_size for row in own]):
            text = f"b={', '.join(map(str, batches))}"
            offset = (6, _BESIDE.get(module, -3))
            plot.annotate(text, spot, xytext=offset, textcoords="offset points", fontsize=7)
    ticks_at(plot.xaxis, [2.0**e for e in range(-4, 14) if low <= 2.0**e <= high])


def _labels(
    spots: Sequence[tuple[float, float]], batches: Sequence[int]
) -> list[tuple[tuple[float, float], list[int]]]:
    """Batch sizes by the spots that they stand beside; spots that lie on each other share one."""
    found: list[tuple[tuple[float, float], list[int]]] = []
    for spot, batch in sorted(zip(spots, batches, strict=True)):
        near = next(
            (known for known in found if all(0.7 < x / y < 1.4 for x, y in zip(known[0], spot, strict=True))), None
        )
        if near is None:
            found.append((spot, [batch]))
        else:
            near[1].append(batch)
    return [(spot, sorted(several)) for spot, several in found]


def _reached(row: Row) -> float:
    assert row.derived.latency_us is not None
    return row.facts.flops[0] / row.derived.latency_us / 1e3


def _intensity(row: Row) -> float:
    return row.facts.flops[0] / row.facts.unique_bytes[0]


def _caption(report: Report, manifest: Manifest, total: int) -> str:
    parts = [
        "FLOPs and bytes by the shapes, time measured, at the batch size beside each point; the line is the read "
        "bandwidth and the matrix rate that were probed beside them (medians)",
        conditions(report, manifest),
    ]
    return caption([*parts, *left_out(total)], report)
