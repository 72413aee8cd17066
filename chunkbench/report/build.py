"""Builds the content of a run's report, independent of the format."""

from __future__ import annotations

from collections.abc import Sequence

from chunkbench.bench import workload
from chunkbench.bench.analysis import points
from chunkbench.bench.analysis.derive import Group
from chunkbench.bench.analysis.derive import groups as grouped
from chunkbench.bench.analysis.expectations import outcomes
from chunkbench.bench.experiment.values import show_value
from chunkbench.bench.store import Manifest, Run
from chunkbench.report import printed
from chunkbench.report.columns import columns_of
from chunkbench.report.footer import footer
from chunkbench.report.layout import Report
from chunkbench.report.numbers import count
from chunkbench.report.statuses import probe_lines, status_lines
from chunkbench.report.view import Body, View

_LONGEST_KEY = 18


def build(run: Run) -> Report:
    """The report of a run. The run may be incomplete or empty."""
    manifest = run.manifest
    experiment = manifest.experiment
    rows = printed.rows(run.cases, experiment.baseline, experiment.confidence)
    groups = grouped(rows)
    axes = points.varying([(group.axes, []) for group in groups])
    columns = columns_of(run)
    long_keys = _long_keys(groups, axes)

    def text(axis: str, value: object) -> str:
        return long_keys.get((axis, repr(value))) or show_value(value)

    judged = outcomes(rows, experiment.expect, experiment.confidence)
    view = View(groups, rows, columns, axes, text, experiment.baseline, judged, experiment)
    partial = _partial(manifest, groups)
    layout = workload.get(experiment.kind).layout()
    body = layout.body(view) if groups else Body("", ())
    return Report(
        title=f"{experiment.heading}, on {run.part}" if run.part else experiment.heading,
        warnings=(*partial, *probe_lines(groups, axes, columns)),
        verdict=body.verdict,
        headline=body.headline,
        tables=tuple(table for table in body.tables if table.items),
        statuses=tuple(status_lines(groups, axes, columns, noise=body.compares)),
        legend=(
            *columns.legend(),
            *body.legend,
            *(f"{short} = {_full(axis, groups, value)}" for (axis, value), short in long_keys.items()),
        ),
        footer=tuple(footer(manifest, groups, axes, columns, body.timing)) if groups else (),
        baseline=experiment.baseline,
        columns=columns,
        varying=tuple(axes),
        groups=tuple(groups),
        rows=tuple(rows),
        outcomes=tuple(judged),
        metrics=layout.metrics,
        partial=tuple(partial),
    )


def _long_keys(groups: Sequence[Group], axes: Sequence[str]) -> dict[tuple[str, str], str]:
    """Short names for axis values that are too long for a column (trees); the legend explains them."""
    names: dict[tuple[str, str], str] = {}
    for axis in axes:
        for group in groups:
            value = group.axes.get(axis)
            if len(show_value(value)) > _LONGEST_KEY and (axis, repr(value)) not in names:
                names[axis, repr(value)] = f"{axis} {1 + sum(named == axis for named, _ in names)}"
    return names


def _full(axis: str, groups: Sequence[Group], value: str) -> str:
    return next(show_value(g.axes.get(axis)) for g in groups if repr(g.axes.get(axis)) == value)


def _partial(manifest: Manifest, groups: Sequence[Group]) -> list[str]:
    """A warning if points are missing, with the state of the run."""
    no_axes = ("protocol", "cache", "mode", "machine")
    measured = len({repr([(k, v) for k, v in group.axes.items() if k not in no_axes]) for group in groups})
    planned = manifest.points or measured
    if measured >= planned and not manifest.interrupted:
        return []
    state = (
        "interrupted"
        if manifest.interrupted
        else "ended early"
        if manifest.finished_at
        else "still running, or ended without a record of its end"
    )
    return [f"Partial run ({state}): {measured} of {count(planned, 'point')}; resume it to measure the others."]
