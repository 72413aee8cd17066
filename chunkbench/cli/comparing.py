"""What the commands that compare have in common: their options, and printing what came of it."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import click

from chunkbench.cli.output import colour_wanted, new_run
from chunkbench.regression.verdicts import FailOn, Metric

if TYPE_CHECKING:
    from chunkbench.experiment import Experiment, TimedExperiment
    from chunkbench.regression.compare import Options
    from chunkbench.regression.remeasure import Gated
    from chunkbench.regression.verdicts import Comparison

FORMATS = ("table", "markdown", "json", "junit", "github")
_FAIL_ON = get_args(FailOn)

Decorated = Callable[..., Any]


def comparing_options(command: Decorated) -> Decorated:
    """The options of every command that compares."""
    for option in reversed(
        (
            click.option(
                "--threshold",
                default="5%",
                show_default=True,
                metavar="SHARE",
                help="Changes up to this are none.",
            ),
            click.option(
                "--confidence", type=float, default=0.99, show_default=True, help="Of all verdicts together, 0.5 to 1."
            ),
            click.option(
                "--metric",
                type=click.Choice(get_args(Metric)),
                default="latency",
                show_default=True,
                help="What to compare.",
            ),
            click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True),
            click.option(
                "--fail-on",
                default="slower,incorrect,missing",
                show_default=True,
                metavar="VERDICTS",
                help=f"Verdicts with an exit code other than 0: some of {', '.join(_FAIL_ON)}; or none.",
            ),
            click.option("--cross-machine", is_flag=True, help="Judge raw times, whatever machines and settings."),
        )
    ):
        command = option(command)
    return command


def options_from(
    threshold: str,
    confidence: float,
    metric: Metric,
    fail_on: str,
    cross_machine: bool,
    command: str,
    settle: Callable[[str, float], str],
    looks: int = 1,
) -> Options:
    """The options as the command line gives them. Raises `click.BadParameter`."""
    from chunkbench.regression.compare import Options

    if not 0.5 <= confidence < 1:
        raise click.BadParameter(f"{confidence:g} does not lie between 0.5 and 1", param_hint="--confidence")
    wanted = () if fail_on.strip() in ("", "none") else tuple(word.strip() for word in fail_on.split(","))
    for word in wanted:
        if word not in _FAIL_ON:
            raise click.BadParameter(
                f"{word!r} is none of {', '.join(_FAIL_ON)}; or write none", param_hint="--fail-on"
            )
    return Options(
        metric=metric,
        threshold=share(threshold),
        confidence=confidence,
        cross_machine=cross_machine,
        fail_on=wanted,  # type: ignore[arg-type]
        command=command,
        settle=settle,
        looks=looks,
    )


def again(words: Sequence[str], implementation: str, budget_s: float) -> str:
    """The command line with one implementation alone, and more time."""
    kept: list[str] = []
    skip = False
    for word in words:
        replaced = word.partition("=")[0] in ("--only", "--budget", "--out")
        if not skip and not replaced:
            kept.append(word)
        skip = replaced and "=" not in word
    return shlex.join([*kept, "--only", implementation, "--budget", f"{math.ceil(budget_s)}s"])


def tell(comparison: Comparison, form: str, out: Path | None, quiet: bool) -> None:
    """Write the reports into `out`, then print one; printed even where writing failed.

    For GitHub the table also goes into the step's summary, where there is one.
    """
    from chunkbench.regression.report import render, write_all
    from chunkbench.regression.report.formats import step_summary

    try:
        if out is not None:
            write_all(comparison, out)
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if form == "github" and summary:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(step_summary(comparison))
    finally:
        if not quiet:
            click.echo(render(comparison, form, colour_wanted()), nl=False)


def to_be_timed(experiment: Experiment) -> TimedExperiment:
    """The experiment itself. Raises `click.BadParameter` where there is nothing to time in turns."""
    from chunkbench.experiment import TimedExperiment

    if not isinstance(experiment, TimedExperiment) or not experiment.timed:
        message = (
            f"`kind: {experiment.kind}` times nothing; compare two runs of it "
            "(chunkbench compare BASE HEAD --metric kv_bytes)"
        )
        raise click.BadParameter(message, param_hint="EXPERIMENT")
    return experiment


def empty_folder(out: Path | None, name: str) -> Path:
    """Where a command that measures in order to compare keeps its runs. Raises `RunError` where there is something."""
    from chunkbench.store import RunError

    folder = out or new_run(name)
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: is not empty; choose a new folder for --out")
    return folder


def conclude(ctx: click.Context, found: Gated, form: str, folder: Path, quiet: bool) -> NoReturn:
    """Tell what was found, and exit as it demands."""
    if found.comparison is not None:
        tell(found.comparison, form, folder, quiet)
    if found.interrupted or found.comparison is None:
        click.echo(f"interrupted; what was measured is in {folder}", err=True)
        ctx.exit(130)
    ctx.exit(found.comparison.exit_code)


def share(text: str) -> float:
    """A share as people write it: 5% or 0.05. Raises `click.BadParameter`."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise click.BadParameter(f"{text!r}: write a share such as 5% or 0.05", param_hint="--threshold")
    return value
