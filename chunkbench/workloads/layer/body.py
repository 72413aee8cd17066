"""What there is to say of the modules of a decoder layer: the paper's Table 1, by the shapes and on this machine."""

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
"""The paper's 16-bit numbers, whatever was measured with."""
_TITLES = {"flops": "FLOPs, 1e6", "bytes": "bytes, 1e6", "arithmetic_intensity": "FLOP per byte"}
_LEGEND = (
    "counted: a multiply-add as two FLOPs; weights, inputs and outputs of every product, once; of attention K and V, "
    "queries, output, and the context's scores written and read; nothing that is done element by element",
    "attention here is PyTorch's batched matrix products over contiguous K and V, nothing shared",
)


def body(view: View) -> Body:
    """What the shapes say, then what was measured."""
    analytic, different, compared = _analytic(view)
    return Body(_headline(view, different, compared), (analytic, _measured(view)), legend=_LEGEND)


def _analytic(view: View) -> tuple[Table, list[str], int]:
    """The table, which of the printed digits differ, and how many were compared."""
    rows: list[tuple[Cell, ...]] = []
    different: list[str] = []
    compared = 0
    places = {(repr(g.axes["model"]), g.axes["batch_size"], g.axes["n_p"]): g for g in view.groups}
    for group in places.values():
        shape, batch_size, n_p = group.axes["model"], group.axes["batch_size"], group.axes["n_p"]
        printed = _printed(shape, batch_size, n_p)
        for number, (figure, value) in enumerate(FIGURES.items()):
            title = _TITLES[figure]
            ours = {m: f"{value(MODULES[m](shape, batch_size, n_p, _ELEMENT_BYTES)):.2f}" for m in view.columns.ids}
            theirs = printed.get(figure, {})
            compared += sum(module in theirs for module in ours)
            unlike = {module for module, text in ours.items() if theirs.get(module, text) != text}
            different += [
                f"{title} of {view.columns.name(m)} at b = {batch_size}: {ours[m]}, printed {theirs[m]}" for m in unlike
            ]
            named = [Cell(str(shape)), Cell(f"{n_p:,}"), Cell(str(batch_size))] if not number else [Cell("")] * 3
            rows.append(
                (
                    *named,
                    Cell(title),
                    *(Cell(text, "failed" if module in unlike else "plain") for module, text in ours.items()),
                    *(Cell(theirs.get(module, NOTHING), "quiet") for module in ours),
                )
            )
    columns = (
        Column("model", ("model",), "left"),
        Column("context", ("context",)),
        Column("batch size", ("b",)),
        Column("figure", ("figure",), "left"),
        *(view.columns.column(module) for module in view.columns.ids),
        *(Column(f"{view.columns.name(module)}, paper", ("paper", *_short(module))) for module in view.columns.ids),
    )
    breaks = frozenset(range(2, len(rows) - 1, 3))
    return Table("What the shapes say, in 16-bit numbers", columns, tuple(rows), 4, breaks), different, compared


def _short(module: str) -> tuple[str, ...]:
    return {"qkv_projection": ("QKV",), "self_attention": ("attention",), "mlp": ("MLP",)}.get(module, (module,))


def _printed(shape: LlamaShape, batch_size: int, n_p: int) -> dict[str, dict[str, str]]:
    """metric -> module -> what the paper's Table 1 prints."""
    if str(shape) != _PAPER_MODEL or n_p != _PAPER_CONTEXT:
        return {}
    return {row["metric"]: row for row in paper_rows("table1") if int(row["batch_size"]) == batch_size}


def _measured(view: View) -> Table:
    rows: list[tuple[Cell, ...]] = []
    sizes = []
    for group in view.groups:
        own = [group.rows.get(module) for module in view.columns.ids]
        printed = _printed(group.axes["model"], group.axes["batch_size"], group.axes["n_p"]).get("latency", {})
        lines = [
            ("µs", [latency(row, None) for row in own]),
            ("share of the three", [Cell(_share(group, row)) for row in own]),
            ("roofline", [Cell(percent(row.derived.roofline_fraction) if row else NOTHING) for row in own]),
        ]
        if printed:
            lines.append(("µs, paper's A100", [Cell(printed[module], "quiet") for module in view.columns.ids]))
        for number, (title, cells) in enumerate(lines):
            rows.append((*(view.blank() if number else view.keys(group)), Cell(title), *cells))
        sizes.append(len(lines))
    columns = (
        *view.key_columns(),
        Column("", ("",), "left"),
        *(view.columns.column(module) for module in view.columns.ids),
    )
    ends = [sum(sizes[: number + 1]) - 1 for number in range(len(sizes) - 1)]
    return Table("Latency of a call, measured here", columns, tuple(rows), len(view.axes) + 1, frozenset(ends))


def _share(group: Group, row: Row | None) -> str:
    """Of the time that all modules of the layer take; only where all were measured."""
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
