"""Follows a figure of each case over many recorded runs, in time order, and finds the changes of the figure."""

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
    """One entry of a series: the figure of one run, or of the processes that measured the experiment together."""

    started_at: str
    commit: str | None
    value: float
    """The figure, in the unit of the series."""
    latency_us: float | None
    """The same value if the figure is the latency; else None."""
    undisturbed: bool
    """Whether no other process used the machine's CPUs during the measurement."""


class Change(_Frozen):
    """The start of a new level of a series."""

    index: int
    """Index of the first entry of the level."""
    started_at: str
    commit: str | None
    ratio: float
    """The level after the change divided by the level before."""
    chance: float
    """p value: the probability that noise alone looks like this change."""


class Series(_Frozen):
    """The figure of one case on one machine, in time order."""

    name: str
    implementation: str
    label: str
    axes: dict[str, Any]
    metric: str
    unit: str
    """Unit of the values."""
    machine: int
    """Number of the machine, from 1, in the order of appearance."""
    measurements: tuple[HistoryEntry, ...]
    changes: tuple[Change, ...]

    @property
    def levels(self) -> list[float]:
        """The median of each level: one more than there are changes, in the figure's unit."""
        edges = [0, *(change.index for change in self.changes), len(self.measurements)]
        return [median(m.value for m in self.measurements[a:b]) for a, b in itertools.pairwise(edges)]


class _Machine(NamedTuple):
    """A machine with its settings at the time of a measurement."""

    id: str
    manifest: Manifest


def history(recordings: Sequence[Sequence[Run]], name: str, threshold: float, confidence: float) -> list[Series]:
    """Series of every case that has the figure `name`; kinds of work without this figure are left out. An entry is one
    run, or several runs that measured the same experiment in separate processes.

    A change is a difference of two levels by more than `threshold`. `confidence` holds for all series together.
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
