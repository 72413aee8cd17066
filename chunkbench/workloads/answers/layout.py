"""The report of answers: needles, next tokens, bytes and deviation of the attention, for each choice of heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from chunkbench.bench.analysis.derive import Group, Row
from chunkbench.bench.store import Manifest
from chunkbench.report.layout import Layout, Report
from chunkbench.report.metric import Metric
from chunkbench.report.model import Cell, Table
from chunkbench.report.numbers import NOTHING, percent
from chunkbench.report.quantities import Quantity, quantities
from chunkbench.report.view import Body, View
from chunkbench.workloads.answers import claims
from chunkbench.workloads.answers.metrics import METRICS, by_depth
from chunkbench.workloads.answers.result import AnswersResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEGEND = (
    "needles: keys with values hidden in real text at ten depths. The question comes after the compressed cache, and "
    "the greedy answer must begin with the value. Needles count only if the model finds them with the full cache",
    "next tokens: in held-out text after the context, the share of positions at which this cache predicts the same "
    "next token as the full cache",
    "deviation = length of the difference to attention over all tokens, over the length of that attention; for the "
    "context's last token, all layers, on the model's own K and V; median and worst head: of each layer and KV head",
    "log-probability lost: of a token of the held-out text, mean, against the full cache; natural logarithm",
    "random heads: as many as there are retrieval heads, drawn for each context; plain: without compensation token",
)


_DEVIATIONS = ("deviation", "median_deviation", "worst_deviation", "logprob_lost")


def body(view: View) -> Body:
    return Body(
        _headline(view), (_table(view), _depths(view)), legend=_LEGEND, timing="nothing was timed", compares=False
    )


def _facts(row: Row) -> AnswersResult:
    assert isinstance(row.facts, AnswersResult)
    return row.facts


def _was_tried(row: Row) -> bool:
    return bool(_facts(row).contexts)


def _table(view: View) -> Table:
    lines: list[Quantity | Metric] = [
        ("needles found", _found),
        METRICS["needles"],
        METRICS["agreement"],
        ("  lowest to highest", _agreements),
        *((METRICS[name].label, _of_compressed(name)) for name in _DEVIATIONS),
        METRICS["kv_share"],
        METRICS["full_heads"],
    ]
    return quantities(view, "Answers after a compressed context", lines, _was_tried)


def _found(_: Group, row: Row) -> Cell:
    return Cell(f"{METRICS['found'].text(row.facts)} of {METRICS['findable'].text(row.facts)}")


def _agreements(_: Group, row: Row) -> Cell:
    known = METRICS["agreement"].known(row.facts)
    return Cell(f"{percent(min(known))} to {percent(max(known))}")


def _of_compressed(name: str) -> Callable[[Group, Row], Cell]:
    """The cells of a metric that says nothing about the full cache."""

    def cell(_: Group, row: Row) -> Cell:
        return METRICS[name].cell(row) if METRICS["deviation"].value(row.facts) else Cell(NOTHING)

    return cell


def _depths(view: View) -> Table:
    def line(depth: int) -> Quantity:
        def cell(_: Group, row: Row) -> Cell:
            share = by_depth(_facts(row))[depth]
            return Cell("the model finds none" if share is None else percent(share))

        return f"depth {10 * depth + 5}%", cell

    return quantities(view, "Needles found, by depth", [line(depth) for depth in range(10)], _was_tried)


def _headline(view: View) -> str:
    parts = []
    for name in dict.fromkeys(name for group in view.groups for name in group.rows):
        tried = [row.facts for group in view.groups if (row := group.rows.get(name)) and _was_tried(row)]
        found, of = (sum(METRICS[which].value(facts) or 0 for facts in tried) for which in ("found", "findable"))
        parts += [f"{view.columns.name(name)} {found:.0f} of {of:.0f}"] if of else []
    return f"Needles found of those that the model finds at all: {', '.join(parts)}." if parts else ""


def _draw(report: Report, manifest: Manifest) -> Figure | None:
    from chunkbench.workloads.answers.figure import draw

    return draw(report, manifest)


LAYOUT = Layout(body, _draw, METRICS, claims.JUDGES)
