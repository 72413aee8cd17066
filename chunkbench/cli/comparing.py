"""How `compare` and `regress` write and print a comparison."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chunkbench.cli.output import show

if TYPE_CHECKING:
    from chunkbench.cli.comparison_options import ComparisonOptions, ReportOptions
    from chunkbench.report.compare.verdicts import Comparison
    from chunkbench.report.model import Output


def show_comparison(comparison: Comparison, options: ComparisonOptions, folder: Path | None) -> None:
    """Write all reports into the folder, then print one. It is printed even if writing fails.

    With the format for GitHub, the table is also added to the summary of the workflow's step, if there is one.
    """
    from chunkbench.report.compare.files import output, step_summary, write_all

    try:
        if folder is not None:
            write_all(comparison, folder)
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if options.form == "github" and summary:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(step_summary(comparison))
    finally:
        if not options.quiet:
            show(output(comparison, options.form), options.form)


def write_and_show(
    output: Output, options: ReportOptions, name: str, forms: Sequence[str], quiet: bool = False
) -> None:
    """Write an output in the formats `forms` into the folder of --out, then print it."""
    from chunkbench.report.formats import FORMATS, render

    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        for form in FORMATS:
            if form.name in forms:
                (options.out / f"{name}{form.ending}").write_text(render(output, form.name), encoding="utf-8")
    if not quiet:
        show(output, options.form)
