"""The report of a decoder layer's modules: the paper's Table 1, from the shapes and measured on this machine."""

from __future__ import annotations

from chunkbench.analysis.derive import Row
from chunkbench.analysis.layer_costs import MODULES
from chunkbench.experiment.llama import LlamaShape
from chunkbench.paper.printed import paper_rows
from chunkbench.paper.table1 import FIGURES
from chunkbench.report.cells import latency
from chunkbench.report.model import Cell, Column, Group, Table
from chunkbench.report.numbers import NOTHING, count, percent
from chunkbench.report.view import Body, View

_PAPER_MODEL, _PAPER_CONTEXT = "llama2-7b", 2048
_ELEMENT_BYTES = 2
"""The paper uses 16-bit numbers; the computed costs do too, whatever dtype was measured."""
_TITLES = {"flops": "FLOPs, 1e6", "bytes": "bytes, 1e6", "arithmetic_intensity": "FLOP per byte"}
_LEGEND = (
    "counted: a multiply-add as two FLOPs; weights, inputs and outputs of every product, once; for attention K, V, "
    "queries, output, and writing and reading the scores of the context; no element-wise operations",
    "attention here is computed by PyTorch's batched matrix products over contiguous K and V, nothing shared",
)


def body(view: View) -> Body:
    """Headline, the computed and the measured table, and legend of a run."""
    analytic, different, compared = _analytic(view)
    return Body(_headline(view, different, compared), (analytic, _measured(view)), legend=_LEGEND)


def _analytic(view: View) -> tuple[Table, list[str], int]:
    """The computed table, the figures that differ from the printed ones, and the number of compared figures."""
    rows: list[tuple[Cell, ...]] = []
    different: list[str] = []
    compared = 0
    places = {(repr(g.axes["model"]), g.axes["batch_size"], g.axes["n_p"]): g for g in view.groups}
    for group in places.values():
        shape, batch_size, n_p = group.axes["model"], group.axes["batch_size"], group.axes["n_p"]
        printed = _printed(shape, batch_size, n_p)
        for number, (figure, value) in enumerate(FIGURES.items()):
            title = _TITLES[figure]
            computed = {m: f"{value(MODULES[m](shape, batch_size, n_p, _ELEMENT_BYTES)):.2f}" for m in _modules(view)}
            paper = printed.get(figure, {})
            compared += sum(module in paper for module in computed)
            differing = {module for module, text in computed.items() if paper.get(module, text) != text}
            different += [
                f"{title} of {view.columns.name(m)} at b = {batch_size}: {computed[m]}, printed {paper[m]}"
                for m in differing
            ]
            keys = [Cell(str(shape)), Cell(f"{n_p:,}"), Cell(str(batch_size))] if not number else [Cell("")] * 3
            rows.append(
                (
                    *keys,
                    Cell(title),
                    *(Cell(text, "failed" if module in differing else "plain") for module, text in computed.items()),
                    *(Cell(paper.get(module, NOTHING), "quiet") for module in computed),
                )
            )
    columns = (
        Column("model", ("model",), "left"),
        Column("context", ("context",)),
        Column("batch size", ("b",)),
        Column("figure", ("figure",), "left"),
        *(view.columns.column(module) for module in _modules(view)),
        *(Column(f"{view.columns.name(module)}, paper", ("paper", *_short(module))) for module in _modules(view)),
    )
    breaks = frozenset(range(2, len(rows) - 1, 3))
    return Table("What the shapes say, in 16-bit numbers", columns, tuple(rows), 4, breaks), different, compared


def _modules(view: View) -> list[str]:
    """The measured modules in the order of the layer and of the paper's table: none is compared with the others."""
    return [module for module in MODULES if module in view.columns.labels]


def _short(module: str) -> tuple[str, ...]:
    return {"qkv_projection": ("QKV",), "self_attention": ("attention",), "mlp": ("MLP",)}.get(module, (module,))


def _printed(shape: LlamaShape, batch_size: int, n_p: int) -> dict[str, dict[str, str]]:
    """Metric -> module -> the figure that the paper's Table 1 prints."""
    if str(shape) != _PAPER_MODEL or n_p != _PAPER_CONTEXT:
        return {}
    return {row["metric"]: row for row in paper_rows("table1") if int(row["batch_size"]) == batch_size}


def _measured(view: View) -> Table:
    rows: list[tuple[Cell, ...]] = []
    sizes = []
    for group in view.groups:
        modules = [group.rows.get(module) for module in _modules(view)]
        printed = _printed(group.axes["model"], group.axes["batch_size"], group.axes["n_p"]).get("latency", {})
        lines = [
            ("µs", [latency(row, None) for row in modules]),
            ("share of the three", [Cell(_share(group, row)) for row in modules]),
            ("roofline", [Cell(percent(row.derived.roofline_fraction) if row else NOTHING) for row in modules]),
        ]
        if printed:
            lines.append(("µs, paper's A100", [Cell(printed[module], "quiet") for module in _modules(view)]))
        for number, (title, cells) in enumerate(lines):
            rows.append((*(view.blank() if number else view.keys(group)), Cell(title), *cells))
        sizes.append(len(lines))
    columns = (
        *view.key_columns(),
        Column("", ("",), "left"),
        *(view.columns.column(module) for module in _modules(view)),
    )
    ends = [sum(sizes[: number + 1]) - 1 for number in range(len(sizes) - 1)]
    return Table("Latency of a call, measured here", columns, tuple(rows), len(view.axes) + 1, frozenset(ends))


def _share(group: Group, row: Row | None) -> str:
    """Share of the time of all modules of the layer; only if all were measured."""
    times = [other.derived.latency_us for other in group.rows.values()]
    if row is None or row.derived.latency_us is None or None in times or len(times) < len(MODULES):
        return NOTHING
    return percent(row.derived.latency_us / sum(time for time in times if time is not None))


def _headline(view: View, different: list[str], compared: int) -> str:
    parts = []
    if compared:
        met = "each" if not different else f"{compared - len(different)}"
        parts = [f"The shapes give {met} of the paper's {count(compared, 'printed figure')}", *different]
    shares = [
        (group.axes["batch_size"], share)
        for group in view.groups
        if (share := _share(group, group.rows.get("self_attention"))) != NOTHING
    ]
    if shares:
        most = max(shares, key=lambda pair: pair[0])
        parts.append(f"At b = {most[0]} attention takes {most[1]} of the three modules' time here")
    return ". ".join(parts) + "." if parts else ""
