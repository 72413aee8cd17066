"""Writes the files of a report into the run directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from chunkbench.bench.store import Run
from chunkbench.report.book import build_book
from chunkbench.report.build import build
from chunkbench.report.formats import names, render
from chunkbench.report.layout import Report
from chunkbench.report.text_table import FILE, Screen

_TABLES = {"table.csv": "csv", "table.tex": "latex", "report.json": "json"}
"""Name of a file in the run directory -> its format."""


def render_run(run: Run, report: Report, form: str, screen: Screen = FILE) -> str:
    """Show the report of a run as text in the format `form`. If several kinds of machines measured the run, show one
    report for each kind."""
    parts = run.by_machine_kind()
    if len(parts) == 1 or form not in names("documents"):
        return render(report, form, screen)
    return "\n".join(render(build(part), form, screen) for part in parts)


def write_all(run: Run, report: Report | None = None) -> list[Path]:
    """Write the report of a run into its directory in all formats, and return the paths.

    A run on several kinds of machines has one figure for each kind (`figure-2.png`), but only one table of all rows. A
    figure needs at least two implementations. `report`: the run's report, if it exists already.
    """
    # Imported here because matplotlib loads slowly, and printing a table does not need it.
    from chunkbench.report import figures

    report = report or build(run)
    parts = run.by_machine_kind()
    reports = [report] if len(parts) == 1 else [build(part) for part in parts]
    written, pages = [], []
    for number, (part, part_report) in enumerate(zip(parts, reports, strict=True), start=1):
        name = "figure" if number == 1 else f"figure-{number}"
        drawn = figures.draw(part_report, part.manifest)
        if drawn is not None:
            written += [figures.save(drawn, run.path / f"{name}{ending}") for ending in (".png", ".svg")]
        pages.append(replace(part_report, figures=(f"{name}.png",) if drawn is not None else ()))
    texts = {"report.md": "\n".join(render(page, "markdown") for page in pages)}
    texts |= {name: render(report, form) for name, form in _TABLES.items()}
    texts["report.html"] = render(build_book(parts, run.path, reports), "html")
    for name, text in texts.items():
        (run.path / name).write_text(text, encoding="utf-8")
        written.append(run.path / name)
    return written
