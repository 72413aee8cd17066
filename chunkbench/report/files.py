"""Writes the files of a report into the run directory."""

from __future__ import annotations

from pathlib import Path

from chunkbench.report import markdown
from chunkbench.report.book import build_book
from chunkbench.report.build import build
from chunkbench.report.formats import FILES
from chunkbench.report.report import Report
from chunkbench.store import Run


def write_all(run: Run, report: Report | None = None) -> list[Path]:
    """Write the report in every format, `figure.png` and `figure.svg`; returns their paths.

    There is no figure without two implementations to compare. `report` is the run's report, if it is already built.
    """
    # Imported here because matplotlib loads slowly, and printing a table does not need it.
    from chunkbench.report import figures, html

    report = report or build(run)
    written = []
    drawn = figures.draw(report, run.manifest)
    if drawn is not None:
        written += [figures.save(drawn, run.path / name) for name in ("figure.png", "figure.svg")]
    texts = {"report.md": markdown.render(report, "figure.png" if drawn is not None else "")}
    texts |= {name: render(report) for name, render in FILES.items()}
    texts["report.html"] = html.render(build_book([run], run.path, [report]))
    for name, text in texts.items():
        (run.path / name).write_text(text, encoding="utf-8")
        written.append(run.path / name)
    return written
