"""Shows a history as a table and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chunkbench.bench.analysis.points import describe, varying
from chunkbench.bench.experiment.values import show_value
from chunkbench.report.compare.history import Series
from chunkbench.report.compare.metrics import LATENCY
from chunkbench.report.compare.ratios import sign_of
from chunkbench.report.metric import Metric
from chunkbench.report.model import Cell, Column, Output, Table
from chunkbench.report.numbers import NOTHING, count, significant

_MOST_LINES = 8
"""Largest number of lines in one panel. With more lines, a reader cannot distinguish them."""


def document(all_series: Sequence[Series], metric: Metric, threshold: float, confidence: float) -> Output:
    """Show a history as a table, the changed cases first."""
    ordered = sorted(all_series, key=lambda series: (not series.changes, series.implementation, series.name))
    axes = varying([(series.axes, []) for series in ordered])
    many_machines = len({series.machine for series in ordered}) > 1

    def axis_column(axis: str) -> Column[Series]:
        return Column(axis, lambda series: show_value(series.axes.get(axis)), align="left")

    unit = metric.unit.word

    def level(which: str, place: int) -> Column[Series]:
        name = f"{which} level ({unit})" if unit else f"{which} level"
        return Column(name, lambda series: significant(series.levels[place]), (which, f"level {unit}".strip()))

    machine: Column[Series] = Column("machine", lambda series: str(series.machine), align="left")
    columns: tuple[Column[Series], ...] = (
        Column("implementation", lambda series: series.implementation, align="left"),
        *map(axis_column, axes),
        *([machine] if many_machines else []),
        Column("runs", lambda series: str(len(series.measurements))),
        level("first", 0),
        level("last", -1),
        Column("changes", lambda series: _changes(series, metric), align="left"),
    )
    changed = sum(bool(series.changes) for series in ordered)
    return Output(
        title=f"History of {count(len(ordered), 'case')}{'' if metric is LATENCY else f', {metric.name}'}",
        verdict=f"{count(changed, 'case')} changed." if changed else "No change found.",
        tables=(Table("Cases, changed ones first", columns, ordered, keys=1 + len(axes)),),
        legend=(
            f"changes: levels that differ by more than {threshold:.1%}: binary segmentation, tested by permutation, at "
            f"{confidence:.1%} confidence for all cases together; a level has at least three runs",
        ),
        data=[series.model_dump(mode="json") for series in all_series],
    )


def _changes(series: Series, metric: Metric) -> Cell:
    text = ", ".join(f"{c.ratio:.3f}x at {c.commit or c.started_at}" for c in series.changes) or NOTHING
    worse = any(sign_of(metric) * (change.ratio - 1) > 0 for change in series.changes)
    return Cell(text, "failed" if worse else "best" if series.changes else "plain")


def draw(all_series: Sequence[Series], metric: Metric, folder: Path) -> list[Path]:
    """Write `history.png` and `history.svg`. Each implementation has a panel, with values divided by the first
    level."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from chunkbench.report.figures.style import PALETTE, plain, styled

    names = list(dict.fromkeys(series.implementation for series in all_series))
    axes_names = varying([(series.axes, []) for series in all_series])
    with styled():
        figure = Figure(figsize=(7.0, 0.6 + 2.2 * len(names)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
        for panel, name in zip(panels, names, strict=True):
            members = [series for series in all_series if series.implementation == name]
            members.sort(key=lambda series: (not series.changes, series.name))
            for (colour, marker), series in zip(PALETTE * 2, members[:_MOST_LINES], strict=False):
                label = plain(describe(series.axes, axes_names) or series.label)
                values = [m.value / (series.levels[0] or 1.0) for m in series.measurements]
                panel.plot(range(1, len(values) + 1), values, color=colour, marker=marker, markersize=4, label=label)
                for change in series.changes:
                    panel.axvline(change.index + 0.5, color=colour, linewidth=0.8, linestyle=(0, (4, 2)))
                    panel.annotate(
                        f"{change.ratio:.2f}x {plain(change.commit or '')}".strip(),
                        (change.index + 0.5, 1.0),
                        xycoords=("data", "axes fraction"),
                        xytext=(2, -2),
                        textcoords="offset points",
                        fontsize=7,
                        va="top",
                        color=colour,
                    )
            more = f" (first {_MOST_LINES} of {len(members)})" if len(members) > _MOST_LINES else ""
            panel.set_title(f"{plain(members[0].label)}{more}", loc="left", fontsize=9)
            panel.set_ylabel(plain(f"{metric.name} / first level"))
            panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
            panel.xaxis.get_major_locator().set_params(integer=True)
        panels[-1].set_xlabel("run, in the order of time")
        paths = [folder / "history.png", folder / "history.svg"]
        figure.savefig(paths[0], dpi=160, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None, "Creator": "ChunkBench"})
    return paths
