"""Figures of runs, for tests of what is in them."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.figure import Figure
from matplotlib.text import Text

from chunkbench.bench.store import Run
from chunkbench.report import figures
from chunkbench.report.build import build


def drawn(run: Run) -> Figure:
    figure = figures.draw(build(run), run.manifest)
    assert figure is not None
    return figure


def caption(run: Run) -> str:
    return " ".join(" ".join(text.get_text() for text in drawn(run).texts).split())


def check_inside(picture: Figure, texts: Iterable[Text]) -> None:
    """No text is cut off at the edges."""
    picture.canvas.draw()
    renderer = picture.canvas.get_renderer()
    width, height = picture.canvas.get_width_height()
    for text in texts:
        box = text.get_window_extent(renderer)
        assert not text.get_text() or (box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height), text
