"""Draws the figure of a run in one style, and saves it. Each kind of work provides the drawing."""

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
"""In the style `paper`, lines and markers are this fraction of their size on a screen."""


def draw(report: Report, manifest: Manifest, style: StyleName = "screen") -> Figure | None:
    """Draw the figure of a run. None if there is too little to draw."""
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
    """Two texts: the figure as SVG without its caption, and the caption. Words in the SVG are text elements, not
    outlines."""
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
"""Ending of a figure's file -> metadata for matplotlib. The metadata contain no date, so equal figures give equal
files."""


def save(figure: Figure, path: Path, style: StyleName = "screen") -> Path:
    """Write the figure. The ending of `path` selects the format: one of `PICTURES`."""
    with styled(style):
        figure.savefig(path, dpi=160, metadata=dict(PICTURES[path.suffix]))
    return path
