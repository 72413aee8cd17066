"""The claims as a document: verdicts in a table, statements and reasons below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import get_args

from chunkbench.report.claims import Claim, ClaimVerdict
from chunkbench.report.claims.judgement import WORDS
from chunkbench.report.model import Cell, Column, Emphasis, Output, Table
from chunkbench.report.numbers import NOTHING, count, ratio, significant

EMPHASIS: dict[ClaimVerdict, Emphasis] = {
    "holds": "best",
    "does not hold": "failed",
    "different here": "noisy",
    "cannot tell": "noisy",
    "replayed": "quiet",
    "not measured": "absent",
}


_COLUMNS: tuple[Column[Claim], ...] = (
    Column("claim", lambda claim: claim.id, align="left"),
    Column("quantity", lambda claim: claim.quantity, align="left"),
    Column("here", lambda claim: measured(claim)),
    Column("paper", lambda claim: Cell(claim.paper, "quiet")),
    Column("verdict", lambda claim: Cell(WORDS[claim.verdict].word, EMPHASIS[claim.verdict]), align="left"),
)


def document(
    claims: Sequence[Claim],
    runs: Sequence[str],
    differing: Mapping[str, Mapping[str, ClaimVerdict]] = MappingProxyType({}),
) -> Output:
    """The document of these claims; `runs` are the names of the runs by which the claims were judged.

    `differing`: claim -> run -> verdict, where single runs differ.
    """
    between = [
        f"{name}: {', '.join(f'{WORDS[verdict].word} in {run}' for run, verdict in verdicts.items())}"
        for name, verdicts in differing.items()
    ]
    return Output(
        title="The paper's claims",
        headline=headline(claims),
        tables=(Table("Verdicts", _COLUMNS, claims),),
        statuses=tuple(map(_status, claims)),
        footer=(
            (
                "judged by",
                ", ".join(runs) or "no run: only claims that follow from shapes and from the paper's own numbers",
            ),
            *([("differs between runs", "; ".join(between))] if between else []),
            ("against", "claims about PagedAttn and PagedAttn* use the faster of this project's kernel and vLLM's"),
        ),
        headings=("Claims and reasons", "Columns", "How they were judged"),
        data=[claim.as_dict() for claim in claims],
    )


def headline(claims: Sequence[Claim]) -> str:
    """The number of claims with each verdict."""
    tally = Counter(claim.verdict for claim in claims)
    parts = [_counted(verdict, tally[verdict]) for verdict in get_args(ClaimVerdict) if tally[verdict]]
    return f"{count(len(claims), 'claim')}: {', '.join(parts)}."


def _status(claim: Claim) -> str:
    return f"{claim.id} ({claim.source}): {claim.statement}. {WORDS[claim.verdict].sentence}: {claim.reason}."


def _counted(verdict: ClaimVerdict, number: int) -> str:
    words = WORDS[verdict]
    return f"{number} {words.word if number == 1 else words.several}"


def measured(claim: Claim) -> str:
    """The measured figure with its unit and, if it has one, its interval."""
    figures = [figure for figure in (claim.low, claim.high) if figure is not None]
    if claim.measured is None and not figures:
        return NOTHING
    unit = claim.unit if claim.unit in ("x", "%") else f" {claim.unit}"
    low, high = (_figure(figure, claim.unit) for figure in (claim.low or 0.0, claim.high or 0.0))
    if claim.measured is None:
        return f"{low} to {high}{unit}"
    text = f"{claim.bound} {_figure(claim.measured, claim.unit)}{unit}".lstrip()
    return text if not figures or claim.low == claim.high else f"{text} ({low} to {high})"


def _figure(value: float, unit: str) -> str:
    """A figure without its unit, with as many digits as the unit needs."""
    if unit == "x":
        return ratio(value)
    if unit == "%":
        return f"{100 * value:.0f}" if abs(value) >= 0.0995 else f"{100 * value:.1f}"
    return f"{value:,.0f}" if value == round(value) or value >= 1000 else significant(value, 3)
