"""`chunkbench gate`: did anything get slower since a recording?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from chunkbench.cli.comparing import conclude, empty_folder
from chunkbench.cli.comparison_options import (
    GateOptions,
    judging_options,
    measuring_options,
    out_option,
    quiet_option,
)
from chunkbench.cli.options import gathered
from chunkbench.cli.output import command_line, fail, run_exit_code

if TYPE_CHECKING:
    from chunkbench.experiment import TimedExperiment

_EXAMPLES = """\b
Examples:
  chunkbench gate experiments/gate.yaml --record results/recorded/ci-runner/gate
  chunkbench gate experiments/gate.yaml --against results/recorded/ci-runner/gate
  chunkbench gate gate --against results/recorded/ci-runner/gate --format github --budget 60s
  chunkbench gate smoke --against results/recorded/ci-runner/smoke --fail-on none
"""
_RECORDING_FACTOR = 3
"""A recording gets this many times the processes and the budget of a gate: it is made once, for many gates."""


@click.command("gate", epilog=_EXAMPLES, short_help="Measure, compare with a recording, measure again what changed.")
@click.argument("experiment", metavar="EXPERIMENT")
@click.option("--against", type=click.Path(path_type=Path), metavar="RECORDED", help="The recording to compare with.")
@click.option(
    "--record", "into", type=click.Path(path_type=Path), metavar="RECORDED", help="Make this recording, or add to it."
)
@measuring_options(fewest_processes=2)
@click.option("--as-recorded", is_flag=True, help="Compare with the recorded times; run no recorded code.")
@judging_options
@out_option("Folder for runs and reports [results/runs/gate-...].")
@quiet_option("Print nothing; only the exit code tells the result.")
@click.pass_context
@gathered(GateOptions)
def command(
    ctx: click.Context,
    experiment: str,
    against: Path | None,
    into: Path | None,
    as_recorded: bool,
    options: GateOptions,
) -> None:
    """Measure EXPERIMENT and compare it with a recording that --record made.

    The build inside the recording is measured again, in turns with the present build, round by round. So a disturbance
    of the machine affects both. A case that looks slower or faster is measured again, at most --again times, and gets
    that verdict only if the new measurement agrees. Where the recorded build does not run, the recorded times are the
    base.

    A recording is code: --against runs the build inside it. Use only a recording that you trust. --as-recorded runs no
    recorded code.

    All reports are written before the exit code is decided: 0; 1 slower or missing; 2 wrong usage; 3 incorrect, error,
    crashed or timeout; 4 inconclusive, if --fail-on names it; 130 interrupted.
    """
    if (against is None) == (into is None):
        raise click.UsageError("give either --against RECORDED or --record RECORDED")
    loaded = options.load(experiment)
    if into is not None:
        _record(ctx, loaded, into, options)
    assert against is not None
    _gate(ctx, loaded, against, as_recorded, options)


def _record(ctx: click.Context, experiment: TimedExperiment, folder: Path, options: GateOptions) -> NoReturn:
    from chunkbench.cli.progress import RepeatProgress
    from chunkbench.regression.job import Job
    from chunkbench.regression.recording import next_number, record, repeater
    from chunkbench.runner.target import resolve
    from chunkbench.store import RunError

    target = resolve(experiment)
    longer = experiment.model_copy(update={"budget_s": experiment.budget_s * _RECORDING_FACTOR})
    try:
        first = next_number(folder, experiment, target)
        with RepeatProgress(options.quiet) as progress:
            job = Job(longer, target, folder, progress, command_line())
            with repeater(job) as measuring:
                runs, interrupted = record(measuring, options.processes * _RECORDING_FACTOR, first)
    except RunError as error:
        fail(error)
    if not options.quiet:
        click.echo(f"recorded {len(runs)} processes in {folder}", err=True)
    ctx.exit(130 if interrupted else run_exit_code(case.status for run in runs for case in run.cases))


def _gate(
    ctx: click.Context, experiment: TimedExperiment, against: Path, as_recorded: bool, options: GateOptions
) -> NoReturn:
    from chunkbench.cli.progress import RepeatProgress
    from chunkbench.regression.gate import gate
    from chunkbench.regression.job import Job
    from chunkbench.regression.recording import Recording
    from chunkbench.runner.target import resolve
    from chunkbench.store import RunError, open_runs

    target = resolve(experiment)
    compare_options = options.gate_options(experiment.budget_s)
    try:
        recording = Recording(against, open_runs(against))
        if options.only:  # an implementation that the user leaves out is not missing
            recording.keep_implementations(options.only)
        folder = empty_folder(options.out, f"gate-{experiment.name}")
        with RepeatProgress(options.quiet) as progress:
            job = Job(experiment, target, folder, progress, command_line())
            result = gate(job, recording, compare_options, options.repeats, as_recorded)
    except RunError as error:
        fail(error)
    conclude(ctx, result, options, folder)
