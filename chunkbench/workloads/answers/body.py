"""The report of answers: needles, next tokens, bytes and deviation of each choice of heads."""

from __future__ import annotations

from collections.abc import Callable

from chunkbench.analysis.derive import Group, Row
from chunkbench.report.model import Cell, Table
from chunkbench.report.numbers import NOTHING, percent, significant
from chunkbench.report.quantities import Quantity, figure, quantities
from chunkbench.report.view import Body, View
from chunkbench.workloads.answers.numbers import AnswersNumbers, answers_numbers
from chunkbench.workloads.answers.result import AnswersResult

_LEGEND = (
    "needles: keys with values hidden in real text at ten depths; the question begins behind the compressed cache, and "
    "the answer, greedy, must begin with the value. Counted: those that the model finds with all heads whole",
    "next tokens: held text behind the context; the share of tokens behind which the most probable one is that of the "
    "model whose heads keep everything",
    "deviation = of the attention of the context's last token, all layers, on the model's own K and V: length of the "
    "difference to attention over all tokens, over its length",
    "random heads: as many as retrieval heads, drawn for each context; plain: without the compensation token",
)


def body(view: View) -> Body:
    """Headline, tables and legend of a run."""
    return Body(
        _headline(view), (_table(view), _depths(view)), legend=_LEGEND, timing="nothing was timed", compares=False
    )


def _table(view: View) -> Table:
    lines: list[Quantity] = [
        ("needles found", _number(lambda n: f"{n.found} of {n.findable}")),
        ("  hidden", _number(lambda n: str(n.needles))),
        ("next tokens, equal", _number(lambda n: percent(n.agreement))),
        ("  lowest to highest", _number(lambda n: f"{percent(n.lowest_agreement)} to {percent(n.highest_agreement)}")),
        ("deviation", _number(lambda n: significant(n.deviation, 3) if n.deviation else NOTHING)),
        ("K/V, of full", _number(lambda n: percent(n.kv_share))),
        ("heads that keep all", _heads),
    ]
    return quantities(view, "Answers behind a compressed context", lines, lambda row: answers_numbers(row) is not None)


def _depths(view: View) -> Table:
    def line(depth: int) -> Quantity:
        def text(numbers: AnswersNumbers) -> str:
            share = numbers.by_depth[depth] if depth < len(numbers.by_depth) else None
            return "not by the model" if share is None else percent(share)

        return f"depth {10 * depth + 5}%", _number(text)

    return quantities(
        view,
        "Needles found, by depth",
        [line(depth) for depth in range(10)],
        lambda row: answers_numbers(row) is not None,
    )


def _number(text: Callable[[AnswersNumbers], str]) -> Callable[[Group, Row], Cell]:
    return figure(lambda _, row: answers_numbers(row), text)


def _heads(_: Group, row: Row) -> Cell:
    return Cell(str(row.facts.full_heads) if isinstance(row.facts, AnswersResult) else NOTHING)


def _headline(view: View) -> str:
    counted: dict[str, list[int]] = {}
    for group in view.groups:
        for name, row in group.rows.items():
            if (numbers := answers_numbers(row)) is not None:
                sums = counted.setdefault(name, [0, 0])
                counted[name] = [sums[0] + numbers.found, sums[1] + numbers.findable]
    parts = [f"{view.columns.name(name)} {found} of {of}" for name, (found, of) in counted.items() if of]
    return f"Needles found of those that the model finds at all: {', '.join(parts)}." if parts else ""
