"""How `compare`, `gate` and `regress` write and print a comparison, and exit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from chunkbench.cli.output import colour_wanted, new_run, screen

if TYPE_CHECKING:
    from chunkbench.cli.comparison_options import ComparisonOptions, ReportOptions
    from chunkbench.regression.remeasure import GateResult
    from chunkbench.regression.verdicts import Comparison
    from chunkbench.report.model import Document


def show(comparison: Comparison, options: ComparisonOptions, folder: Path | None) -> None:
    """Write all reports into the folder, then print one. It is printed even if writing fails.

    With the format for GitHub, the table is also added to the summary of the workflow's step, if there is one.
    """
    from chunkbench.regression.report import render, write_all
    from chunkbench.regression.report.formats import step_summary

    try:
        if folder is not None:
            write_all(comparison, folder)
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if options.form == "github" and summary:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(step_summary(comparison))
    finally:
        if not options.quiet:
            click.echo(render(comparison, options.form, colour_wanted()), nl=False)


def show_document(
    document: Document, data: str, options: ReportOptions, name: str, forms: Sequence[str], quiet: bool = False
) -> None:
    """Write a document in the formats `forms` and its data as JSON into the folder of --out, then print it."""
    from chunkbench.report.formats import render_document

    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{name}.json").write_text(data, encoding="utf-8")
        for form in forms:
            suffix = "md" if form == "markdown" else "txt"
            (options.out / f"{name}.{suffix}").write_text(render_document(document, form), encoding="utf-8")
    if not quiet:
        text = data if options.form == "json" else render_document(document, options.form, screen())
        click.echo(text, nl=False)


def empty_folder(out: Path | None, name: str) -> Path:
    """The folder for the runs of a gate: `out`, or a new one. Raises `RunError` if it is not empty."""
    from chunkbench.store import RunError

    folder = out or new_run(name)
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: is not empty; choose a new folder for --out")
    return folder


def conclude(ctx: click.Context, result: GateResult, options: ComparisonOptions, folder: Path) -> NoReturn:
    """Write and print the reports, and exit with the code of the result."""
    if result.comparison is not None:
        show(result.comparison, options, folder)
    if result.interrupted or result.comparison is None:
        click.echo(f"interrupted; what was measured is in {folder}", err=True)
        ctx.exit(130)
    ctx.exit(result.comparison.exit_code)
