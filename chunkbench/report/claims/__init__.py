"""Every quantitative claim of the source texts, judged by the measured rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chunkbench.bench import workload
from chunkbench.bench.analysis.derive import Row
from chunkbench.report.claims import judges
from chunkbench.report.claims.evidence import Evidence, Judge, RunRows
from chunkbench.report.claims.judgement import Bound, ClaimVerdict
from chunkbench.report.printed import paper_rows

__all__ = ["Basis", "Claim", "ClaimVerdict", "claims", "claims_by_machine", "differing"]


_EXPERIMENT = {"T3": "table3", "ABS": "table3", "F3": "figure3", "F4": "figure4"}
"""First part of a claim's id -> the experiment that measures the claim. Other experiments may measure the same
points."""


Basis = Literal["timed", "counted", "replayed", "arithmetic", "remark"]
"""What a verdict rests on: measured times; counts of a run; a virtual clock; shapes and printed numbers alone. A remark
is ours: a text that disagrees with itself, or a question of our own. Remarks are not counted."""


@dataclass(frozen=True)
class Claim:
    """A statement of a source text, and the verdict on it."""

    id: str
    source: str
    """The text and the place in it."""
    basis: Basis
    read: str
    """Where the stated figure was read: paper, transcription, repository, discussion, notes, or ours."""
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
    experiment: str
    """The experiment that would measure what is missing; empty if none does, or if nothing is missing."""

    @property
    def text(self) -> str:
        """The text that makes the claim."""
        return self.source.partition(" ")[0]

    @property
    def of_machine(self) -> bool:
        """Whether runs of the machine decided the claim, not arithmetic or a virtual clock."""
        return bool(self.rows) and self.basis != "arithmetic" and "replayed" not in (self.basis, self.verdict)

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


def claims(runs: Sequence[Sequence[Row]], everywhere: Sequence[Sequence[Row]] = ()) -> list[Claim]:
    """Every claim of `results/paper/claims.csv`, in the order of the file, judged by the rows of these runs.

    `everywhere`: runs that count for replayed claims alone, because a virtual clock is the same on all machines.
    """
    evidence = Evidence([RunRows(rows) for rows in runs])
    of_all = Evidence([RunRows(rows) for rows in (*everywhere, *runs)])
    stated: Sequence[dict[str, Any]] = paper_rows("claims")
    known: dict[str, Judge] = dict(judges.JUDGES)
    for kind in workload.all_kinds():
        known |= kind.layout().claims
    preferred = {name: evidence.preferring(experiment) for name, experiment in _EXPERIMENT.items()}

    def judged(row: Mapping[str, Any]) -> Claim:
        rows = of_all if row["basis"] == "replayed" else preferred.get(row["id"].split("-")[0], evidence)
        return Claim(**row, **vars(known[row["id"]](rows)))

    return [judged(row) for row in stated]


def claims_by_machine(runs: Sequence[tuple[str, Sequence[Row]]]) -> dict[str, list[Claim]]:
    """Machine -> all claims, judged by the runs of this machine alone; `runs` are pairs (machine, rows).

    Machines whose runs decide only replayed claims are left out if another machine remains.
    """
    rows_of: dict[str, list[Sequence[Row]]] = {}
    for machine, rows in runs:
        rows_of.setdefault(machine, []).append(rows)
    everywhere = [rows for _, rows in runs]
    judged = {machine: claims(own, everywhere) for machine, own in rows_of.items()}
    deciding = {machine: found for machine, found in judged.items() if any(claim.of_machine for claim in found)}
    return deciding or dict([*judged.items()][:1]) or {"": claims([])}
