"""`chunkbench report RUN`: makes the tables and the figure of a run again, without measuring."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from chunkbench.cli.output import OutputFormat, fail, open_page, runs_in, screen

if TYPE_CHECKING:
    from chunkbench.bench.store import Run

_HELP = """Rebuild the tables and the figure of RUN from its facts; nothing is measured.

RUN is a run directory, the cases.jsonl inside it, a folder with runs at any depth, or `latest`: the newest run below
results/runs.

Without --format and --out, report.md, report.html, table.csv, table.tex, report.json, figure.png and figure.svg are
written into the run directory and the table is printed. With --format or --out, only one format is produced, and the
run directory does not change. Without --format, FILE's ending chooses the format: .txt, .md, .html, .csv, .tex, .json;
.png, .svg or .pdf for the figure.

Several RUNs make one report, with the paper's claims judged by all of them. `--format html` gives one self-contained
page, also for a single run.
"""

_EXAMPLES = """\b
Examples:
  chunkbench report latest
  chunkbench report results/runs/table3-20250101T000000Z --format markdown
  chunkbench report latest --out table3.json
  chunkbench report latest --out figure.pdf --style paper
  chunkbench report results/recorded/epyc-zen3-2-cores --out report.html --open
  chunkbench report results/runs/table3-20250101T000000Z results/runs/memory-20250101T001000Z --out report.html
"""

_FIGURES = (".png", ".svg", ".pdf")
"""Suffixes of files with figures."""


@click.command(name="report", help=_HELP, epilog=_EXAMPLES)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=OutputFormat("documents", "records", "data", "book"),
    help="Print this format.  [default: table]",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to FILE instead of printing.")
@click.option(
    "--style",
    type=click.Choice(["screen", "paper"]),
    default="screen",
    show_default=True,
    help="paper: a figure is as wide as a column and embeds its fonts; LaTeX has only the first table.",
)
@click.option("--detail", is_flag=True, help="Print all tables, and the details of the measurement.")
@click.option("--open", "show", is_flag=True, help="Open the report in the browser.")
@click.option("-q", "--quiet", is_flag=True, help="Print neither the table nor the names of written files.")
def command(
    runs: tuple[str, ...],
    form: str | None,
    out: Path | None,
    style: Literal["screen", "paper"],
    detail: bool,
    show: bool,
    quiet: bool,
) -> None:
    from chunkbench.bench.experiment import reading_order
    from chunkbench.bench.store import TORN
    from chunkbench.report import latex
    from chunkbench.report.book import build_book
    from chunkbench.report.build import build
    from chunkbench.report.formats import endings, names, render
    from chunkbench.report.text_table import FILE
    from chunkbench.run_error import RunError

    if form is None and out is not None:
        known = endings("documents", "records", "data", "book") | dict.fromkeys(_FIGURES, "figure")
        form = known.get(out.suffix)
        if form is None:
            raise click.BadParameter(f"{out}: no format has this ending ({' '.join(known)}); choose one with --format")
    try:
        opened = sorted(runs_in(runs), key=lambda run: reading_order(run.manifest.experiment.name))
    except RunError as error:
        fail(error)
    for run in opened:
        if run.torn:
            click.echo(f"{run.path}: {TORN}; it is left out", err=True)
    empty = [run for run in opened if not run.cases]
    if empty and len(empty) < len(opened):
        click.echo(f"left out, no case measured yet: {', '.join(str(run.path) for run in empty)}", err=True)
        opened = [run for run in opened if run.cases]
    if show and (out.suffix != ".html" if out is not None else form is not None or len(opened) > 1):
        raise click.UsageError("--open shows a page: leave --format out, or name the page with --out FILE.html")
    if style == "paper" and (len(opened) > 1 or form not in ("figure", "latex")):
        raise click.UsageError("--style paper is for the figure and the LaTeX of one run: --out FILE.pdf or FILE.tex")
    of_several = names("documents", "book")
    if len(opened) > 1 and form not in (None, *of_several):
        raise click.BadParameter(f"{form} takes one RUN; for several, choose one of {', '.join(of_several)}")
    if not opened[0].cases:
        fail(f"{opened[0].path}: no case has been measured yet; `chunkbench run ... --resume` continues the run")
    if form == "figure" and out is not None:
        _draw(opened[0], out, style, quiet)
        return
    reader = FILE if out is not None else screen(not detail)
    parts = [part for run in opened for part in run.by_machine_kind()]
    if len(opened) > 1 or form == "html" or (len(parts) > 1 and form in of_several):
        book = build_book(parts, out.parent if out is not None else Path())
        text = render(book, form or "table", reader)
    elif form is None and out is None:
        _write_all(opened[0], detail, quiet)
        if show:
            open_page(opened[0].path / "report.html")
        return
    else:
        report = build(opened[0])
        text = (
            latex.as_printed(report)
            if form == "latex" and style == "paper"
            else render(report, form or "table", reader)
        )
    if out is None:
        click.echo(text, nl=False)
        return
    _write(out, lambda path: path.write_text(text, encoding="utf-8"), quiet)
    if show:
        open_page(out)


def _draw(run: Run, out: Path, style: Literal["screen", "paper"], quiet: bool) -> None:
    from chunkbench.report import figures
    from chunkbench.report.build import build

    drawn = [figures.draw(build(part), part.manifest, style) for part in run.by_machine_kind()]
    if not any(drawn):
        why = "a figure needs two implementations that were measured at the same points"
        if run.manifest.experiment.figure == "checks":
            why = "this experiment checks results and compares no times"
        fail(f"{run.path}: nothing to draw: {why}")
    for number, figure in enumerate(drawn, start=1):
        if figure is not None:
            path = out if number == 1 else out.with_stem(f"{out.stem}-{number}")
            _write(path, partial(figures.save, figure, style=style), quiet)


def _write(out: Path, write: Callable[[Path], object], quiet: bool) -> None:
    try:
        write(out)
    except OSError as error:
        fail(f"{out}: cannot be written: {error.strerror}")
    if not quiet:
        click.echo(f"written: {out}", err=True)


def _write_all(run: Run, detail: bool, quiet: bool) -> None:
    from chunkbench.report.build import build
    from chunkbench.report.files import render_run, write_all

    report = build(run)
    try:
        written = write_all(run, report)
    except OSError as error:
        fail(f"{run.path}: cannot be written: {error.strerror}; --format prints without writing")
    if not quiet:
        click.echo(render_run(run, report, "table", screen(not detail)), nl=False)
        click.echo("\nwritten: " + " ".join(str(path) for path in written), err=True)
        click.echo(f"report: {run.path / 'report.html'}")
