"""A map that shows where two-phase partition beats paged decode, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from chunkbench.bench.experiment.values import show_value
from chunkbench.bench.store import Manifest
from chunkbench.report.figures.style import (
    MOST_PANELS,
    Sheet,
    Values,
    axis_label,
    caption,
    conditions,
    left_out,
    panel_title,
    sheet,
    values,
)
from chunkbench.report.layout import Report
from chunkbench.report.numbers import times
from chunkbench.workloads.decode.headline import Match, matches

_COLOURS = "PuOr_r"
"""White is 1. Orange means that ChunkAttn is faster, purple that it is slower. Colour-blind readers can tell the
colours apart. In grey print, the number in a dark cell tells its side.
"""


def axes_of(report: Report) -> tuple[str, str] | None:
    """(x-axis, y-axis), chosen among the axes that vary: n_s and batch size first, then the others. None if fewer than
    two axes vary.
    """
    preferred: list[str] = [axis for axis in ("n_s", "batch_size") if axis in report.varying]
    preferred += [axis for axis in report.varying if axis not in preferred]
    return (preferred[0], preferred[1]) if len(preferred) > 1 else None


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw the map. Returns None if fewer than two axes vary, or if no other implementation was measured beside the
    baseline.
    """
    axes, all_matches = axes_of(report), matches(report.groups, report.baseline, report.columns)
    if axes is None or not all_matches:
        return None
    panel_axes = [axis for axis in report.varying if axis not in axes]
    panels: dict[Values, list[Match]] = {}
    for match in all_matches:
        panels.setdefault(values(match.group.axes, panel_axes), []).append(match)
    shown = list(panels.items())[:MOST_PANELS]
    speedups = [match.speedup for match in all_matches]
    farthest = max(1.25, *speedups, *(1 / speedup for speedup in speedups))
    norm = LogNorm(1 / farthest, farthest)
    page = sheet(_caption(report, manifest, len(panels)), [], len(shown), colour_bar=True)
    for plot, (title, members) in zip(page.panels, shown, strict=True):
        _panel(plot, members, axes, norm)
        panel_title(plot, title)
    page.label(*map(axis_label, axes))
    _bar(page, norm, farthest, report.columns.name(report.baseline))
    return page.figure


def _bar(page: Sheet, norm: LogNorm, farthest: float, baseline: str) -> None:
    """Draw the bar of colours at the right of the sheet."""
    places = [plot.get_position() for plot in page.panels]
    left, bottom, top = max(p.x1 for p in places), min(p.y0 for p in places), max(p.y1 for p in places)
    width = page.figure.get_figwidth()
    axes = page.figure.add_axes((left + 0.15 / width, bottom, 0.12 / width, top - bottom))
    bar = page.figure.colorbar(ScalarMappable(norm, _COLOURS), cax=axes, label=f"strongest other / {baseline}, time")
    steps = [value for value in (1.2, 1.5, 2, 3, 5, 10, 20, 50) if value <= farthest]
    ticks = [*(1 / step for step in reversed(steps)), 1, *steps]
    bar.set_ticks(ticks, labels=[times(tick) for tick in ticks])
    bar.minorticks_off()


def _panel(plot: Axes, members: Sequence[Match], axes: tuple[str, str], norm: LogNorm) -> None:
    xs, ys = (_values(members, axis) for axis in axes)
    cells = {tuple(match.group.axes.get(axis) for axis in axes): match for match in members}
    grid = [[cells[x, y].speedup if (x, y) in cells else math.nan for x in xs] for y in ys]
    plot.pcolormesh(grid, cmap=_COLOURS, norm=norm, edgecolors="white", linewidth=1)
    for row, y in enumerate(ys):
        for column, x in enumerate(xs):
            if (x, y) not in cells:
                continue
            match = cells[x, y]
            # Mark a result that another run may reverse.
            text = ("~" if match.doubtful else "") + times(match.speedup)
            light = 0.14 < norm(match.speedup) < 0.86
            plot.text(
                column + 0.5,
                row + 0.5,
                text,
                ha="center",
                va="center",
                fontsize="small",
                color="#000000" if light else "#FFFFFF",
                weight="bold" if match.speedup < 1 and not match.doubtful else "normal",
            )
    plot.set_xticks([i + 0.5 for i in range(len(xs))], [show_value(x) for x in xs])
    plot.set_yticks([i + 0.5 for i in range(len(ys))], [show_value(y) for y in ys])
    plot.grid(False)
    plot.tick_params(length=0)


def _values(members: Sequence[Match], axis: str) -> list[Any]:
    return sorted({match.group.axes.get(axis) for match in members})


def _caption(report: Report, manifest: Manifest, total: int) -> str:
    parts = [
        "Latency of the strongest other over ChunkAttn's: above 1x ChunkAttn is faster; ~: the ratio's interval "
        "contains 1; bold: ChunkAttn is slower",
        conditions(report, manifest),
    ]
    return caption([*parts, *left_out(total)], report)
