"""Figures: the kinds of work draw them; this package gives them one style and saves them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from chunkbench.bench import workload
from chunkbench.bench.store import Manifest
from chunkbench.report.columns import Columns
from chunkbench.report.figures.style import StyleName, plain, styled
from chunkbench.report.layout import Report

_SMALLER = 0.65
"""Factor on the sizes of lines and markers in the style for papers."""


def draw(report: Report, manifest: Manifest, style: StyleName = "screen") -> Figure | None:
    """The figure of a run, drawn by its kind of work; None when there is too little to draw."""
    with styled(style):
        shown = replace(report, columns=_plain_names(report.columns))
        figure = workload.get(manifest.experiment.kind).layout().draw(shown, manifest)
    if figure is not None and style == "paper":
        for line in figure.findobj(Line2D):
            line.set(markersize=_SMALLER * line.get_markersize(), linewidth=_SMALLER * line.get_linewidth())
    return figure


def _plain_names(columns: Columns) -> Columns:
    """The columns, with names in a form that matplotlib shows unchanged."""
    styles = {
        name: style.model_copy(update={"name": plain(style.name), "heading": tuple(map(plain, style.heading))})
        for name, style in columns.styles.items()
    }
    return replace(columns, labels={name: plain(label) for name, label in columns.labels.items()}, styles=styles)


def svg(figure: Figure) -> tuple[str, str]:
    """The figure as SVG with text elements instead of outlines, without caption; and the caption."""
    caption = str(figure.get_label())
    for text in list(figure.texts):
        text.remove()
    buffer = StringIO()
    with styled(), mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": "ChunkBench"})
    return buffer.getvalue(), caption


PICTURES: Mapping[str, Mapping[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": "ChunkBench"},
    ".pdf": {"CreationDate": None, "Creator": "ChunkBench"},
}
"""Endings of figure files, with the metadata that make the same run give the same bytes."""


def save(figure: Figure, path: Path, style: StyleName = "screen") -> Path:
    """Write the figure; the path's ending, one of `PICTURES`, names the format."""
    with styled(style):
        figure.savefig(path, dpi=160, metadata=dict(PICTURES[path.suffix]))
    return path
