"""The latencies of each case over many recorded runs, in time order, and where they changed."""

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
from chunkbench.store import Manifest, Result, Run


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Measurement(_Frozen):
    """One recording of one case."""

    started_at: str
    commit: str | None
    latency_us: float
    calm: bool
    """Whether no other process used the machine's CPUs during the measurement."""


class Change(_Frozen):
    """A new level of latency."""

    index: int
    """The first measurement of the level."""
    started_at: str
    commit: str | None
    ratio: float
    """Latency after the change over latency before."""
    chance: float
    """Probability (p value) that noise alone looks like this change."""


class Across(_Frozen):
    """The last level of a series against the last level on the first machine."""

    machine: int
    ratio: float
    """Raw: the last latency level here over the last level on that machine."""
    machine_low: float | None
    machine_high: float | None
    """The machines' own ratio, least and most. None if no fixed work was timed on both."""
    verdict: Verdict
    """On the ratio without the machines' own ratio."""


class Series(_Frozen):
    """One case on one machine, in time order."""

    name: str
    implementation: str
    label: str
    axes: dict[str, Any]
    machine: int
    """Number of the machine, from 1, in the order of appearance."""
    measurements: tuple[Measurement, ...]
    changes: tuple[Change, ...]
    across: Across | None = None
    """Set if another machine measured the case before."""

    @property
    def levels(self) -> list[float]:
        """[changes + 1] median latencies between the changes, in microseconds."""
        edges = [0, *(change.index for change in self.changes), len(self.measurements)]
        return [median(m.latency_us for m in self.measurements[a:b]) for a, b in itertools.pairwise(edges)]


@dataclass(frozen=True)
class _Recorded:
    """One case in one recording."""

    cases: Sequence[Result]
    """One for each process that measured the case."""
    measurement: Measurement


class _Machine(NamedTuple):
    """A machine with its settings at the time of a measurement."""

    id: str
    manifest: Manifest


def history(recordings: Sequence[Sequence[Run]], threshold: float, confidence: float) -> list[Series]:
    """Series of every measured case. A recording is one run, or several runs of the same in separate processes.

    Levels that differ by more than `threshold` are a change. `confidence` holds for all series together.
    """
    ordered = sorted(recordings, key=lambda runs: str(runs[0].manifest.started_at))
    machines: list[_Machine] = []
    by_case: dict[str, dict[int, list[_Recorded]]] = {}
    for runs in ordered:
        manifest = runs[0].manifest
        measured_here: dict[tuple[str, str], list[Result]] = {}
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
    """The series of one case: first that of the machine that measured it first, then those of other machines."""
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
    measurements = tuple(entry.measurement for entry in recorded)
    points = change_points([math.log(m.latency_us) for m in measurements], alpha, math.log1p(threshold))
    return Series(
        name=name_of(case),
        implementation=case.implementation,
        label=case.label,
        axes={axis: case.axis(axis) for axis in AXES},
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
    first: Series,
    first_recorded: Sequence[_Recorded],
    series: Series,
    recorded: Sequence[_Recorded],
    threshold: float,
) -> Across:
    """The last level of `series` against the last level of `first`, which another machine measured."""
    shift = math.log(series.levels[-1] / first.levels[-1])
    own = own_ratio(_all_cases(first_recorded), _all_cases(recorded))
    return Across(
        machine=first.machine,
        ratio=math.exp(shift),
        machine_low=own.low if own else None,
        machine_high=own.high if own else None,
        verdict=judge(*own.remove_from(shift, shift), threshold) if own else "inconclusive",
    )


def _all_cases(recorded: Sequence[_Recorded]) -> list[Result]:
    return [case for entry in recorded for case in entry.cases]


def _measurement(manifest: Manifest, cases: Sequence[Result]) -> Measurement:
    calm_cases = [case for case in cases if calm(case)]
    latency = median(value for case in calm_cases or cases if (value := value_of([case], "latency")) is not None)
    return Measurement(
        started_at=str(manifest.started_at),
        commit=manifest.git.commit[:12] if manifest.git.commit else None,
        latency_us=latency,
        calm=bool(calm_cases),
    )


def _number(machine: _Machine, known: list[_Machine]) -> int:
    """Number of the machine, from 1, in the order of appearance. With other settings it counts as another machine."""
    for number, other in enumerate(known, start=1):
        changes = differences(other.manifest, machine.manifest)
        if other.id == machine.id and not any(change.machine for change in changes):
            return number
    known.append(machine)
    return len(known)
