"""Every quantitative claim of the source texts, judged by the measured rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chunkbench.bench import workload
from chunkbench.bench.analysis.derive import Row
from chunkbench.report.claims import judges
from chunkbench.report.claims.evidence import Evidence, Judge, RunRows
from chunkbench.report.claims.judgement import Bound, ClaimVerdict
from chunkbench.report.printed import paper_rows

__all__ = ["Claim", "ClaimVerdict", "claims", "differing"]


_EXPERIMENT = {"T3": "table3", "ABS": "table3", "F3": "figure3", "F4": "figure4"}
"""First part of a claim's id -> the experiment that measures the claim. Other experiments may measure the same
points."""


@dataclass(frozen=True)
class Claim:
    """A statement of a source text, and the verdict on it."""

    id: str
    source: str
    statement: str
    quantity: str
    """A short name of the figure that decides the claim."""
    unit: str
    """The unit of the figure. x: a ratio; %: a share, stored as a fraction; any other word follows the figure."""
    verdict: ClaimVerdict
    measured: float | None
    low: float | None
    high: float | None
    paper: str
    """The text's statement about this figure, with unit and direction."""
    reason: str
    rows: tuple[str, ...]
    """Keys of the cases that the verdict rests on."""
    bound: Bound

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "rows": list(self.rows)}


def differing(runs: Mapping[str, Sequence[Row]]) -> dict[str, dict[str, ClaimVerdict]]:
    """Claim -> run -> verdict, for the claims whose verdict differs between single runs of one machine."""
    by_machine: dict[str, list[str]] = {}
    for name, rows in runs.items():
        machines = {row.facts.machine for row in rows}
        if len(machines) == 1:
            by_machine.setdefault(machines.pop(), []).append(name)
    found: dict[str, dict[str, ClaimVerdict]] = {}
    for names in by_machine.values():
        if len(names) == 1:  # there is no other run
            continue
        for same in zip(*(claims([runs[name]]) for name in names), strict=True):
            verdicts = {name: claim.verdict for name, claim in zip(names, same, strict=True)}
            verdicts = {name: verdict for name, verdict in verdicts.items() if verdict != "not measured"}
            if len(set(verdicts.values())) > 1:
                found[same[0].id] = verdicts
    return found


def claims(runs: Sequence[Sequence[Row]]) -> list[Claim]:
    """Every claim of `results/paper/claims.csv`, in the order of the file, judged by the rows of these runs."""
    evidence = Evidence([RunRows(rows) for rows in runs])
    stated: Sequence[dict[str, Any]] = paper_rows("claims")
    known: dict[str, Judge] = dict(judges.JUDGES)
    for kind in workload.all_kinds():
        known |= kind.layout().claims
    preferred = {name: evidence.preferring(experiment) for name, experiment in _EXPERIMENT.items()}
    return [Claim(**row, **vars(known[row["id"]](preferred.get(row["id"].split("-")[0], evidence)))) for row in stated]
