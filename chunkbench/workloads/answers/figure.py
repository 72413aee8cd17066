"""Figure of answers: needles found and next tokens that are equal, over the length of the context or the window."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chunkbench.report.figures.style import (
    axis_label,
    by_values,
    caption,
    conditions,
    handle,
    panel_title,
    sheet,
    ticks_at,
)
from chunkbench.report.report import Report
from chunkbench.store import Manifest
from chunkbench.workloads.answers.numbers import AnswersNumbers, answers_numbers

_FIGURES: tuple[tuple[str, Callable[[AnswersNumbers], float | None]], ...] = (
    ("needles found, %", lambda numbers: None if numbers.share is None else 100 * numbers.share),
    ("next tokens, % equal", lambda numbers: 100 * numbers.agreement),
)


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """Two panels over the length of contexts for each window, and over the window for each length; None if neither
    varies."""
    tried = [group for group in report.groups if any(answers_numbers(row) for row in group.rows.values())]
    blocks = []
    for axis in ("n_p", "window"):
        others = [name for name in report.varying if name != axis]
        drawn = by_values([group for group in tried if group.axes.get(axis) is not None], others)
        blocks += [(axis, title, groups) for title, groups in drawn.items() if len(groups) > 1]
    if not blocks:
        return None
    columns = report.columns
    handles = [handle(columns.line_style(name), columns.name(name)) for name in columns.ids]
    parts = [
        "Needles: of those that the model finds where all heads keep everything; next tokens: as that model's",
        conditions(report, manifest, timed=False),
    ]
    page = sheet(caption(parts, report), handles, 2 * len(blocks), across=2, share_y=False)
    plots = iter(page.panels)
    for axis, title, groups in blocks:
        for label, value in _FIGURES:
            plot = next(plots)
            for name in columns.ids:
                rows = [(group.axes[axis], answers_numbers(group.rows[name])) for group in groups if name in group.rows]
                spots = [(place, value(numbers)) for place, numbers in rows if numbers and value(numbers) is not None]
                if spots:
                    style = columns.line_style(name)
                    plot.plot(*zip(*sorted(spots), strict=True), **style.line2d(markersize=5))
            _label(plot, axis, label, sorted({group.axes[axis] for group in groups}))
            panel_title(plot, title)
    return page.figure


def _label(plot: Axes, axis: str, label: str, places: list[int]) -> None:
    plot.set_ylim(-4, 104)
    plot.set_xscale("log", base=2)
    ticks_at(plot.xaxis, places)
    plot.set_xlabel(axis_label(axis))
    plot.set_ylabel(label)
