"""Figure of caches that are smaller than ChunkAttn's: speed-up and deviation against bytes."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunkbench.bench.store import Manifest
from chunkbench.report.columns import Columns, LineStyle
from chunkbench.report.figures.style import DASHES, caption, conditions, handle, panel_title, sheet, ticks_at
from chunkbench.report.layout import Report
from chunkbench.workloads.decode.head_caches import FULL, HeadCache, head_caches, keep_windows, paper_share

_GREY = "#777777"


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw panels: speed-up against bytes and deviation against bytes. If heads keep windows: also the share of bytes
    against tokens, beside RazorAttention's published share.
    """
    found = [cache for cache in head_caches(report.groups) if cache.speedup is not None]
    if not found:
        return None
    by_method: dict[str, list[HeadCache]] = defaultdict(list)
    for cache in found:
        by_method[cache.row.facts.implementation].append(cache)
    columns = report.columns
    handles = [handle(columns.line_style(name), columns.name(name)) for name in columns.ids if name in by_method]
    windows = keep_windows(found)
    grey = "the time falls as the bytes do" + "; RazorAttention by its published numbers" * windows
    handles.append(handle(LineStyle(_GREY, "", "dashed"), f"grey lines: {grey}"))
    parts = [f"All beside {columns.name(FULL)} in the same run; bytes are those in use", conditions(report, manifest)]
    page = sheet(caption(parts, report), handles, 2 + windows, share_y=False)
    _gains(page.panels[0], by_method, columns)
    _deviations(page.panels[1], by_method, columns)
    if windows:
        _lengths(page.panels[2], by_method, columns)
    return page.figure


def _gains(plot: Axes, by_method: dict[str, list[HeadCache]], columns: Columns) -> None:
    most = 1.0
    for name, caches in by_method.items():
        gains = [cache.speedup or 0 for cache in caches]
        plot.plot([1 / cache.bytes for cache in caches], gains, **_marks(columns.line_style(name)))
        most = max(most, *(1 / cache.bytes for cache in caches))
    plot.plot([1, most], [1, most], color=_GREY, linestyle=DASHES, linewidth=1.2)
    plot.set_xlabel("bytes of the full cache over the method's")
    plot.set_ylabel("ChunkAttn's time over the method's")
    panel_title(plot, words="gain")


def _deviations(plot: Axes, by_method: dict[str, list[HeadCache]], columns: Columns) -> None:
    for name, caches in by_method.items():
        spots = [(100 * cache.bytes, cache.deviation) for cache in caches if cache.bytes <= 1]
        if spots:
            plot.plot(*zip(*spots, strict=True), **_marks(columns.line_style(name)))
    plot.set_ylim(bottom=0)
    plot.set_xlim(0, 105)
    plot.set_xlabel("K/V, % of full")
    plot.set_ylabel("deviation from full attention")
    panel_title(plot, words="deviation, drawn K/V")


def _lengths(plot: Axes, by_method: dict[str, list[HeadCache]], columns: Columns) -> None:
    lengths = [2_000 * 2 ** (step / 8) for step in range(57)]
    shares = [100 * paper_share(int(length)) for length in lengths]
    plot.plot(lengths, shares, color=_GREY, linestyle=DASHES, linewidth=1.2)
    for name, caches in by_method.items():
        shown = [cache for cache in caches if not any(map(cache.axes.get, ("window", "kv_share", "retrieval", "n_s")))]
        spots = [(cache.tokens, 100 * cache.bytes) for cache in shown]
        if spots:
            plot.plot(*zip(*spots, strict=True), **_marks(columns.line_style(name)))
    plot.set_xscale("log")
    ticks_at(plot.xaxis, [4_000, 8_000, 20_000, 64_000, 256_000])
    plot.set_ylim(0, 105)
    plot.set_xlabel("tokens of a sequence")
    plot.set_ylabel("K/V, % of full")
    panel_title(plot, words="window: a fifth of the tokens, at least 4000")


def _marks(style: LineStyle) -> dict[str, Any]:
    return style.line2d(markersize=5, linestyle="none")
