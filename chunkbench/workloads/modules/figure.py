"""The modules of a decoder layer under the machine's roofline: measured FLOP rate against arithmetic intensity."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunkbench.bench.analysis.derive import Row
from chunkbench.bench.store import Manifest
from chunkbench.bench.store.results import TimedResult
from chunkbench.report.columns import Columns
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


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw a panel for each model, context and data type. Returns None if nothing was measured."""
    panel_axes = [axis for axis in report.varying if axis != "batch_size"]
    drawn = {
        title: [row for group in groups for row in group.rows.values() if row.derived.latency_us and _facts(row).peaks]
        for title, groups in by_values(report.groups, panel_axes).items()
    }
    measured = [(title, rows) for title, rows in drawn.items() if rows]
    if not measured:
        return None
    shown = measured[:MOST_PANELS]
    labels = {row.facts.implementation: row.facts.label for _, rows in shown for row in rows}
    handles = [handle(report.columns.line_style(module), label) for module, label in labels.items()]
    for legend_handle in handles:
        legend_handle.set_linestyle("none")
    page = sheet(_caption(report, manifest, len(measured)), handles, len(shown))
    for plot, (title, rows) in zip(page.panels, shown, strict=True):
        _panel(plot, rows, report.columns)
        panel_title(plot, title)
    page.label("arithmetic intensity, FLOP/byte", "GFLOP/s")
    page.log_ticks()
    return page.figure


def _panel(plot: Axes, rows: Sequence[Row], columns: Columns) -> None:
    bandwidth = median(peak.read_bytes_per_s for row in rows for peak in _facts(row).peaks) / 1e9
    rate = median(peak.matrix_flops_per_s for row in rows for peak in _facts(row).peaks) / 1e9
    intensities = [_intensity(row) for row in rows]
    low, high = min(intensities) / 2, max(*intensities, rate / bandwidth) * 2
    ridge = rate / bandwidth
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    plot.plot([low, ridge, high], [low * bandwidth, rate, rate], color="#000000", linewidth=1.2, label="roofline")
    spots: list[tuple[float, float]] = []
    batches: list[int] = []
    for module in dict.fromkeys(row.facts.implementation for row in rows):
        members = [row for row in rows if row.facts.implementation == module]
        of_module = [(_intensity(row), _reached(row)) for row in members]
        plot.plot(*zip(*of_module, strict=True), **columns.line_style(module).line2d(markersize=6, linestyle="none"))
        spots += of_module
        batches += [row.facts.batch_size for row in members]
    for spot, sizes in _labels(spots, batches):
        text = f"$b = {', '.join(map(str, sizes))}$"
        plot.annotate(text, spot, xytext=(7, -3), textcoords="offset points", fontsize="x-small")
    ticks_at(plot.xaxis, [2.0**e for e in range(-4, 14) if low <= 2.0**e <= high])


def _labels(
    spots: Sequence[tuple[float, float]], batches: Sequence[int]
) -> list[tuple[tuple[float, float], list[int]]]:
    """The labels: each has a position and the batch sizes that it names. Points that almost coincide share a label,
    also points of several modules.
    """
    labels: list[tuple[tuple[float, float], list[int]]] = []
    for spot, batch in sorted(zip(spots, batches, strict=True)):
        near = next(
            (label for label in labels if all(0.55 < x / y < 1.8 for x, y in zip(label[0], spot, strict=True))), None
        )
        if near is None:
            labels.append((spot, [batch]))
        elif batch not in near[1]:
            near[1].append(batch)
    return [(spot, sorted(sizes)) for spot, sizes in labels]


def _facts(row: Row) -> TimedResult:
    assert row.timed is not None
    return row.timed


def _reached(row: Row) -> float:
    assert row.derived.latency_us is not None
    return _facts(row).flops[0] / row.derived.latency_us / 1e3


def _intensity(row: Row) -> float:
    return _facts(row).flops[0] / _facts(row).unique_bytes[0]


def _caption(report: Report, manifest: Manifest, total: int) -> str:
    parts = [
        "FLOPs and bytes from the shapes, time measured, at the batch size beside each point; the line is the read "
        "bandwidth and the matrix rate, probed in the same rounds (medians)",
        conditions(report, manifest),
    ]
    return caption([*parts, *left_out(total)], report)
