"""Figure of a ring: the activities of each rank over time, and the exposed share of transfers on a slow link."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store import Manifest
from chunkbench.report.columns import LineStyle
from chunkbench.report.figures.style import DASHES, caption, conditions, panel_title, sheet, ticks_at
from chunkbench.report.layout import Report
from chunkbench.workloads.ring.methods import CHOICES
from chunkbench.workloads.ring.metrics import METRICS
from chunkbench.workloads.ring.rates import break_even
from chunkbench.workloads.ring.result import RingResult

_COLOURS = {"compute": "#0072B2", "transfer": "#E69F00", "wait": "#BBBBBB"}
_NAMES = {"compute": "computes", "transfer": "sends and receives", "wait": "only waits"}
_MOST_LINES = 12


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw timelines of the longest prefill and of the longest decode step. Then draw exposed transfers against c, the
    tokens of a rank. Returns None if there is no panel.
    """
    longest = [_longest(report, phase) for phase in ("prefill", "decode")]
    panels: list[Group | list[Row]] = [group for group in longest if group is not None]
    slow = [row for group in report.groups if group.axes.get("link") and (row := group.rows.get("ring"))]
    slow = [row for row in slow if isinstance(row.facts, RingResult) and row.facts.times]
    if len({row.facts.axis("n_p") for row in slow}) > 1:
        panels.append(slow)
    if not panels:
        return None
    handles: list[Patch | Line2D] = [Patch(color=colour, label=_NAMES[what]) for what, colour in _COLOURS.items()]
    parts = ["Ranks are processes; timelines show the last pass", conditions(report, manifest)]
    page = sheet(caption(parts, report), handles, len(panels), across=2, share_y=False)  # type: ignore[arg-type]
    for plot, content in zip(page.panels, panels, strict=True):
        if isinstance(content, Group):
            _timelines(plot, _moving(content), report)
            axes = content.axes
            panel_title(plot, words=f"{axes['phase']}, {axes['n_p']:,} tokens")
        else:
            _exposed(plot, content)
    return page.figure


def _longest(report: Report, phase: str) -> Group | None:
    found = [g for g in report.groups if g.axes.get("phase") == phase and not g.axes.get("link") and _moving(g)]
    return max(found, key=lambda group: group.axes["n_p"], default=None)


def _moving(group: Group) -> list[RingResult]:
    """Results of schemes that use our kernel and whose ranks exchange data."""
    rows = [row.facts for name, row in group.rows.items() if CHOICES[name].scheme.kernel == "native"]
    results = [facts for facts in rows if isinstance(facts, RingResult)]
    return [facts for facts in results if any(what == "transfer" for rank in facts.timeline for what, _, _ in rank)]


def _timelines(plot: Axes, results: Sequence[RingResult], report: Report) -> None:
    ids = list(report.columns.ids)
    ordered = sorted(results, key=lambda facts: ids.index(facts.implementation))
    lines = [(facts, rank) for facts in ordered for rank in range(len(facts.timeline))][:_MOST_LINES]
    for place, (facts, rank) in enumerate(lines):
        for what, low, height in (("compute", -0.38, 0.5), ("wait", -0.38, 0.5), ("transfer", 0.16, 0.2)):
            spans = [(1e3 * start, 1e3 * (end - start)) for name, start, end in facts.timeline[rank] if name == what]
            plot.broken_barh(spans, (place + low, height), facecolors=_COLOURS[what])
    plot.set_yticks(range(len(lines)))
    names = report.columns.name
    labels = [names(facts.implementation) + (f" {rank}" if len(facts.timeline) > 1 else "") for facts, rank in lines]
    plot.set_yticklabels(labels, fontsize="xx-small")
    plot.invert_yaxis()
    plot.set_xlim(left=0)
    plot.set_xlabel("ms")


def _exposed(plot: Axes, rows: Sequence[Row]) -> None:
    spots = sorted(
        (facts.n_p // facts.ranks, 100 * exposed, break_even(facts))
        for row in rows
        if isinstance(facts := row.facts, RingResult) and (exposed := METRICS["exposed"].value(facts)) is not None
    )
    style = LineStyle("#D55E00", "^", "solid")
    plot.plot([c for c, _, _ in spots], [exposed for _, exposed, _ in spots], **style.line2d(markersize=5))
    known = [tokens for _, _, tokens in spots if tokens]
    if known:
        middle = sorted(known)[len(known) // 2]
        low, high = spots[0][0], spots[-1][0]
        line = [low * (high / low) ** (step / 60) for step in range(61)]
        plot.plot(line, [100 * max(0.0, 1 - c / middle) for c in line], color="#777777", linestyle=DASHES)
        plot.axvline(middle, color="#777777", linewidth=0.8)
        plot.annotate("c* predicted", (middle, 96), xytext=(4, 0), textcoords="offset points", fontsize="x-small")
    plot.set_xscale("log", base=2)
    ticks_at(plot.xaxis, [c for c, _, _ in spots])
    plot.set_ylim(-4, 104)
    plot.set_xlabel("tokens of a rank, c")
    plot.set_ylabel("exposed, % of the transfer")
    panel_title(plot, words="the ring on a slow link")
