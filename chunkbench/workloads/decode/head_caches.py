"""Report and figure of caches whose KV heads keep windows: bytes, time and deviation (RazorAttention, 2407.15891)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunkbench.report.columns import Columns, LineStyle
from chunkbench.report.figures.style import DASHES, caption, conditions, handle, panel_title, sheet, ticks_at
from chunkbench.report.model import Column, Table
from chunkbench.report.numbers import NOTHING, percent, significant, span, times
from chunkbench.report.report import Report
from chunkbench.report.view import Body, View
from chunkbench.store import Manifest
from chunkbench.workloads.decode import tables
from chunkbench.workloads.decode.head_cache_numbers import FULL, HeadCache, head_caches, paper_share

_GREY = "#777777"
_LENGTHS = (4_000, 8_000, 20_000, 32_768, 131_072)
_LEGEND = (
    "K/V = bytes of K, V and sums in use, over ChunkAttn's in the same run",
    "time of bytes = the gain in time over the gain in bytes: 1 if time follows the bytes",
    "deviation = length of the difference to attention over all tokens, over its length; K, V and q are drawn normals, "
    "whose scores are nearly equal: it says how much weight is lost, not what a model would answer",
    "each row was checked against float64 for its own definition",
)


def body(view: View) -> Body:
    """Headline, tables and legend of a run."""
    found = list(head_caches(view.groups))
    columns: tuple[Column[HeadCache], ...] = (
        Column("implementation", lambda cache: view.columns.name(cache.row.facts.implementation), align="left"),
        Column("K/V", lambda cache: percent(cache.bytes)),
        Column("gain", lambda cache: times(cache.speedup)),
        Column("interval", lambda cache: NOTHING if cache.low is None else span(cache.low, cache.high)),
        Column("time of bytes", lambda cache: times(cache.of_the_bytes), ("time of", "bytes")),
        Column("deviation", lambda cache: significant(cache.deviation, 3)),
        Column("roofline", lambda cache: percent(cache.row.derived.roofline_fraction), ("roof-", "line")),
        Column(
            "roofline of ChunkAttn", lambda cache: percent(cache.full.derived.roofline_fraction), ("Chunk-", "Attn's")
        ),
    )
    here = {id(cache.row): cache for cache in found}
    caches = view.table(
        "Bytes, time and deviation, beside ChunkAttn",
        lambda group: [here[id(row)] for row in group.rows.values() if id(row) in here],
        columns,
        keys=1,
    )
    by_definition = Table(
        "What RazorAttention keeps by its own numbers: 15% of the heads all, the others max(4000, N/5) and 5",
        (
            Column("N", lambda tokens: f"{tokens:,}"),
            Column("of full bytes", lambda tokens: percent(paper_share(tokens))),
            Column("less", lambda tokens: percent(1 - paper_share(tokens))),
        ),
        _LENGTHS,
    )
    return Body(_headline(found, view.columns), (caches, by_definition, tables.latency_table(view)), legend=_LEGEND)


def _headline(found: Sequence[HeadCache], columns: Columns) -> str:
    timed = [cache for cache in found if cache.speedup is not None]
    if not timed:
        return "No method with windows was measured beside ChunkAttn."
    best = max(timed, key=lambda cache: cache.speedup or 0)
    name = columns.name(best.row.facts.implementation)
    return (
        f"{name} is up to {times(best.speedup)} as fast as ChunkAttn, with {percent(best.bytes)} of its K/V and a "
        f"deviation of {significant(best.deviation, 3)}."
    )


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Gain over bytes, deviation over bytes, and what the paper's numbers keep of a sequence."""
    found = [cache for cache in head_caches(report.groups) if cache.speedup is not None]
    if not found:
        return None
    by_method: dict[str, list[HeadCache]] = defaultdict(list)
    for cache in found:
        by_method[cache.row.facts.implementation].append(cache)
    columns = report.columns
    handles = [handle(columns.line_style(name), columns.name(name)) for name in columns.ids if name in by_method]
    handles.append(handle(LineStyle(_GREY, "", "dashed"), "time follows the bytes; RazorAttention by its own numbers"))
    parts = [f"All beside {columns.name(FULL)} in the same run; bytes are those in use", conditions(report, manifest)]
    page = sheet(caption(parts, report), handles, 3, share_y=False)
    _gains(page.panels[0], by_method, columns)
    _deviations(page.panels[1], by_method, columns)
    _lengths(page.panels[2], by_method, columns)
    return page.figure


def _gains(plot: Axes, by_method: dict[str, list[HeadCache]], columns: Columns) -> None:
    most = 1.0
    for name, caches in by_method.items():
        gains = [cache.speedup or 0 for cache in caches]
        plot.plot([1 / cache.bytes for cache in caches], gains, **_marks(columns.line_style(name)))
        most = max(most, *(1 / cache.bytes for cache in caches))
    plot.plot([1, most], [1, most], color=_GREY, linestyle=DASHES, linewidth=1.2)
    plot.set_xlabel("full bytes over its bytes")
    plot.set_ylabel("ChunkAttn's time over its time")
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
    panel_title(plot, words="window of a fifth, at least 4000")


def _marks(style: LineStyle) -> dict[str, Any]:
    return style.line2d(markersize=5, linestyle="none")
