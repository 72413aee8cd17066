"""`chunkbench reproduce`: runs the experiments of the paper that this machine can measure, and reports them on one
page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkbench.cli.options import gathered
from chunkbench.cli.output import fail, open_page, run_exit_code, stderr_log, typed_command
from chunkbench.cli.placing import Placing, placing_options

if TYPE_CHECKING:
    from chunkbench.bench.experiment import Experiment


@click.command(
    "reproduce",
    epilog="""\b
    Examples:
      chunkbench reproduce
      chunkbench reproduce --out results/runs/paper --budget 10m
      chunkbench reproduce --only table1 --only memory
      chunkbench reproduce --dry-run
      chunkbench reproduce --on ray --machines each
    """,
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("results/runs/reproduce"),
    show_default=True,
    help="Folder of the runs and the report.",
)
@click.option(
    "--budget",
    metavar="TIME",
    help="Time for all experiments together, e.g. 60m; each experiment gets a share.  [default: their own budgets]",
)
@click.option("--only", multiple=True, metavar="EXPERIMENT", help="Run only this experiment. Repeatable.")
@placing_options
@click.option("--dry-run", is_flag=True, help="Print the plan, the memory and the time; measure nothing.")
@click.option("--open", "show", is_flag=True, help="Open the report in the browser.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.pass_context
@gathered(Placing, "placing")
def command(
    ctx: click.Context,
    out: Path,
    budget: str | None,
    only: tuple[str, ...],
    dry_run: bool,
    show: bool,
    quiet: bool,
    placing: Placing,
) -> None:
    """Run the experiments of the paper's tables and figures one after the other and write report.html and report.md.

    Finished experiments below --out are not measured again: after Ctrl-C or a crash the same command continues. Exit
    codes are those of `chunkbench run`.
    """
    from chunkbench.bench.experiment import load_experiment, reading_order
    from chunkbench.bench.runner.reproduce import EXPERIMENTS, reproduce, within
    from chunkbench.bench.store import writing
    from chunkbench.cli.choosing import parse_budget
    from chunkbench.cli.progress import RunProgress
    from chunkbench.report.book import build_book
    from chunkbench.report.claims.document import summary
    from chunkbench.report.formats import render
    from chunkbench.run_error import RunError
    from chunkbench.text_file import did_you_mean

    unknown = [name for name in only if name not in EXPERIMENTS]
    if unknown:
        raise click.BadParameter(
            f"no experiment {unknown[0]!r}{did_you_mean(unknown[0], EXPERIMENTS)}", param_hint="--only"
        )
    experiments = [load_experiment(name) for name in EXPERIMENTS if not only or name in only]
    if budget is not None:
        experiments = within(experiments, parse_budget(budget))

    if dry_run:
        _describe(experiments, out, placing)
        return
    try:
        with RunProgress(quiet, placing.remote) as progress, placing.executors(progress.problem) as executor_for:
            outcome = reproduce(experiments, out, executor_for, progress, stderr_log(quiet))
        if outcome.runs:
            book = build_book(sorted(outcome.runs, key=lambda run: reading_order(run.manifest.experiment.name)), out)
            with writing(out):
                for form, name in (("html", "report.html"), ("markdown", "report.md")):
                    (out / name).write_text(render(book, form), encoding="utf-8")
            click.echo(summary(book.claims))
            for chapter in book.chapters:
                minutes = f"{chapter.minutes:5.1f} min" if chapter.minutes is not None else "        -"
                click.echo(
                    f"{minutes}  {chapter.report.title}: {chapter.report.verdict} {chapter.report.headline}".rstrip()
                )
            click.echo(f"report: {out / 'report.html'}")
            if show:
                open_page(out / "report.html")
    except RunError as error:
        fail(f"{error}, or choose another folder with --out")
    if outcome.interrupted:
        click.echo(f"interrupted; to continue:\n  {shlex.join(typed_command())}", err=True)
        ctx.exit(130)
    ctx.exit(run_exit_code(case.status for run in outcome.runs for case in run.cases))


def _describe(experiments: Sequence[Experiment], out: Path, placing: Placing) -> None:
    """A line for each experiment and each kind of machine."""
    from chunkbench.bench.runner.dry_run import brief
    from chunkbench.bench.runner.reproduce import finished

    with placing.executors(lambda text: click.echo(text, err=True), describing=True) as executor_for:
        for experiment in experiments:
            if finished(out / experiment.name):
                click.echo(f"{experiment.name:<16} already measured, in {out / experiment.name}")
                continue
            for target in executor_for(experiment, None).targets:
                where = f" on {target.machine_kind}" if target.machine_kind else ""
                click.echo(f"{experiment.name:<16} {brief(experiment, target)}{where}")
