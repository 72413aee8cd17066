"""Figures: drawn by the kinds of work, in one style, and saved."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from chunkbench import kinds
from chunkbench.report.figures.style import STYLE
from chunkbench.report.report import Report
from chunkbench.report.showing import Showing
from chunkbench.store import Manifest


def draw(report: Report, manifest: Manifest) -> Figure | None:
    """The figure of a run, as its kind draws it; None when there is too little to draw."""
    showing: Showing = kinds.get(manifest.experiment.kind).showing()
    with mpl.rc_context(STYLE):
        return showing.draw(report, manifest)


def svg(figure: Figure) -> str:
    """The figure as SVG with its text as text."""
    buffer = StringIO()
    with mpl.rc_context({**STYLE, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "ChunkBench"})
    return buffer.getvalue()


PICTURES: Mapping[str, Mapping[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": "ChunkBench"},
    ".pdf": {"CreationDate": None, "Creator": "ChunkBench"},
}
"""Endings of the files that a figure can be saved as, with metadata that let the same run give the same bytes."""


def save(figure: Figure, path: Path) -> Path:
    """Write the figure in the format that the path's ending, one of `PICTURES`, names."""
    with mpl.rc_context(STYLE):
        figure.savefig(path, dpi=160, metadata=dict(PICTURES[path.suffix]))
    return path
