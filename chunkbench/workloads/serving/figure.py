"""Figure of a serving run: normalized latency against load, as the paper's Figure 5, or K/V memory over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from matplotlib.figure import Figure

from chunkbench.analysis.points import describe
from chunkbench.report.figures.style import MOST_PANELS, caption, conditions, handle, panel_title, sheet
from chunkbench.report.model import Group
from chunkbench.report.report import Report
from chunkbench.store import Manifest
from chunkbench.store.serving_facts import ServingFacts

_STYLES = ("-", "--", ":", "-.")
"""Lines for the values of n_s, from the largest one down."""


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Latency against load where systems have several rates, else K/V memory over time; None if there is neither."""
    return _latencies(report, manifest) or _memory(report, manifest)


def _latencies(report: Report, manifest: Manifest) -> Figure | None:
    """One panel for each n_p, a line for each system and n_s."""
    panels: dict[int, list[Group]] = defaultdict(list)
    for group in report.groups:
        panels[group.axes["n_p"]].append(group)
    drawn = {n_p: lines for n_p, groups in sorted(panels.items()) if (lines := _lines(groups, report.columns.ids))}
    if not drawn:
        return None
    columns = report.columns
    names = [name for name in columns.ids if any(name == line[0] for lines in drawn.values() for line in lines)]
    handles = [handle(*columns.style(name), columns.name(name)) for name in names]
    shares = sorted({n_s for lines in drawn.values() for _, n_s in lines}, reverse=True)
    page = sheet(report.title, _caption(report, manifest), handles, len(drawn), share_y=False)
    for plot, (n_p, lines) in zip(page.panels, drawn.items(), strict=True):
        for (name, n_s), spots in lines.items():
            colour, marker = columns.style(name)
            style = _STYLES[shares.index(n_s) % len(_STYLES)]
            rates, middles, lows, highs = zip(*sorted(spots), strict=True)
            plot.plot(rates, middles, color=colour, marker=marker, linestyle=style, markersize=5, linewidth=1.5)
            plot.fill_between(rates, lows, highs, color=colour, alpha=0.12, linewidth=0)
            plot.annotate(
                f"n_s = {n_s}",
                (rates[-1], middles[-1]),
                fontsize=7,
                color=colour,
                xytext=(4, 0),
                textcoords="offset points",
            )
        panel_title(plot, f"n_p = {n_p}")
        plot.set_ylim(bottom=0)
        plot.margins(x=0.15)
    page.label("requests per second", "normalized latency, ms/token")
    return page.figure


def _memory(report: Report, manifest: Manifest) -> Figure | None:
    """One panel for each point, a line for each system: K/V bytes of live requests, first arrival seed."""
    columns = report.columns
    drawn = [(group, lines) for group in report.groups if (lines := _timelines(group, columns.ids))][:MOST_PANELS]
    if not drawn:
        return None
    names = [name for name in columns.ids if any(name in lines for _, lines in drawn)]
    handles = [handle(*columns.style(name), columns.name(name)) for name in names]
    page = sheet(report.title, _memory_caption(report, manifest), handles, len(drawn), share_y=False)
    for plot, (group, lines) in zip(page.panels, drawn, strict=True):
        for name, spots in lines.items():
            colour, marker = columns.style(name)
            plot.plot(*zip(*spots, strict=True), color=colour, marker=marker, markevery=10, markersize=4, linewidth=1.4)
        panel_title(plot, describe(group.axes, [axis for axis in report.varying if axis in group.axes]))
        plot.set_ylim(bottom=0)
    page.label("seconds after the first request", "K/V of live requests, MB")
    return page.figure


def _timelines(group: Group, names: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    """System -> (seconds, megabytes) during its first measurement."""
    lines = {}
    for name in names:
        row = group.rows.get(name)
        facts = row.facts if row is not None else None
        server = facts.measurements[0].server if isinstance(facts, ServingFacts) and facts.measurements else None
        spots = [(at, held / 1e6) for at, _, held in server.timeline if held is not None] if server else []
        if spots:
            lines[name] = spots
    return lines


def _memory_caption(report: Report, manifest: Manifest) -> str:
    parts = [
        "Bytes of blocks or chunks that live requests refer to, during the first arrival seed",
        conditions(report, manifest, timed=False),
    ]
    return caption(parts, report)


Spot = tuple[float, float, float, float]


def _lines(groups: Sequence[Group], names: Sequence[str]) -> dict[tuple[str, int], list[Spot]]:
    """(system, n_s) -> (rate, latency, low, high), for those with more than one rate."""
    lines: dict[tuple[str, int], list[Spot]] = defaultdict(list)
    for group in groups:
        for name in names:
            row = group.rows.get(name)
            if row is None or row.derived.latency_us is None or not isinstance(row.facts, ServingFacts):
                continue
            low, high = row.derived.low_us or 0.0, row.derived.high_us or 0.0
            spot = (row.facts.requests_per_s or 0.0, row.derived.latency_us / 1e3, low / 1e3, high / 1e3)
            lines[name, group.axes["n_s"] or 0].append(spot)
    return {line: spots for line, spots in lines.items() if len(spots) > 1}


def _caption(report: Report, manifest: Manifest) -> str:
    parts = [
        "Median over arrival seeds, smallest and largest seed shaded; latency counts from when a request was due",
        conditions(report, manifest, timed=False),
    ]
    return caption(parts, report)
