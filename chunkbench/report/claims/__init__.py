"""Judges all quantitative claims of the source texts by measured rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from chunkbench.bench import workload
from chunkbench.bench.analysis.derive import Row
from chunkbench.report.claims import judges
from chunkbench.report.claims.evidence import Evidence, Judge, RunRows
from chunkbench.report.claims.judgement import Bound, ClaimVerdict
from chunkbench.report.printed import paper_rows

__all__ = ["Basis", "Claim", "ClaimVerdict", "MachineRun", "claims", "claims_by_machine", "differing"]


_EXPERIMENT = {"T3": "table3", "ABS": "table3", "F3": "figure3", "F4": "figure4"}
"""First part of a claim's id -> the preferred experiment. If several experiments measured the same point, the rows of
the preferred one judge the claim."""


Basis = Literal["timed", "counted", "replayed", "arithmetic", "remark"]
"""How a claim is judged. timed: by measured times, or by peaks under load, which depend on them.
counted: by counts of a run. replayed: by times of a virtual clock. arithmetic: from shapes and printed numbers alone.
remark: our own remark or question, which is not counted as a claim of the text."""


class MachineRun(NamedTuple):
    machine: str
    """Label of the machine. Machines of the same kind have the same label."""
    run: str
    rows: RunRows


@dataclass(frozen=True)
class Claim:
    """A statement of a source text, and the verdict on it."""

    id: str
    source: str
    """Name of the source text, then the section or page."""
    basis: Basis
    read: str
    """Where we read the claimed figure: paper, transcription, repository, discussion, notes; ours if we chose the
    figure."""
    statement: str
    quantity: str
    """Short name of the figure that decides the claim."""
    unit: str
    """Unit of the figure. x: a ratio. %: a share, stored as a fraction. Any other text is printed after the figure."""
    verdict: ClaimVerdict
    measured: float | None
    low: float | None
    high: float | None
    paper: str
    """The claimed value of this figure as text, such as "at least 3x"."""
    reason: str
    rows: tuple[str, ...]
    """Keys of the cases that decided the verdict."""
    bound: Bound
    experiment: str
    """If the verdict is `not measured`: the experiment that would measure the claim, if one exists. Else empty."""

    @property
    def text(self) -> str:
        """Name of the source text."""
        return self.source.partition(" ")[0]

    @property
    def of_machine(self) -> bool:
        """Whether measurements on a machine decided the claim. False for arithmetic and for virtual clocks."""
        return bool(self.rows) and self.basis != "arithmetic" and "replayed" not in (self.basis, self.verdict)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "rows": list(self.rows)}


def differing(parts: Sequence[MachineRun]) -> dict[str, dict[str, ClaimVerdict]]:
    """Claim -> run -> verdict. Contains the claims on which two runs of the same machine give different verdicts."""
    found: dict[str, dict[str, ClaimVerdict]] = {}
    for own in _by_machine(parts).values():
        if len(own) == 1:  # there is no other run
            continue
        for same in zip(*(_judged(Evidence([part.rows])) for part in own), strict=True):
            verdicts = {part.run: claim.verdict for part, claim in zip(own, same, strict=True)}
            verdicts = {run: verdict for run, verdict in verdicts.items() if verdict != "not measured"}
            if len(set(verdicts.values())) > 1:
                found.setdefault(same[0].id, {}).update(verdicts)
    return found


def claims(runs: Sequence[Sequence[Row]]) -> list[Claim]:
    """All claims of `results/paper/claims.csv`, in the order of the file, judged by the rows of these runs."""
    return _judged(Evidence([RunRows(rows) for rows in runs]))


def claims_by_machine(parts: Sequence[MachineRun]) -> dict[str, list[Claim]]:
    """Machine -> all claims, judged by the runs of this machine alone.

    Claims with the basis `replayed` are judged by all runs, because a virtual clock is the same on all machines. A
    machine is left out if its measurements decide no claim. If no machine would be left, the first one is kept.
    """
    replayed = {claim.id: claim for claim in _judged(Evidence([part.rows for part in parts]), ("replayed",))}
    judged = {
        machine: _judged(Evidence([part.rows for part in own]), given=replayed)
        for machine, own in _by_machine(parts).items()
    }
    deciding = {machine: found for machine, found in judged.items() if any(claim.of_machine for claim in found)}
    return deciding or dict([*judged.items()][:1]) or {"": claims([])}


def _by_machine(parts: Sequence[MachineRun]) -> dict[str, list[MachineRun]]:
    by_machine: dict[str, list[MachineRun]] = {}
    for part in parts:
        by_machine.setdefault(part.machine, []).append(part)
    return by_machine


def _judged(
    evidence: Evidence, bases: Collection[str] = get_args(Basis), given: Mapping[str, Claim] = MappingProxyType({})
) -> list[Claim]:
    """The claims with one of these bases, in the order of the file; `given`: claims that are judged already, by id."""
    stated: Sequence[dict[str, Any]] = paper_rows("claims")
    known: dict[str, Judge] = dict(judges.JUDGES)
    for kind in workload.all_kinds():
        known |= kind.layout().claims
    preferred = {name: evidence.preferring(experiment) for name, experiment in _EXPERIMENT.items()}

    def judged(row: Mapping[str, Any]) -> Claim:
        judgement = known[row["id"]](preferred.get(row["id"].split("-")[0], evidence))
        return Claim(**row, **vars(judgement))

    return [given.get(row["id"]) or judged(row) for row in stated if row["basis"] in bases]
