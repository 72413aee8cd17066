"""The picture of a ladder of loads: answered requests against latency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from chunkbench.cli.load_document import Load
from chunkbench.report.columns import LineStyle
from chunkbench.report.figures import save
from chunkbench.report.figures.style import handle, sheet, styled

_LINES = (("p50", "median", "o", "solid"), ("p99", "99th percentile", "^", "dashed"))
_PANELS = (("time_to_first_token", "first token, ms"), ("gap", "gap between tokens, ms"))


def draw_ladder(loads: Sequence[Load], path: Path) -> None:
    """Draw the steps and write the picture to `path`. Its ending selects the format."""
    labels = "clients" if loads[0].step.clients is not None else "requests per second that are due"
    caption = f"Each mark is a step of the ladder. Its label: {labels}."
    with styled():
        styles = [LineStyle("#0072B2", marker, line) for _, _, marker, line in _LINES]
        handles = [handle(style, words) for style, (_, words, _, _) in zip(styles, _LINES, strict=True)]
        drawn = sheet(caption, handles, 2, 2, share_y=False)
        for plot, (of, label) in zip(drawn.panels, _PANELS, strict=True):
            for style, (which, _, _, _) in zip(styles, _LINES, strict=True):
                known = [(load, quantiles) for load in loads if (quantiles := getattr(load.numbers, of)) is not None]
                places = [(load.numbers.requests_per_s, getattr(one, which) * 1e3) for load, one in known]
                plot.plot(*zip(*places, strict=True), **style.line2d()) if places else None
                if which == "p99":
                    for (load, _), place in zip(known, places, strict=True):
                        text = f"{load.step.rate or load.step.clients:g}"
                        plot.annotate(text, place, xytext=(4, 4), textcoords="offset points", fontsize=8)
            plot.set_xlabel("answered requests per second")
            plot.set_ylabel(label)
            plot.set_ylim(bottom=0)
    save(drawn.figure, path)
