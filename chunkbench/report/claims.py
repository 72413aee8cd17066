"""The ledger of claims as a document: verdicts in a table, statements and reasons below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, get_args

from chunkbench.paper.claims import Claim, Verdict
from chunkbench.report.model import Cell, Column, Document, Emphasis, Table
from chunkbench.report.numbers import NOTHING, count, significant

EMPHASIS: dict[Verdict, Emphasis] = {
    "holds": "best",
    "does not hold": "failed",
    "different here": "noisy",
    "needs a GPU": "absent",
    "not measured": "absent",
}


class Ledger(Document):
    """Claims with their verdicts."""

    HEADINGS: ClassVar[tuple[str, str, str]] = ("Claims and reasons", "Columns", "How they were judged")


def document(found: Sequence[Claim], runs: Sequence[str]) -> Ledger:
    """`runs` names what the claims were judged by."""
    columns = (
        Column("claim", ("claim",), "left"),
        Column("source", ("source",), "left"),
        Column("verdict", ("verdict",), "left"),
        Column("measured", ("measured",)),
        Column("paper", ("paper",)),
    )
    rows = tuple(
        (
            Cell(one.id),
            Cell(one.source),
            Cell(one.verdict, EMPHASIS[one.verdict]),
            Cell(measured(one)),
            Cell(one.paper, "quiet"),
        )
        for one in found
    )
    return Ledger(
        title="The paper's claims",
        warnings=(),
        losses="",
        headline=headline(found),
        tables=(Table("Verdicts", columns, rows, keys=1),),
        statuses=tuple(f"{one.id}: {one.statement}. It {_said(one.verdict)}: {one.reason}." for one in found),
        legend=(),
        footer=(
            ("judged by", ", ".join(runs) or "no run: only what follows from shapes and from the paper's own numbers"),
            ("against", "claims about PagedAttn and PagedAttn* are judged against the faster of ours and vLLM's"),
        ),
    )


def headline(found: Sequence[Claim]) -> str:
    """How many claims have which verdict."""
    tally = Counter(one.verdict for one in found)
    parts = [_counted(verdict, tally[verdict]) for verdict in get_args(Verdict) if tally[verdict]]
    return f"{count(len(found), 'claim')}: {', '.join(parts)}."


def _said(verdict: Verdict) -> str:
    return {"different here": "is different here", "not measured": "was not measured"}.get(verdict, verdict)


def _counted(verdict: Verdict, number: int) -> str:
    several = {"holds": "hold", "does not hold": "do not hold", "needs a GPU": "need a GPU"}
    return f"{number} {verdict if number == 1 else several.get(verdict, verdict)}"


def measured(claim: Claim) -> str:
    """The figure and, where it has one, its interval."""
    if claim.measured is None:
        return NOTHING
    text = significant(claim.measured, 3)
    if claim.low is None or claim.high is None or claim.low == claim.high:
        return text
    return f"{text} ({significant(claim.low, 3)} to {significant(claim.high, 3)})"
