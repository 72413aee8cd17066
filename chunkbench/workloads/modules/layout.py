"""The report of a decoder layer's modules: the paper's Table 1, computed from the shapes and measured on this
machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store import Manifest
from chunkbench.llama import LlamaShape
from chunkbench.report.layout import Layout, Report
from chunkbench.report.model import Cell, Column, Table
from chunkbench.report.numbers import ABSENT, NOTHING, count, measured, micros, percent
from chunkbench.report.printed import paper_rows
from chunkbench.report.view import Body, Line, View
from chunkbench.workloads.decode.metrics import METRICS
from chunkbench.workloads.modules import claims
from chunkbench.workloads.modules.layer_costs import FIGURES, MODULES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAPER_MODEL, _PAPER_CONTEXT = "llama2-7b", 2048
_ELEMENT_BYTES = 2
"""Bytes of an element in the computed costs. The paper uses 2, so the measured dtype does not matter."""
_TITLES = {"flops": "FLOPs, 1e6", "bytes": "bytes, 1e6", "arithmetic_intensity": "FLOP per byte"}
_LEGEND = (
    "counted: a multiply-add is two FLOPs; weights, inputs and outputs of every product are moved once; attention "
    "moves K, V, queries and output, and writes and reads the scores of the context; element-wise operations are "
    "left out",
    "attention here is computed by PyTorch's batched matrix products over contiguous K and V; nothing is shared",
)


def body(view: View) -> Body:
    figures = _figures(view)
    return Body(_headline(view, figures), (_analytic(view, figures), _measured(view)), legend=_LEGEND)


@dataclass(frozen=True)
class _Computed:
    """A figure of a layer, such as its FLOPs, at one combination of model, context and batch size. `computed` and
    `printed`: module -> the value computed here, and the value that the paper prints.
    """

    place: tuple[str, str, str]
    """Model, context and batch size."""
    first: bool
    """Whether this line is the first with its model, context and batch size. Only the first line shows them."""
    title: str
    computed: Mapping[str, str]
    printed: Mapping[str, str]

    def differs(self, module: str) -> bool:
        """Whether the paper prints another value for this module."""
        return self.printed.get(module, self.computed[module]) != self.computed[module]


def _figures(view: View) -> list[_Computed]:
    """The computed figures at each combination of model, context and batch size."""
    figures = []
    places = {(repr(g.axes["model"]), g.axes["batch_size"], g.axes["n_p"]): g for g in view.groups}
    for group in places.values():
        shape, batch_size, n_p = group.axes["model"], group.axes["batch_size"], group.axes["n_p"]
        printed = _printed(shape, batch_size, n_p)
        for number, (figure, value) in enumerate(FIGURES.items()):
            costs = {module: MODULES[module](shape, batch_size, n_p, _ELEMENT_BYTES) for module in _modules(view)}
            computed = {module: f"{value(cost):.2f}" for module, cost in costs.items()}
            place = (str(shape), f"{n_p:,}", str(batch_size))
            figures.append(_Computed(place, number == 0, _TITLES[figure], computed, printed.get(figure, {})))
    return figures


def _analytic(view: View, figures: Sequence[_Computed]) -> Table:
    def computed(module: str) -> Column[_Computed]:
        return view.columns.column(
            module, lambda figure: Cell(figure.computed[module], "failed" if figure.differs(module) else "plain")
        )

    def paper(module: str) -> Column[_Computed]:
        return Column(
            f"{view.columns.name(module)}, paper",
            lambda figure: Cell(figure.printed.get(module, NOTHING), "quiet"),
            ("paper", *_short(module)),
        )

    columns: tuple[Column[_Computed], ...] = (
        Column("model", lambda figure: figure.place[0] if figure.first else "", align="left"),
        Column("context", lambda figure: figure.place[1] if figure.first else ""),
        Column("batch size", lambda figure: figure.place[2] if figure.first else "", ("b",)),
        Column("figure", lambda figure: figure.title, align="left"),
        *map(computed, _modules(view)),
        *map(paper, _modules(view)),
    )
    breaks = frozenset(range(2, len(figures) - 1, 3))
    return Table("Costs that follow from the shapes, in 16-bit numbers", columns, figures, 4, breaks)


def _modules(view: View) -> list[str]:
    """The measured modules, in the order of the layer and of the paper's table. Modules are not compared with each
    other.
    """
    return [module for module in MODULES if module in view.columns.labels]


def _short(module: str) -> tuple[str, ...]:
    return {"qkv_projection": ("QKV",), "self_attention": ("attention",), "mlp": ("MLP",)}.get(module, (module,))


def _printed(shape: LlamaShape, batch_size: int, n_p: int) -> dict[str, dict[str, str]]:
    """Metric -> module -> the figure that the paper's Table 1 prints."""
    if str(shape) != _PAPER_MODEL or n_p != _PAPER_CONTEXT:
        return {}
    return {row["metric"]: row for row in paper_rows("table1") if int(row["batch_size"]) == batch_size}


def _measured(view: View) -> Table:
    def lines(group: Group) -> list[Line]:
        rows = {module: group.rows.get(module) for module in _modules(view)}
        fractions = {module: row.derived.roofline_fraction if row else None for module, row in rows.items()}
        printed = _printed(group.axes["model"], group.axes["batch_size"], group.axes["n_p"]).get("latency", {})
        shown = [
            Line(
                "µs",
                {
                    module: measured(row, micros(row.derived.latency_us)) if row else ABSENT
                    for module, row in rows.items()
                },
            ),
            Line("share of all three", {module: Cell(percent(_share(group, row))) for module, row in rows.items()}),
            Line("roofline", {module: Cell(percent(fraction)) for module, fraction in fractions.items()}),
        ]
        paper = Line("µs, paper's A100", {module: Cell(printed[module], "quiet") for module in rows if printed})
        return [*shown, paper] if printed else shown

    return view.line_table("Latency of a call, measured here", lines, _modules(view), apart=True)


def _share(group: Group, row: Row | None) -> float | None:
    """Share of a module in the time of all modules of its layer; None unless all were measured."""
    times = [other.derived.latency_us for other in group.rows.values()]
    if row is None or row.derived.latency_us is None or None in times or len(times) < len(MODULES):
        return None
    return row.derived.latency_us / sum(time for time in times if time is not None)


def _headline(view: View, figures: Sequence[_Computed]) -> str:
    parts = []
    compared = sum(module in figure.printed for figure in figures for module in figure.computed)
    different = [
        f"{figure.title} of {view.columns.name(module)} at b = {figure.place[2]}: "
        f"{figure.computed[module]}, printed {figure.printed[module]}"
        for figure in figures
        for module in figure.computed
        if figure.differs(module)
    ]
    if compared:
        met = "each" if not different else f"{compared - len(different)}"
        parts = [f"The shapes give {met} of the paper's {count(compared, 'printed figure')}", *different]
    shares = [
        (group.axes["batch_size"], share)
        for group in view.groups
        if (share := _share(group, group.rows.get("self_attention"))) is not None
    ]
    if shares:
        batch_size, share = max(shares, key=lambda pair: pair[0])
        parts.append(f"At b = {batch_size} attention takes {percent(share)} of the three modules' time here")
    return ". ".join(parts) + "." if parts else ""


def _draw(report: Report, manifest: Manifest) -> Figure | None:
    from chunkbench.workloads.modules.figure import draw

    return draw(report, manifest)


LAYOUT = Layout(body, _draw, METRICS, claims.JUDGES)
