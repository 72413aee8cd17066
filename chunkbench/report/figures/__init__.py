"""The figure of a run, by its kind and its experiment's `figure`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from chunkbench.report.figures import advantage, memory, roofline, speedup, token_rate
from chunkbench.report.figures.style import STYLE
from chunkbench.report.model import Report

_DRAW: Mapping[str, Callable[[Report, Mapping[str, Any]], Figure | None]] = {
    "speedup": speedup.draw,
    "token_rate": token_rate.draw,
    "advantage": advantage.draw,
    "memory": memory.draw,
    "modules": roofline.draw,
}


def draw(report: Report, manifest: Mapping[str, Any]) -> Figure | None:
    """None when there is too little to draw."""
    experiment = manifest.get("experiment") or {}
    kind = experiment.get("kind") or "decode"
    chosen = experiment.get("figure") or "speedup"
    with mpl.rc_context(STYLE):
        return _DRAW[chosen if kind == "decode" else kind](report, manifest)


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
