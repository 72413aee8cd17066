"""Writing a report's files into its run directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chunkbench.report import csv, json, latex, markdown
from chunkbench.report.book import build_book
from chunkbench.report.build import build
from chunkbench.report.report import Report
from chunkbench.store import Run

FILES: dict[str, Callable[[Report], str]] = {
    "table.csv": csv.render,
    "table.tex": latex.render,
    "report.json": json.render,
}


def write_all(run: Run, report: Report | None = None) -> list[Path]:
    """Write the report in every format, and `figure.png` and `figure.svg`; returns their paths.

    Without two implementations to compare there is no figure. `report` saves building it again.
    """
    # matplotlib takes a while to load; nobody who only wants a table should wait for it.
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
