"""A case over many recorded runs: its latencies in the order of time, and where they changed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from chunkbench.analysis.points import AXES, measured
from chunkbench.regression.case_verdicts import name_of
from chunkbench.regression.change_points import change_points
from chunkbench.regression.environments import differences
from chunkbench.regression.matching import calm
from chunkbench.regression.own_ratio import own_ratio
from chunkbench.regression.time_ratios import value_of
from chunkbench.regression.verdicts import Verdict, judge
from chunkbench.store import CaseFacts, Manifest, Run


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


class Across(_Frozen):
    """The level of a series beside that of the first machine's."""

    machine: int
    ratio: float
    """Last latency level here over that of the other machine: raw."""
    machine_low: float | None
    machine_high: float | None
    """By how much the machines themselves differ; None where no fixed work was timed on both."""
    verdict: Verdict
    """On what this leaves of the ratio."""


class Series(_Frozen):
    """One case on one machine, in the order of time."""

    name: str
    implementation: str
    label: str
    axes: dict[str, Any]
    machine: int
    """Counted from 1 in the order in which machines appear."""
    measurements: tuple[Measurement, ...]
    changes: tuple[Change, ...]
    across: Across | None = None
    """Where another machine measured the case before."""

    @property
    def levels(self) -> list[float]:
        """[changes + 1] latencies between changes, in microseconds: medians."""
        edges = [0, *(change.index for change in self.changes), len(self.measurements)]
        return [median(one.latency_us for one in self.measurements[a:b]) for a, b in itertools.pairwise(edges)]


@dataclass(frozen=True)
class _Recorded:
    """What one recording holds of one case."""

    cases: Sequence[CaseFacts]
    """One for each process that measured it."""
    measurement: Measurement


class _Machine(NamedTuple):
    """A machine as it was set when it measured."""

    id: str
    manifest: Manifest


def history(recordings: Sequence[Sequence[Run]], threshold: float, confidence: float) -> list[Series]:
    """Series of every case that was measured, each recording being one run or several processes of one.

    A change is told where the levels differ by more than `threshold`, at `confidence` for all series together.
    """
    ordered = sorted(recordings, key=lambda runs: str(runs[0].manifest.started_at))
    machines: list[_Machine] = []
    by_case: dict[str, dict[int, list[_Recorded]]] = {}
    for runs in ordered:
        manifest = runs[0].manifest
        measured_here: dict[tuple[str, str], list[CaseFacts]] = {}
        for run in runs:
            for case in run.cases:
                if measured(case):
                    measured_here.setdefault((case.key, case.machine), []).append(case)
        for (key, machine), cases in measured_here.items():
            number = _number(_Machine(machine, manifest), machines)
            recorded = _Recorded(cases, _measurement(manifest, cases))
            by_case.setdefault(key, {}).setdefault(number, []).append(recorded)
    alpha = (1 - confidence) / max(1, sum(map(len, by_case.values())))
    return [series for by_machine in by_case.values() for series in _of_case(by_machine, alpha, threshold)]


def _of_case(by_machine: Mapping[int, Sequence[_Recorded]], alpha: float, threshold: float) -> Iterator[Series]:
    """The series of one case, that of the machine that measured it first before those beside it."""
    first: Series | None = None
    for number, recorded in by_machine.items():
        series = _series(number, recorded, alpha, threshold)
        if first is None:
            first = series
            yield series
        else:
            across = _across(first, by_machine[first.machine], series, recorded, threshold)
            yield series.model_copy(update={"across": across})


def _series(machine: int, recorded: Sequence[_Recorded], alpha: float, threshold: float) -> Series:
    case = recorded[0].cases[0]
    measurements = tuple(one.measurement for one in recorded)
    points = change_points([math.log(one.latency_us) for one in measurements], alpha, math.log1p(threshold))
    return Series(
        name=name_of(case),
        implementation=case.implementation,
        label=case.label,
        axes={axis: getattr(case, axis) for axis in AXES},
        machine=machine,
        measurements=measurements,
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


def _across(
    first: Series, ours: Sequence[_Recorded], series: Series, theirs: Sequence[_Recorded], threshold: float
) -> Across:
    """The last level of `series` beside that of `first`, which another machine measured."""
    shift = math.log(series.levels[-1] / first.levels[-1])
    own = own_ratio(*([case for one in recorded for case in one.cases] for recorded in (ours, theirs)))
    return Across(
        machine=first.machine,
        ratio=math.exp(shift),
        machine_low=own.low if own else None,
        machine_high=own.high if own else None,
        verdict=judge(*own.left(shift, shift), threshold) if own else "inconclusive",
    )


def _measurement(manifest: Manifest, cases: Sequence[CaseFacts]) -> Measurement:
    quiet = [case for case in cases if calm(case)]
    latency = median(value for case in quiet or cases if (value := value_of([case], "latency")) is not None)
    return Measurement(
        started_at=str(manifest.started_at),
        commit=manifest.git.commit[:12] if manifest.git.commit else None,
        latency_us=latency,
        calm=bool(quiet),
    )


def _number(machine: _Machine, known: list[_Machine]) -> int:
    """Counted from 1 in the order in which machines appear. One that is set otherwise counts as another."""
    for number, other in enumerate(known, start=1):
        settings = differences(other.manifest, machine.manifest)
        if other.id == machine.id and not any(difference.machine for difference in settings):
            return number
    known.append(machine)
    return len(known)
