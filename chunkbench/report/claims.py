"""The claims as a document: verdicts in a table, statements and reasons below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, get_args

from chunkbench.paper.claims import Claim, ClaimVerdict
from chunkbench.report.model import Cell, Column, Document, Emphasis, Table
from chunkbench.report.numbers import NOTHING, count, significant

EMPHASIS: dict[ClaimVerdict, Emphasis] = {
    "holds": "best",
    "does not hold": "failed",
    "different here": "noisy",
    "generated": "quiet",
    "not measured": "absent",
}


class ClaimsDocument(Document):
    """Claims with their verdicts."""

    HEADINGS: ClassVar[tuple[str, str, str]] = ("Claims and reasons", "Columns", "How they were judged")


def document(claims: Sequence[Claim], runs: Sequence[str]) -> ClaimsDocument:
    """The document of these claims; `runs` are the names of the runs that they were judged by."""
    columns = (
        Column("claim", ("claim",), "left"),
        Column("source", ("source",), "left"),
        Column("verdict", ("verdict",), "left"),
        Column("measured", ("measured",)),
        Column("paper", ("paper",)),
    )
    rows = tuple(
        (
            Cell(claim.id),
            Cell(claim.source),
            Cell(claim.verdict, EMPHASIS[claim.verdict]),
            Cell(measured(claim)),
            Cell(claim.paper, "quiet"),
        )
        for claim in claims
    )
    return ClaimsDocument(
        title="The paper's claims",
        warnings=(),
        losses="",
        headline=headline(claims),
        tables=(Table("Verdicts", columns, rows, keys=1),),
        statuses=tuple(map(_status, claims)),
        legend=(),
        footer=(
            ("judged by", ", ".join(runs) or "no run: only what follows from shapes and from the paper's own numbers"),
            ("against", "claims about PagedAttn and PagedAttn* use the faster of this project's kernel and vLLM's"),
        ),
    )


def headline(claims: Sequence[Claim]) -> str:
    """The number of claims with each verdict."""
    tally = Counter(claim.verdict for claim in claims)
    parts = [_counted(verdict, tally[verdict]) for verdict in get_args(ClaimVerdict) if tally[verdict]]
    return f"{count(len(claims), 'claim')}: {', '.join(parts)}."


def _status(claim: Claim) -> str:
    verbs = {"different here": "is different here", "generated": "was generated", "not measured": "was not measured"}
    return f"{claim.id}: {claim.statement}. It {verbs.get(claim.verdict, claim.verdict)}: {claim.reason}."


def _counted(verdict: ClaimVerdict, number: int) -> str:
    plural = {"holds": "hold", "does not hold": "do not hold"}
    return f"{number} {verdict if number == 1 else plural.get(verdict, verdict)}"


def measured(claim: Claim) -> str:
    """The measured figure and, if it has one, its interval."""
    if claim.measured is None:
        return NOTHING
    text = significant(claim.measured, 3)
    if claim.low is None or claim.high is None or claim.low == claim.high:
        return text
    return f"{text} ({significant(claim.low, 3)} to {significant(claim.high, 3)})"
