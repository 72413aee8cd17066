"""Follows a figure of each case over many recorded runs, and finds where it changed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from chunkbench.bench.analysis.points import AXES
from chunkbench.bench.store import Manifest, Result, Run
from chunkbench.report.compare.case_verdicts import name_of
from chunkbench.report.compare.change_points import change_points
from chunkbench.report.compare.environments import differences
from chunkbench.report.compare.metrics import LATENCY, has, metrics_of
from chunkbench.report.compare.ratios import undisturbed, value_of
from chunkbench.report.metric import Metric


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HistoryEntry(_Frozen):
    """One value of a series. It comes from one run, or from several runs that measured the experiment together."""

    started_at: str
    commit: str | None
    value: float
    """The figure, in the unit of the series."""
    latency_us: float | None
    """Equal to `value` if the figure is the latency; else None."""
    undisturbed: bool
    """Whether no other process used the machine's CPUs during the measurement."""


class Change(_Frozen):
    """The start of a new level in a series."""

    index: int
    """Index of the first entry of the new level."""
    started_at: str
    commit: str | None
    ratio: float
    """The new level divided by the level before."""
    chance: float
    """p value: the probability that noise alone looks like this change."""


class Series(_Frozen):
    """The values of one figure for one case on one machine, in time order."""

    name: str
    implementation: str
    label: str
    axes: dict[str, Any]
    metric: str
    unit: str
    machine: int
    """Number of the machine: 1 for the machine of the oldest run, 2 for the next one."""
    measurements: tuple[HistoryEntry, ...]
    changes: tuple[Change, ...]

    @property
    def levels(self) -> list[float]:
        """The median of each level, from the oldest to the newest."""
        edges = [0, *(change.index for change in self.changes), len(self.measurements)]
        return [median(m.value for m in self.measurements[a:b]) for a, b in itertools.pairwise(edges)]


class _Machine(NamedTuple):
    """A machine with its settings at the time of a measurement."""

    id: str
    manifest: Manifest


def history(recordings: Sequence[Sequence[Run]], name: str, threshold: float, confidence: float) -> list[Series]:
    """Make a series for every case that has the figure `name`.

    Each item of `recordings` is one run, or several runs of the same experiment in separate processes. An item gives
    one entry of a series. `threshold`: smallest difference between two levels, as a fraction. The series share the
    error probability 1 - `confidence` equally.
    """
    ordered = sorted(recordings, key=lambda runs: str(runs[0].manifest.started_at))
    machines: list[_Machine] = []
    by_case: dict[tuple[str, int], tuple[Result, Metric, list[HistoryEntry]]] = {}
    for runs in ordered:
        manifest = runs[0].manifest
        metric = metrics_of(manifest.experiment.kind).get(name)
        if metric is None:
            continue
        measured_here: dict[tuple[str, str], list[Result]] = {}
        for run in runs:
            for case in run.cases:
                if has(case, metric):
                    measured_here.setdefault((case.key, case.machine), []).append(case)
        for (key, machine), cases in measured_here.items():
            number = _number(_Machine(machine, manifest), machines)
            *_, entries = by_case.setdefault((key, number), (cases[0], metric, []))
            entries.append(_measurement(manifest, cases, metric))
    alpha = (1 - confidence) / max(1, len(by_case))
    return [_series(machine, *of_case, alpha, threshold) for (_, machine), of_case in by_case.items()]


def _series(
    machine: int, case: Result, metric: Metric, measurements: Sequence[HistoryEntry], alpha: float, threshold: float
) -> Series:
    values = [measurement.value for measurement in measurements]
    logs = [math.log(value) for value in values] if min(values) > 0 else []  # without a ratio there is no change
    points = change_points(logs, alpha, math.log1p(threshold)) if logs else ()
    return Series(
        name=name_of(case),
        implementation=case.implementation,
        label=case.label,
        axes={axis: case.axis(axis) for axis in AXES},
        metric=metric.name,
        unit=metric.unit.word,
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


def _measurement(manifest: Manifest, cases: Sequence[Result], metric: Metric) -> HistoryEntry:
    alone = [case for case in cases if undisturbed(case)]
    figure = median(value for case in alone or cases if (value := value_of([case], metric)) is not None)
    return HistoryEntry(
        started_at=str(manifest.started_at),
        commit=manifest.git.commit[:12] if manifest.git.commit else None,
        value=figure,
        latency_us=figure if metric is LATENCY else None,
        undisturbed=bool(alone),
    )


def _number(machine: _Machine, known: list[_Machine]) -> int:
    """Number of the machine, from 1, in the order of appearance. A machine with other settings counts as another
    machine."""
    for number, other in enumerate(known, start=1):
        changes = differences(other.manifest, machine.manifest)
        if other.id == machine.id and not any(change.machine for change in changes):
            return number
    known.append(machine)
    return len(known)
