"""The report of growth: the time of each operation against its size, the slopes, and what a decode step costs beside
attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from chunkbench.bench.analysis.derive import Row
from chunkbench.bench.store import Manifest
from chunkbench.report.layout import Layout, Report
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import NOTHING, count, micros, percent, times
from chunkbench.report.view import Body, View
from chunkbench.workloads.growth.methods import CHOICES
from chunkbench.workloads.growth.metrics import METRICS, STEEP, Curve, curves, facts, seconds_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BESIDE = (("plan", "decode", percent), ("append", "append_bytes", times))
"""(operation, operation that it is compared with, format of the ratio): what a step does besides attention."""
_LEGEND = (
    "slope: of the logarithm of the time over the logarithm of the size, least squares, over the sizes above a "
    f"hundredth of the largest; 1 is linear, and above {STEEP:g} is marked as steep",
    "time: median of the samples; a size with a single sample has its first one",
)


def body(view: View) -> Body:
    found = curves(view.rows, view.columns.ids)
    steep = [curve for curve in found if (curve.slope or 0) > STEEP]
    known = [curve for curve in found if curve.slope is not None]
    named = ", ".join(f"{view.columns.name(curve.name)} {curve.slope:.2f}" for curve in steep)
    headline = f"{len(known) - len(steep)} of {count(len(known), 'operation')} grow linearly or less." if known else ""
    headline += f" Steeper: {named}." if steep else ""
    tables = (_slopes(view, found), _beside(view, found), _times(view, found))
    return Body(headline, tables=tuple(one for one in tables if one.items), legend=_LEGEND, compares=False)


def _slopes(view: View, found: Sequence[Curve]) -> Table:
    def slope(curve: Curve) -> Cell:
        if curve.slope is None:
            return Cell(NOTHING, "absent")
        return Cell(f"{curve.slope:.2f}", "failed" if curve.slope > STEEP else "plain")

    def sizes(curve: Curve) -> str:
        return f"{curve.spots[0][0]:,} to {curve.spots[-1][0]:,} {CHOICES[curve.name].of}"

    columns: tuple[Column[Curve], ...] = (
        Column("operation", lambda curve: view.columns.name(curve.name), align="left"),
        Column("sizes", sizes, align="left"),
        Column("time of the smallest, µs", lambda curve: micros(curve.spots[0][1] * 1e6)),
        Column("time of the largest, µs", lambda curve: micros(curve.spots[-1][1] * 1e6)),
        Column("slope", slope),
        Column("what is timed", lambda curve: CHOICES[curve.name].style.meaning, align="left", wrap=True),
    )
    return Table("Growth of each operation", columns, found)


def _beside(view: View, found: Sequence[Curve]) -> Table:
    """The plan beside attention, and `append` beside its bytes, at each size that both have."""
    spots = {curve.name: dict(curve.spots) for curve in found}
    sizes = sorted({size for name, _, _ in _BESIDE for size in spots.get(name, ())})

    def ratio(name: str, other: str, text: Callable[[float], str]) -> Column[int]:
        def cell(size: int) -> str:
            ours, theirs = (spots.get(one, {}).get(size) for one in (name, other))
            return NOTHING if ours is None or theirs is None else text(ours / theirs)

        return Column(f"{view.columns.name(name)} / {view.columns.name(other)}", cell)

    columns = (Column[int]("rows", lambda size: f"{size:,}"), *(ratio(*pair) for pair in _BESIDE))
    return Table("What a step costs besides attention", columns, sizes)


def _times(view: View, found: Sequence[Curve]) -> Table:
    lines = [(curve, row) for curve in found for row in curve.rows]
    columns: tuple[Column[tuple[Curve, Row]], ...] = (
        Column("operation", lambda line: view.columns.name(line[0].name), align="left"),
        Column("size", lambda line: f"{facts(line[1]).size:,}"),
        Column("time, µs", lambda line: micros(seconds_of(line[1]) * 1e6)),
        Column("for each, µs", lambda line: f"{seconds_of(line[1]) * 1e6 / facts(line[1]).size:.3g}"),
        Column("samples", lambda line: str(len(facts(line[1]).seconds))),
    )
    ends = [number for number, (one, other) in enumerate(pairwise(lines)) if one[0] is not other[0]]
    return Table("All times", columns, lines, keys=2, breaks=frozenset(ends), essential=False)


def _draw(report: Report, manifest: Manifest) -> Figure | None:
    from chunkbench.workloads.growth.figure import draw

    return draw(report, manifest)


LAYOUT = Layout(body, _draw, METRICS, {})
