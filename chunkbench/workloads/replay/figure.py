"""Figure of replays: latency, cache hits and use of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store import Manifest
from chunkbench.report.columns import Columns
from chunkbench.report.figures.style import (
    Values,
    by_values,
    caption,
    conditions,
    handle,
    panel_title,
    sharing,
    sheet,
    ticks_at,
    values,
)
from chunkbench.report.layout import Report
from chunkbench.workloads.replay.metrics import METRICS
from chunkbench.workloads.replay.printed import printed, stated_by_paged_attention
from chunkbench.workloads.replay.result import ReplayResult

Panel = Callable[[Axes], None]
_WASTE = 0.9
"""The panel on the use of memory is drawn only if a manager uses less than this share of its memory."""
_KINDS = (
    ("used", "#4c72b0", "holds tokens"),
    ("reserved", "#dd8452", "reserved"),
    ("internal_fragmentation", "#c44e52", "internal fragmentation"),
    ("external_fragmentation", "#8c8c8c", "external fragmentation"),
)


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw the panels that the run's axes allow: latency, cache hits, use of memory, and memory saved by sharing
    answers. Returns None without any panel.
    """
    columns = report.columns
    latencies = [*_latencies(report), *_latencies_by_block(report)]
    panels = [*latencies, *_hits(report), *_orders(report), *_memory(report), *_answers(report)]
    if not panels:
        return None
    names = {name for group in report.groups for name in group.rows}
    handles = [handle(columns.line_style(name), columns.name(name)) for name in columns.ids if name in names]
    page = sheet(_caption(report, manifest), handles, len(panels), min(2, len(panels)), False)
    for plot, panel in zip(page.panels, panels, strict=True):
        panel(plot)
    return page.figure


def _along(report: Report, axis: str, others: Sequence[str]) -> dict[Values, list[Group]]:
    """Groups that have a value of `axis`, collected by the values of the other axes. A collection needs at least two
    values of `axis`.
    """
    known = (
        group
        for group in report.groups
        if group.axes.get(axis) is not None and any(map(_was_replayed, group.rows.values()))
    )
    found = by_values(known, [axis for axis in others if axis in report.varying])
    several = {title: groups for title, groups in found.items() if len({group.axes[axis] for group in groups}) > 1}
    return {tuple(pair for pair in title if pair[1] != "0"): groups for title, groups in several.items()}


def _was_replayed(row: Row) -> bool:
    return isinstance(row.facts, ReplayResult) and bool(row.facts.replays)


def _latencies(report: Report) -> list[Panel]:
    """Panels of normalized latency against the rate; hollow marks are the paper's Table 4."""
    fixed = ("traffic", "n_p", "prompts", "memory", "schedule", "batch_size", "tree", "samples", "beams")
    return [_latency(title, groups, report.columns) for title, groups in _along(report, "rate", fixed).items()]


def _latency(title: Values, groups: Sequence[Group], columns: Columns) -> Panel:
    def panel(plot: Axes) -> None:
        lines: dict[tuple[str, object], list[tuple[float, float]]] = defaultdict(list)
        shares = sorted({group.axes["n_s"] or 0 for group in groups}, reverse=True)
        for group in groups:
            for name, row in group.rows.items():
                if row.derived.latency_us is None:
                    continue
                rate, n_s = group.axes["rate"] / 60, group.axes["n_s"] or 0
                lines[name, n_s].append((rate, row.derived.latency_us / 1e3))
                text = printed(group, row, "normalized_latency_ms_per_token")
                if text is not None:
                    plot.plot(
                        rate, float(text), **columns.line_style(name).line2d(markerfacecolor="none", markersize=9)
                    )
        for (name, n_s), spots in lines.items():
            drawn = columns.line_style(name).line2d(markersize=4, **sharing(n_s == shares[0]))
            plot.plot(*zip(*sorted(spots), strict=True), **drawn)
        if len(shares) > 1:
            grey = [
                Line2D([], [], color="#444444", marker="o", markersize=4, **sharing(n_s == shares[0])) for n_s in shares
            ]
            plot.legend(
                grey, [f"$n_s = {share}$" for share in shares], fontsize="small", loc="upper left", frameon=False
            )
        panel_title(plot, title, "" if title else "latency against load")
        lowest = min((value for spots in lines.values() for _, value in spots), default=1.0)
        plot.set_ylim(0, 6 * lowest)
        plot.set_xlabel("requests per second")
        plot.set_ylabel("normalized latency, ms/token")

    return panel


def _latencies_by_block(report: Report) -> list[Panel]:
    """Panels of normalized latency against the tokens of a block."""
    fixed = ("traffic", "rate", "memory", "batch_size")
    labels = "latency against block size", "tokens of a block", "normalized latency, ms/token"
    return _lines(report, "block_size", fixed, _latency_ms, labels)


def _hits(report: Report) -> list[Panel]:
    """Panels of the share of cached prompt tokens against the size of the memory."""
    fixed = ("traffic", "n_p", "n_s", "prompts", "rate", "schedule", "batch_size", "tree")
    labels = "hits against memory", "K/V memory, tokens", "cached prompt tokens, %"
    return _lines(report, "memory", fixed, _hit, labels, 100)


def _lines(
    report: Report,
    axis: str,
    fixed: Sequence[str],
    value: Callable[[Group, str], float | None],
    labels: tuple[str, str, str],
    top: float | None = None,
) -> list[Panel]:
    """Panels that show a value of each manager against an axis: one panel for each combination of the fixed axes.
    `labels`: the title of a single panel, and the labels of the x-axis and the y-axis.
    """
    words, x, y = labels
    panels: list[Panel] = []
    for title, groups in _along(report, axis, fixed).items():

        def panel(plot: Axes, title: Values = title, groups: Sequence[Group] = groups) -> None:
            for name in report.columns.ids:
                spots = [(group.axes[axis], spot) for group in groups if (spot := value(group, name)) is not None]
                if spots:
                    plot.plot(*zip(*sorted(spots), strict=True), **report.columns.line_style(name).line2d(markersize=4))
            plot.set_xscale("log")
            ticks_at(plot.xaxis, [group.axes[axis] for group in groups])
            panel_title(plot, title, "" if title else words)
            plot.set_xlabel(x)
            plot.set_ylabel(y)
            plot.set_ylim(0, top)

        panels.append(panel)
    return panels


def _latency_ms(group: Group, name: str) -> float | None:
    row = group.rows.get(name)
    return row.derived.latency_us / 1e3 if row is not None and row.derived.latency_us is not None else None


def _orders(report: Report) -> list[Panel]:
    """A panel of cached prompt tokens for each order of the queue; empty if the order does not vary."""
    orders = list(dict.fromkeys(group.axes["schedule"] or "fcfs" for group in report.groups))
    if len(orders) < 2:
        return []
    groups = [group for group in report.groups if group.axes["schedule"] is not None]
    title, same = next(iter(by_values(groups, [axis for axis in report.varying if axis != "schedule"]).items()))

    def panel(plot: Axes) -> None:
        for name in report.columns.ids:
            hits_of = [(group.axes["schedule"], _hit(group, name)) for group in same]
            known = [(order, hits) for order, hits in hits_of if hits is not None]
            if known:
                drawn = report.columns.line_style(name).line2d(linestyle="none", markersize=7)
                plot.plot(*zip(*known, strict=True), **drawn)
        panel_title(plot, title, "" if title else "order of the queue")
        plot.set_xlabel("order of the queue")
        plot.set_ylabel("cached prompt tokens, %")
        plot.set_ylim(0, 100)
        plot.margins(x=0.2)

    return [panel]


def _hit(group: Group, name: str) -> float | None:
    row = group.rows.get(name)
    share = METRICS["hit_share"].value(row.facts) if row is not None and row.derived.latency_us is not None else None
    return None if share is None else 100 * share


def _memory(report: Report) -> list[Panel]:
    """A panel of how the memory that sequences have taken is used, at the point that the PagedAttention paper prints,
    else at the point that wastes most memory.

    The pale bar beside a bar shows the paper's values.
    """
    known = [group for group in report.groups if any(share["used"] < _WASTE for share in _shares(group).values())]
    if not known:
        return []
    group = min(known, key=lambda group: (not _stated_shares(group), min(s["used"] for s in _shares(group).values())))
    shares, stated = _shares(group), _stated_shares(group)

    def panel(plot: Axes) -> None:
        names = [name for name in report.columns.ids if name in shares]
        width = 0.4 if stated else 0.7
        for bars, place, alpha in ((shares, -width / 2 if stated else 0.0, 1.0), (stated, width / 2, 0.4)):
            held = [(number + place, bars[name]) for number, name in enumerate(names) if name in bars]
            bottoms = [0.0] * len(held)
            for kind, colour, words in _KINDS:
                heights = [100 * memory[kind] for _, memory in held]
                label = words if bars is shares else None
                at = [spot for spot, _ in held]
                plot.bar(at, heights, width, bottoms, color=colour, alpha=alpha, label=label)
                bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
        labels = ["\n".join(report.columns.heading(name)) for name in names]
        plot.set_xticks(range(len(names)), labels, fontsize="small")
        plot.legend(fontsize="small", loc="upper center", ncols=2, frameon=False, columnspacing=1, handlelength=1)
        panel_title(
            plot, values(group.axes, [axis for axis in report.varying if group.axes.get(axis) != 0]), "memory taken"
        )
        plot.set_ylabel("share of the memory taken, %")
        plot.set_ylim(0, 125)

    return [panel]


def _stated_shares(group: Group) -> Mapping[str, Mapping[str, float]]:
    """Manager -> kind of memory -> share that the PagedAttention paper's Figure 2 prints at this point."""
    found = {
        name: {kind: stated_by_paged_attention(group.axes, name, kind) or 0.0 for kind, _, _ in _KINDS}
        for name in group.rows
    }
    return {name: shares for name, shares in found.items() if shares["used"]}


def _shares(group: Group) -> Mapping[str, Mapping[str, float]]:
    """Manager -> kind of memory -> share of the memory taken, for managers whose sequences took memory."""
    found = {
        name: {kind: share for kind, _, _ in _KINDS if (share := METRICS[kind].value(row.facts)) is not None}
        for name, row in group.rows.items()
    }
    return {name: shares for name, shares in found.items() if shares}


def _answers(report: Report) -> list[Panel]:
    """Panels of the memory that sharing saves among the answers of a request; hollow squares are the PagedAttention
    paper's labels.
    """
    panels: list[Panel] = []
    kinds = (("samples", "parallel sampling"), ("beams", "beam search"))
    traffic = list(dict.fromkeys(group.axes["traffic"] for group in report.groups))
    for (axis, words), name in product(kinds, traffic):
        groups = [group for group in report.groups if group.axes[axis] and group.axes["traffic"] == name]
        title = f"{words}, {name}" if name else words

        def panel(plot: Axes, axis: str = axis, title: str = title, groups: Sequence[Group] = groups) -> None:
            for name in report.columns.ids:
                drawn = report.columns.line_style(name)
                rows = [(group.axes, row) for group in groups if (row := group.rows.get(name)) is not None]
                known = [(axes[axis], METRICS["saved"].value(row.facts)) for axes, row in rows]
                found = [(number, saved) for number, saved in known if saved is not None]
                stated = {
                    axes[axis]: value for axes, _ in rows if (value := stated_by_paged_attention(axes, name, "saved"))
                }
                # Points at all rates are drawn, because they differ little.
                plot.plot([n for n, _ in found], [100 * saved for _, saved in found], **drawn.line2d(linestyle="none"))
                hollow = drawn.line2d(linestyle="dotted", markerfacecolor="none", markersize=9)
                plot.plot(list(stated), [100 * value for value in stated.values()], **hollow)
            panel_title(plot, words=title)
            ticks_at(plot.xaxis, [group.axes[axis] for group in groups])
            plot.set_xlabel("answers of a request")
            plot.set_ylabel("memory saved by sharing, %")
            plot.set_ylim(bottom=0)

        if groups:
            panels.append(panel)
    return panels


def _caption(report: Report, manifest: Manifest) -> str:
    axes_of = [(group.axes, name) for group in report.groups for name in group.rows]
    answers = any(stated_by_paged_attention(axes, name, "saved") for axes, name in axes_of)
    memory = any(map(_stated_shares, report.groups))
    marks = any(printed(group, row, "peak_batch_size") for group in report.groups for row in group.rows.values())
    parts = [
        "A replay on a virtual clock, not measured; medians over arrival seeds",
        *(["Hollow marks: measured by the paper (Table 4)"] if marks else []),
        *(["Hollow marks: measured by PagedAttention's authors (labels of Figure 15)"] if answers else []),
        *(["Pale bars: measured by PagedAttention's authors (labels of Figure 2)"] if memory else []),
        conditions(report, manifest, timed=False),
    ]
    return caption(parts, report)
