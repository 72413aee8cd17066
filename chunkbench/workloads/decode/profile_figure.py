"""Picture of a profile: the units of a traced decode on a timeline, and the phases on the machine's roofline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from chunkbench.bench.store.profile import ProfileFacts
from chunkbench.report.columns import LineStyle
from chunkbench.report.figures.style import panel_title, round_values, sheet, ticks_at
from chunkbench.report.numbers import count
from chunkbench.workloads.decode.profile_document import cold_us, middle, peaks, phases, wall_s

# The colours differ in grey print, too: dark, light and black. The markers differ as well.
_SHARED, _PRIVATE, _WHOLE = (
    LineStyle(*style, "none") for style in (("#0072B2", "o"), ("#E9B84E", "s"), ("#333333", "D"))
)
_WAITING = "#000000"
_EDGED = 100
"""Largest number of units per thread that are drawn with edges."""
_ROOM = 3.0
"""Margin around the points and the ridge, as a factor."""


class _Spot(NamedTuple):
    """A point of the roofline figure."""

    label: str
    style: LineStyle
    intensity: float
    """FLOPs for each byte that is read."""
    rate: float
    """FLOPs per second."""


def draw(facts: ProfileFacts, where: str, machine: str) -> Figure:
    """Draw the timeline on the left, if the implementation has a trace, and the roofline on the right. `where` and
    `machine` are for the caption.
    """
    spots = list(_spots(facts))
    handles = [_handle(spot.label, spot.style) for spot in spots]
    if facts.decode:
        handles.append(_handle("waiting for partial results", LineStyle(_WAITING, "s", "none")))
    what = f"{facts.case.label} at {where}, caches cold, {count(facts.case.threads or 1, 'thread')}"
    seen = "Line: the roofline"
    if facts.decode:
        seen = "Left: the traced decode with the median time. Right: the roofline; each phase is placed by its own time"
    seen += ". A point above the line has read from caches" if _above(facts, spots) else ""
    page = sheet(f"{what}. {seen}. Here: {machine}.", handles, 2 if facts.decode else 1, across=2, share_y=False)
    if facts.decode:
        _timeline(page.panels[0], facts)
    _roofline(page.panels[-1], facts, spots)
    return page.figure


def _handle(label: str, style: LineStyle) -> Line2D:
    return Line2D([], [], label=label, **_mark(style))


def _mark(style: LineStyle) -> dict[str, Any]:
    """Keyword arguments for a point. The whole decode is a hollow frame, because a phase may lie at the same point."""
    if style == _WHOLE:
        return style.line2d(markersize=11, markerfacecolor="none", markeredgewidth=1.4)
    return style.line2d(markersize=7)


def _spots(facts: ProfileFacts) -> Iterator[_Spot]:
    read_bytes, flops = facts.case.read_bytes[0], facts.case.flops[0]
    if facts.decode:
        trace = middle(facts.decode)
        *_, everything = parts = phases(trace)
        read_bytes, flops = everything.read_bytes, everything.flops
        for part in parts[:2]:
            style = _SHARED if part.name == "shared" else _PRIVATE
            rate = part.flops / (part.seconds / trace.threads)
            yield _Spot(f"{part.name} chunks", style, part.flops / part.read_bytes, rate)
    yield _Spot("whole decode", _WHOLE, flops / read_bytes, 1e6 * flops / cold_us(facts))


def _above(facts: ProfileFacts, spots: list[_Spot]) -> bool:
    """Whether a point lies above the roofline, so that it would need more than the read bandwidth."""
    return max(spot.rate / spot.intensity for spot in spots) > peaks(facts)[0]


def _timeline(plot: Axes, facts: ProfileFacts) -> None:
    """Draw a bar for each thread, made of its units in order."""
    trace = middle(facts.decode)
    for number in range(trace.threads):
        own = [unit for unit in trace.units if unit.thread == number]
        bars = [(1e3 * unit.ready_s, 1e3 * (unit.end_s - unit.ready_s)) for unit in own]
        waits = [(1e3 * unit.begin_s, 1e3 * (unit.ready_s - unit.begin_s)) for unit in own]
        colours = [(_SHARED if unit.shared else _PRIVATE).colour for unit in own]
        edges = 0.4 if len(own) <= _EDGED else 0.0
        plot.broken_barh(bars, (number - 0.4, 0.8), facecolors=colours, edgecolors="white", linewidth=edges)
        plot.broken_barh(waits, (number - 0.4, 0.8), facecolors=_WAITING, linewidth=0)
    plot.set_xlim(0, 1e3 * wall_s(trace))
    plot.set_ylim(trace.threads - 0.4, -0.6)
    plot.yaxis.set_major_locator(MaxNLocator(integer=True))
    plot.grid(False)
    plot.set_xlabel("ms")
    plot.set_ylabel("thread")
    panel_title(plot, words="units of work")


def _roofline(plot: Axes, facts: ProfileFacts, spots: list[_Spot]) -> None:
    bandwidth, peak = peaks(facts)
    ridge = peak / bandwidth
    low = min(ridge, *(spot.intensity for spot in spots)) / _ROOM
    high = max(ridge, *(spot.intensity for spot in spots)) * _ROOM
    plot.plot([low, ridge, high], [low * bandwidth / 1e9, peak / 1e9, peak / 1e9], color="#000000", linewidth=1.2)
    for spot in spots:
        plot.plot(spot.intensity, spot.rate / 1e9, **_mark(spot.style), zorder=3)
    plot.set_xscale("log")
    plot.set_yscale("log")
    lowest, highest = (
        min(low * bandwidth, *(spot.rate for spot in spots)) / 1e9 / 1.5,
        max(peak, *(spot.rate for spot in spots)) / 1e9 * 2,
    )
    plot.set_xlim(low, high)
    plot.set_ylim(lowest, highest)
    ticks_at(plot.xaxis, round_values(low, high))
    ticks_at(plot.yaxis, round_values(lowest, highest))
    plot.set_xlabel("FLOP per byte")
    plot.set_ylabel("GFLOP/s")
    panel_title(plot, words=f"peaks {bandwidth / 1e9:.3g} GB/s, {peak / 1e9:.3g} GFLOP/s")
