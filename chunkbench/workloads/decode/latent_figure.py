"""Figure of latent attention: gain of expanding what is shared, against the batch size."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunkbench.bench.analysis.derive import Group
from chunkbench.bench.store import Manifest
from chunkbench.bench.store.results import DecodeResult
from chunkbench.report.columns import LineStyle
from chunkbench.report.figures.style import (
    DASHES,
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
from chunkbench.workloads.decode.latent_report import ABSORBED, MIXED, break_evens, latents

_GREY = "#777777"
_COLOURS, _MARKERS = ("#56B4E9", "#0072B2", "#009E73", "#E69F00", "#D55E00", "#CC79A7"), "osD^vP"


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Draw time of Absorbed, two-phase over that of Mixed against the batch size, a curve for each shared part; with
    lines at the break-even, predicted and measured."""
    found = [pair for pair in latents(report.groups) if {ABSORBED, MIXED} <= pair[0].rows.keys()]
    shares = sorted({_share(facts) for _, facts in found})
    if not found or len({facts.batch_size for _, facts in found}) < 2:
        return None
    facts_of = {id(group): facts for group, facts in found}
    axes = [axis for axis in report.varying if axis not in ("batch_size", "n_s")]
    panels = by_values([group for group, _ in found], axes)
    styles = {
        share: LineStyle(_COLOURS[n % len(_COLOURS)], _MARKERS[n % len(_MARKERS)], "solid")
        for n, share in enumerate(shares)
    }
    handles = [handle(style, f"{share:.0%} of the prompt shared") for share, style in styles.items()]
    handles += [
        handle(LineStyle(_GREY, "", "dashed"), "break-even, predicted"),
        handle(LineStyle(_GREY, "", "solid"), "measured"),
    ]
    parts = [
        f"Time of {report.columns.name(ABSORBED)} over that of {report.columns.name(MIXED)}: above 1, expanding pays",
        conditions(report, manifest),
        *left_out(len(panels)),
    ]
    shown = list(panels.items())[:MOST_PANELS]
    page = sheet(caption(parts, report), handles, len(shown))
    for plot, (title, groups) in zip(page.panels, shown, strict=True):
        for share, style in styles.items():
            members = [group for group in groups if _share(facts_of[id(group)]) == share]
            _curve(plot, members, style.line2d(markersize=5))
        plot.axhline(1, color=_GREY, linewidth=0.8)
        for each in break_evens(groups):
            plot.axvline(each.predicted, color=_GREY, linestyle=DASHES, linewidth=1.2)
            if each.measured is not None:
                plot.axvline(each.measured, color=_GREY, linewidth=1.2)
        plot.set_xscale("log")
        plot.set_yscale("log")
        ticks_at(plot.xaxis, sorted({facts_of[id(group)].batch_size for group in groups}))
        ticks_at(plot.yaxis, [0.5, 0.7, 1, 1.5, 2, 3])
        panel_title(plot, title)
    page.label("batch size, $b$", "gain of expanding")
    return page.figure


def _share(facts: DecodeResult) -> float:
    return (facts.n_s or 0) / facts.n_p if isinstance(facts.n_p, int) else 0.0


def _curve(plot: Axes, groups: list[Group], style: dict[str, Any]) -> None:
    spots = []
    for group in groups:
        slow, fast = (group.rows[name].derived.latency_us for name in (ABSORBED, MIXED))
        if slow and fast:
            spots.append((group.axes["batch_size"], slow / fast))
    if spots:
        plot.plot(*zip(*sorted(spots), strict=True), **style)
