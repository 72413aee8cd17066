"""Run -> Report: what there is to say about a run, before any format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from chunkbench.analysis import points
from chunkbench.analysis.derive import Row, derive
from chunkbench.analysis.expectations import outcomes
from chunkbench.report import columns, decode, memory, modules
from chunkbench.report.footer import footer
from chunkbench.report.model import Group, Report
from chunkbench.report.numbers import count
from chunkbench.report.statuses import probe_lines, status_lines
from chunkbench.report.view import Told, View
from chunkbench.store.facts import CaseFacts

_LONGEST_KEY = 18
_TOLD: Mapping[str, Callable[[View], Told]] = {"decode": decode.told, "memory": memory.told, "modules": modules.told}


class RunLike(Protocol):
    """What a report needs of a run."""

    @property
    def manifest(self) -> Mapping[str, Any]: ...

    @property
    def cases(self) -> Sequence[CaseFacts]: ...


def build(run: RunLike) -> Report:
    """Everything that can be said about a run, complete or not, even without a single case."""
    manifest, cases = run.manifest, run.cases
    experiment: Mapping[str, Any] = manifest.get("experiment") or {}
    baseline = experiment.get("baseline") or columns.CHUNK_ATTN
    confidence = experiment.get("confidence") or 0.95
    rows = derive(cases, baseline, confidence)
    groups = _groups(cases, rows)
    axes = points.varying([(group.axes, []) for group in groups])
    implementations = columns.ordered([*experiment.get("implementations", ()), *(c.implementation for c in cases)])
    labels = {case.implementation: case.label for case in cases}
    implementations = [implementation for implementation in implementations if implementation in labels]
    name = experiment.get("title") or experiment.get("name") or "ChunkBench run"
    long_keys = _long_keys(groups, axes)

    def text(axis: str, value: object) -> str:
        return long_keys.get((axis, repr(value))) or points.show(value)

    judged = outcomes(rows, experiment.get("expect") or (), confidence)
    view = View(groups, rows, implementations, labels, axes, text, baseline, judged, experiment)
    told = _TOLD[experiment.get("kind") or "decode"](view) if groups else Told("", ())
    rows_by_implementation = {row.facts.implementation: row for row in rows}
    return Report(
        title=name,
        warnings=tuple(_partial(manifest, groups)) + tuple(probe_lines(groups, axes)),
        losses=told.losses,
        headline=told.headline,
        tables=tuple(table for table in told.tables if table.rows),
        statuses=tuple(status_lines(groups, implementations, axes)),
        legend=(
            *columns.legend(implementations, rows_by_implementation),
            *told.legend,
            *(f"{short} = {_full(axis, groups, value)}" for (axis, value), short in long_keys.items()),
        ),
        footer=tuple(footer(manifest, groups, axes)) if groups else (),
        baseline=baseline,
        varying=tuple(axes),
        groups=tuple(groups),
        rows=tuple(rows),
        outcomes=tuple(judged),
    )


def _groups(cases: Sequence[CaseFacts], rows: Sequence[Row]) -> list[Group]:
    row_of = {id(row.facts): row for row in rows}
    return [
        Group(axes, {case.implementation: row_of[id(case)] for case in members})
        for axes, members in points.group(cases)
    ]


def _long_keys(groups: Sequence[Group], axes: Sequence[str]) -> dict[tuple[str, str], str]:
    """Short names for values of axes that would not fit a column (trees), explained in the legend."""
    found: dict[tuple[str, str], str] = {}
    for axis in axes:
        for group in groups:
            value = group.axes.get(axis)
            if len(points.show(value)) > _LONGEST_KEY and (axis, repr(value)) not in found:
                found[axis, repr(value)] = f"{axis} {1 + sum(known == axis for known, _ in found)}"
    return found


def _full(axis: str, groups: Sequence[Group], value: str) -> str:
    return next(points.show(g.axes.get(axis)) for g in groups if repr(g.axes.get(axis)) == value)


def _partial(manifest: Mapping[str, Any], groups: Sequence[Group]) -> list[str]:
    """Whether points are missing, and why as far as it is known."""
    apart = ("protocol", "cache", "mode")
    measured = len({repr([(k, v) for k, v in group.axes.items() if k not in apart]) for group in groups})
    planned = manifest.get("points") or measured
    if measured >= planned and not manifest.get("interrupted"):
        return []
    how = (
        "interrupted"
        if manifest.get("interrupted")
        else "ended early"
        if manifest.get("finished_at")
        else "still running, or ended without saying so"
    )
    return [
        f"Partial run ({how}): {measured} of {count(planned, 'point')}; `chunkbench run ... --resume` goes on with it."
    ]
