"""Figure of K/V memory: bytes against the axes that vary, savings against r, and empty slots of chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunkbench.bench.analysis.derive import Group
from chunkbench.bench.store import Manifest
from chunkbench.report.columns import Columns, LineStyle
from chunkbench.report.figures.style import (
    DASHES,
    axis_label,
    caption,
    conditions,
    handle,
    panel_title,
    round_values,
    sheet,
    ticks_at,
    values,
)
from chunkbench.report.layout import Report
from chunkbench.workloads.memory.result import PAKV, saving_of

_AXES = ("n_s", "batch_size", "n_p")
_GREY = "#777777"


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw bytes against n_s, batch size and n_p, if they vary. Then draw savings and empty slots. Returns None if no
    bytes are known.
    """
    sized = [group for group in report.groups if any(row.kv_bytes for row in group.rows.values())]
    swept = [(axis, groups) for axis in _AXES if len(groups := _along(sized, axis, report.varying)) > 1]
    savings = [(group, saved) for group in sized if (saved := saving_of(group)) is not None and saved.empty is not None]
    if not sized or not (swept or savings):
        return None
    columns = report.columns
    handles = [handle(columns.line_style(name), columns.name(name)) for name in _names(sized, columns)]
    if savings:
        handles.append(handle(LineStyle(_GREY, "", "dashed"), r"bounds: $1 / (1 - r)$, $(c - 1) / n$"))
    count = len(swept) + (2 if savings else 0)
    page = sheet(_caption(report, manifest), handles, count, across=2, share_y=False)
    for plot, (axis, groups) in zip(page.panels, swept, strict=False):
        _bytes(plot, axis, groups, columns)
        panel_axes = [a for a in report.varying if a != axis]
        panel_title(plot, values(groups[0].axes, panel_axes))
    if savings:
        style = columns.line_style(PAKV)
        _saved(page.panels[-2], [(saved.ratio, saved.measured, saved.limit) for _, saved in savings], style)
        _empty(page.panels[-1], [(_tokens(group), saved.empty, saved.bound) for group, saved in savings], style)
    return page.figure


def _along(groups: Sequence[Group], axis: str, varying: Sequence[str]) -> list[Group]:
    """The points that differ only in `axis`. The other axes have their most frequent combination of values."""
    if axis not in varying or any(not isinstance(group.axes.get(axis), int) for group in groups):
        return []
    others = [other for other in varying if other != axis]
    chosen = Counter(repr([group.axes.get(other) for other in others]) for group in groups).most_common(1)[0][0]
    return [group for group in groups if repr([group.axes.get(other) for other in others]) == chosen]


def _names(groups: Sequence[Group], columns: Columns) -> list[str]:
    """Ids of the implementations whose bytes are known, in the order of the columns."""
    sized = {name for group in groups for name, row in group.rows.items() if row.kv_bytes}
    return [name for name in columns.ids if name in sized]


def _bytes(plot: Axes, axis: str, groups: Sequence[Group], columns: Columns) -> None:
    for implementation in _names(groups, columns):
        held = [
            (group.axes[axis], group.rows[implementation].kv_bytes) for group in groups if implementation in group.rows
        ]
        spots = sorted((x, size / 1e6) for x, size in held if size)
        style = columns.line_style(implementation)
        plot.plot(*zip(*spots, strict=True), **style.line2d(markersize=5, linewidth=1.6))
    plot.set_xlabel(axis_label(axis))
    plot.set_ylabel("K/V, MB")
    plot.set_ylim(bottom=0)


def _saved(plot: Axes, spots: Sequence[tuple[float, float | None, float]], style: LineStyle) -> None:
    measured = sorted((ratio, value) for ratio, value, _ in spots if value is not None)
    plot.plot(*zip(*measured, strict=True), **style.line2d(markersize=5, linestyle="none"))
    highest = max(value for _, value in measured) * 1.6 if measured else 4.0
    line = [(step / 200, 1 / (1 - step / 200)) for step in range(200) if 1 / (1 - step / 200) <= highest]
    plot.plot(*zip(*line, strict=True), color=_GREY, linestyle=DASHES, linewidth=1.2)
    plot.set_xlabel(r"$r = n_s / (n_p + n_c)$")
    plot.set_ylabel("contiguous over ChunkAttn, bytes")
    panel_title(plot, words="saved by sharing")


def _empty(plot: Axes, spots: Sequence[tuple[int, float | None, float]], style: LineStyle) -> None:
    points = sorted({(n, 100 * value) for n, value, _ in spots if value is not None})
    bounds = sorted({(n, 100 * bound) for n, _, bound in spots})
    plot.plot(*zip(*points, strict=True), **style.line2d(markersize=5, linestyle="none"))
    plot.plot(*zip(*bounds, strict=True), color=_GREY, linestyle=DASHES, linewidth=1.2, marker="_")
    if len(bounds) > 1:
        plot.set_xscale("log")
        ticks_at(plot.xaxis, round_values(bounds[0][0] / 2, bounds[-1][0]))
    plot.set_xlabel("tokens of a sequence, $n$")
    plot.set_ylabel("empty slots, % of tokens")
    plot.set_ylim(bottom=0)
    panel_title(plot, words="empty slots of chunks")


def _tokens(group: Group) -> int:
    n_p, n_c = group.axes["n_p"], group.axes["n_c"]
    return int(n_p) + int(n_c)


def _caption(report: Report, manifest: Manifest) -> str:
    parts = [
        "Bytes of K and V held after n_c completion tokens, as each implementation states and the harness checks them",
        "Sharing saves 1 / (1 - r) for many sequences, less for few; a sequence leaves at most c - 1 slots empty",
        conditions(report, manifest, timed=False),
    ]
    return caption(parts, report)
