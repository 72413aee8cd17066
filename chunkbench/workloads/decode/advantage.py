"""A map that shows where two-phase partition beats paged decode, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from chunkbench.analysis.points import describe
from chunkbench.experiment.values import show_value
from chunkbench.report.figures.style import MOST_PANELS, axis_label, caption, conditions, left_out, panel_title, sheet
from chunkbench.report.numbers import times
from chunkbench.report.report import Report
from chunkbench.store import Manifest
from chunkbench.workloads.decode.headline import Match, matches

_COLOURS = "cividis"
"""A colour map of uniform lightness steps, readable in grey and for colour-blind readers."""


def axes_of(report: Report) -> tuple[str, str] | None:
    """(x-axis, y-axis): the first two axes that vary, n_s and batch size before all others; None if fewer vary."""
    preferred: list[str] = [axis for axis in ("n_s", "batch_size") if axis in report.varying]
    preferred += [axis for axis in report.varying if axis not in preferred]
    return (preferred[0], preferred[1]) if len(preferred) > 1 else None


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """The figure; None if fewer than two axes vary, or if nothing was measured beside the baseline."""
    axes, all_matches = axes_of(report), matches(report.groups, report.baseline, report.columns)
    if axes is None or not all_matches:
        return None
    panel_axes = [axis for axis in report.varying if axis not in axes]
    panels: dict[str, list[Match]] = {}
    for match in all_matches:
        panels.setdefault(describe(match.group.axes, panel_axes), []).append(match)
    shown = list(panels.items())[:MOST_PANELS]
    values = [match.speedup for match in all_matches]
    norm = LogNorm(min(*values, 0.99), max(*values, 1.01))
    page = sheet(report.title, _caption(report, manifest, len(panels)), [], len(shown))
    for plot, (title, members) in zip(page.panels, shown, strict=True):
        _panel(plot, members, axes, norm)
        panel_title(plot, title)
    page.label(*map(axis_label, axes))
    return page.figure


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
            light = norm(match.speedup) > 0.55
            plot.text(
                column + 0.5,
                row + 0.5,
                text,
                ha="center",
                va="center",
                fontsize=8,
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
        "Latency of the strongest other over ChunkAttn's: above 1x ChunkAttn is faster; ~ where the interval reaches "
        "1, bold where it is slower",
        conditions(report, manifest),
    ]
    return caption([*parts, *left_out(total)], report)
