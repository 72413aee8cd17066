"""Figure of growth: time over size on logarithmic axes, with the slope of each operation."""

from __future__ import annotations

from matplotlib.figure import Figure

from chunkbench.bench.store import Manifest
from chunkbench.report.figures.style import caption, conditions, handle, panel_title, sheet
from chunkbench.report.layout import Report
from chunkbench.workloads.growth.methods import CHOICES
from chunkbench.workloads.growth.metrics import curves

_PANELS = (
    ("prefix tree", ("forest",)),
    ("decode step", ("step",)),
    ("server, replays, reports", ("server", "replays", "reports")),
)
"""(title, files of operations) of each panel."""


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw a line for each operation. Returns None if no operation has two sizes."""
    found = [curve for curve in curves(report.rows, report.columns.ids) if curve.slope is not None]
    if not found:
        return None
    columns = report.columns
    names = {curve.name: f"{columns.name(curve.name)}: slope {curve.slope:.2f}" for curve in found}
    handles = [handle(columns.line_style(name), text) for name, text in names.items()]
    parts = [
        "Median time of an operation over its size, on logarithmic axes. Dotted: lines of slope 1. The slope is that "
        "of sizes above a hundredth of the largest",
        conditions(report, manifest),
    ]
    panels = [(title, [curve for curve in found if CHOICES[curve.name].file in files]) for title, files in _PANELS]
    panels = [(title, shown) for title, shown in panels if shown]
    page = sheet(caption(parts, report), handles, len(panels), share_y=False)
    for plot, (title, shown) in zip(page.panels, panels, strict=True):
        for curve in shown:
            sizes, seconds = zip(*curve.spots, strict=True)
            plot.plot(sizes, [1e6 * each for each in seconds], **columns.line_style(curve.name).line2d(markersize=5))
        plot.set_xscale("log")
        plot.set_yscale("log")
        (low, high), limits = plot.get_xlim(), plot.get_ylim()
        for scale in (10.0**power for power in range(-12, 13)):
            plot.plot((low, high), (low * scale, high * scale), color="#BBBBBB", linewidth=0.6, linestyle=":", zorder=0)
        plot.set_xlim(low, high)
        plot.set_ylim(limits)
        plot.set_xlabel("size")
        plot.set_ylabel("time, µs")
        panel_title(plot, words=title)
    return page.figure
