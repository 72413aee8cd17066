"""A case over many recorded runs: its latencies in the order of time, and where they changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import BaseModel, ConfigDict

from chunkbench.analysis.alike import calm
from chunkbench.analysis.changepoints import change_points
from chunkbench.analysis.environments import differences
from chunkbench.analysis.judging import name_of
from chunkbench.analysis.points import AXES, measured
from chunkbench.analysis.timing import value_of

if TYPE_CHECKING:
    from chunkbench.store.facts import CaseFacts


class RunLike(Protocol):
    """What a history needs of a run."""

    @property
    def manifest(self) -> Mapping[str, Any]: ...

    @property
    def cases(self) -> Sequence[CaseFacts]: ...


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Measurement(_Frozen):
    """One recording of one case."""

    started_at: str
    commit: str | None
    latency_us: float
    calm: bool
    """Whether nobody else used the machine's CPUs meanwhile."""


class Change(_Frozen):
    """A level that begins with a measurement."""

    index: int
    started_at: str
    commit: str | None
    ratio: float
    """Latency after over latency before."""
    chance: float


class Series(_Frozen):
    """One case on one machine, in the order of time."""

    name: str
    implementation: str
    label: str
    axes: dict[str, Any]
    machine: int
    """Counted from 1 in the order in which machines appear: times of different ones are not set beside each other."""
    measurements: tuple[Measurement, ...]
    changes: tuple[Change, ...]


def history(recordings: Sequence[Sequence[RunLike]], threshold: float, confidence: float) -> list[Series]:
    """Series of every case that was measured, each recording being one run or several processes of one.

    A change is told where the levels differ by more than `threshold`, at `confidence` for all series together.
    """
    ordered = sorted(recordings, key=lambda runs: str(runs[0].manifest.get("started_at")))
    machines: list[Mapping[str, Any]] = []
    found: dict[tuple[str, int], list[tuple[CaseFacts, Measurement]]] = {}
    for runs in ordered:
        machine = _machine(runs[0].manifest, machines)
        by_key: dict[str, list[CaseFacts]] = {}
        for run in runs:
            for case in run.cases:
                if measured(case):
                    by_key.setdefault(case.key, []).append(case)
        for key, cases in by_key.items():
            found.setdefault((key, machine), []).append((cases[0], _measurement(runs[0].manifest, cases)))
    alpha = (1 - confidence) / max(1, len(found))
    return [_series(machine, several, alpha, threshold) for (_, machine), several in found.items()]


def _series(machine: int, several: Sequence[tuple[CaseFacts, Measurement]], alpha: float, threshold: float) -> Series:
    case = several[0][0]
    measurements = [measurement for _, measurement in several]
    points = change_points([math.log(one.latency_us) for one in measurements], alpha, math.log1p(threshold))
    return Series(
        name=name_of(case),
        implementation=case.implementation,
        label=case.label,
        axes={axis: getattr(case, axis) for axis in AXES},
        machine=machine,
        measurements=tuple(measurements),
        changes=tuple(
            Change(
                index=point.place,
                started_at=measurements[point.place].started_at,
                commit=measurements[point.place].commit,
                ratio=math.exp(point.shift),
                chance=point.chance,
            )
            for point in points
        ),
    )


def _measurement(manifest: Mapping[str, Any], cases: Sequence[CaseFacts]) -> Measurement:
    quiet = [case for case in cases if calm(case)]
    latency = median(value for case in quiet or cases if (value := value_of([case], "latency")) is not None)
    commit = (manifest.get("git") or {}).get("commit")
    return Measurement(
        started_at=str(manifest.get("started_at")),
        commit=commit[:12] if commit else None,
        latency_us=latency,
        calm=bool(quiet),
    )


def _machine(manifest: Mapping[str, Any], known: list[Mapping[str, Any]]) -> int:
    for number, other in enumerate(known, start=1):
        if not any(one.machine for one in differences(other, manifest)):
            return number
    known.append(manifest)
    return len(known)
