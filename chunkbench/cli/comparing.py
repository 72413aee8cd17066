"""What `compare`, `regress` and `history` have in common: options, and functions that write and print."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from chunkbench.cli.options import Decorated, with_options
from chunkbench.cli.output import command_line, format_option, show
from chunkbench.report.compare.verdicts import Comparison, FailOn

if TYPE_CHECKING:
    from chunkbench.report.compare.compare import Options
    from chunkbench.report.model import Output

_FAIL_ON = get_args(FailOn)

threshold_option = click.option(
    "--threshold", default="5%", show_default=True, metavar="SHARE", help="A smaller change counts as no change."
)
metric_option = click.option(
    "--metric",
    default="latency",
    show_default=True,
    metavar="NAME",
    help="The figure to compare: latency, or another one of this kind of work. An unknown name lists all figures.",
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code is the result.")


def confidence_option(subject: str) -> Callable[[Decorated], Decorated]:
    """Make the option `--confidence`. Its help text says what the confidence is about: the `subject`."""
    text = f"Confidence of all {subject} together, 0.5 to 1."
    return click.option("--confidence", type=float, default=0.99, show_default=True, help=text)


def out_option(text: str, file_okay: bool = True) -> Callable[[Decorated], Decorated]:
    """Make the option `--out` with the help text `text`."""
    return click.option("--out", type=click.Path(file_okay=file_okay, path_type=Path), help=text)


def judging_options(command: Decorated) -> Decorated:
    """Add the options with which `compare` and `regress` compare and print."""
    options = (
        threshold_option,
        confidence_option("verdicts"),
        metric_option,
        format_option("documents", "data", "suite"),
        click.option(
            "--fail-on",
            default="slower,incorrect,missing",
            show_default=True,
            metavar="VERDICTS",
            help=f"Verdicts with an exit code other than 0: some of {', '.join(_FAIL_ON)}; or none.",
        ),
        click.option("--cross-machine", is_flag=True, help="Judge raw times even if machines or settings differ."),
    )
    return with_options(command, options)


@dataclass(frozen=True)
class ReportOptions:
    """Values of the options that `compare`, `regress` and `history` share."""

    threshold: str
    confidence: float
    form: str
    out: Path | None

    def threshold_share(self) -> float:
        """The threshold as a number, such as 0.05 for `5%`. Raises `click.BadParameter`."""
        text = self.threshold
        try:
            value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1:
            raise click.BadParameter(f"{text!r}: write a share such as 5% or 0.05", param_hint="--threshold")
        return value

    def check_confidence(self) -> None:
        """Raises `click.BadParameter` unless the confidence lies between 0.5 and 1."""
        if not 0.5 <= self.confidence < 1:
            raise click.BadParameter(f"{self.confidence:g} does not lie between 0.5 and 1", param_hint="--confidence")


@dataclass(frozen=True)
class ComparisonOptions(ReportOptions):
    """Values of the options that `compare` and `regress` share."""

    metric: str
    fail_on: str
    cross_machine: bool
    quiet: bool

    def compare_options(self) -> Options:
        """The arguments for `compare()`. Raises `click.BadParameter`."""
        from chunkbench.report.compare.compare import Options

        self.check_confidence()
        return Options(
            fail_on=self._verdicts_that_fail(),
            metric=self.metric,
            threshold=self.threshold_share(),
            confidence=self.confidence,
            cross_machine=self.cross_machine,
            command=shlex.join(command_line()),
        )

    def _verdicts_that_fail(self) -> tuple[FailOn, ...]:
        text = self.fail_on.strip()
        verdicts = () if text in ("", "none") else tuple(word.strip() for word in text.split(","))
        for verdict in verdicts:
            if verdict not in _FAIL_ON:
                raise click.BadParameter(
                    f"{verdict!r} is none of {', '.join(_FAIL_ON)}; or write none", param_hint="--fail-on"
                )
        return verdicts  # type: ignore[return-value]


def show_comparison(comparison: Comparison, options: ComparisonOptions, folder: Path | None) -> None:
    """Write all reports into the folder, then print one report, even if writing fails.

    With the format `github`, also append the table to the summary of the workflow's step, if there is one.
    """
    from chunkbench.report.compare.document import output, step_summary, write_all

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
    """Write an output into the folder of `--out`, in each of the formats `forms`, then print it."""
    from chunkbench.report.formats import FORMATS, render

    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        for form in FORMATS:
            if form.name in forms:
                (options.out / f"{name}{form.ending}").write_text(render(output, form.name), encoding="utf-8")
    if not quiet:
        show(output, options.form)
