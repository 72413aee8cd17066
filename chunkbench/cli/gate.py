"""`chunkbench gate`: did anything get slower since a recording?"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from chunkbench.cli.comparing import again as again_words
from chunkbench.cli.comparing import comparing_options, conclude, empty_folder, options_from, to_be_timed
from chunkbench.cli.output import fail, run_exit_code
from chunkbench.regression.verdicts import Metric

_EXAMPLES = """\b
Examples:
  chunkbench gate experiments/gate.yaml --record results/recorded/ci-runner/gate
  chunkbench gate experiments/gate.yaml --against results/recorded/ci-runner/gate
  chunkbench gate gate --against results/recorded/ci-runner/gate --format github --budget 60s
  chunkbench gate smoke --against results/recorded/ci-runner/smoke --fail-on none
"""
_RECORDED = 3
"""A recording has so many times the processes of a gate: it is made once, and every gate rests on it."""


@click.command("gate", epilog=_EXAMPLES, short_help="Measure, compare with a recording, measure again what changed.")
@click.argument("experiment", metavar="EXPERIMENT")
@click.option("--against", type=click.Path(path_type=Path), metavar="RECORDED", help="The recording to compare with.")
@click.option("--record", "into", type=click.Path(path_type=Path), metavar="RECORDED", help="Make it, or add to it.")
@click.option("--budget", metavar="TIME", help="Of each measurement, e.g. 20s, 2m.  [default: the experiment's]")
@click.option("--processes", type=click.IntRange(2, 1000), default=12, show_default=True, help="Fewest of a side.")
@click.option("--again", type=click.IntRange(0, 20), default=3, show_default=True, help="Times to measure again.")
@click.option("--only", multiple=True, metavar="IMPL", help="Measure only this implementation. Repeatable.")
@click.option("--as-recorded", is_flag=True, help="Compare with the recorded times; do not measure that build again.")
@comparing_options
@click.option("--out", type=click.Path(path_type=Path), help="Folder for runs and reports [results/runs/gate-...].")
@click.option("-q", "--quiet", is_flag=True, help="No progress, and nothing printed; the exit code tells.")
@click.pass_context
def command(
    ctx: click.Context,
    experiment: str,
    against: Path | None,
    into: Path | None,
    budget: str | None,
    processes: int,
    again: int,
    only: tuple[str, ...],
    as_recorded: bool,
    threshold: str,
    confidence: float,
    metric: Metric,
    form: str,
    fail_on: str,
    cross_machine: bool,
    out: Path | None,
    quiet: bool,
) -> None:
    """Measure EXPERIMENT and compare it with a recording that --record made.

    The build that the recording keeps is measured again, in turns with this one, round by round: what disturbs the
    machine disturbs both. What looks slower or faster is measured again, up to --again times; it is called so only if
    that agrees. Where the recorded build does not run, its times are compared with, on the same machine. All reports
    are written before the exit code is decided: 0; 1 slower or missing; 2 wrong usage; 3 incorrect, error, crashed or
    timeout; 4 inconclusive, if --fail-on asks for it; 130 interrupted.
    """
    from chunkbench.cli.choosing import chosen
    from chunkbench.cli.progress import RepeatProgress
    from chunkbench.regression.compare import NothingToCompare
    from chunkbench.regression.gate import gate
    from chunkbench.regression.recording import next_number, record, repeater
    from chunkbench.runner.target import resolve
    from chunkbench.store import RunError, open_runs

    if (against is None) == (into is None):
        raise click.UsageError("give either --against RECORDED or --record RECORDED")
    loaded = to_be_timed(chosen(experiment, budget=budget, only=only))
    target = resolve(loaded)
    words = ["chunkbench", *sys.argv[1:]]

    def settle(implementation: str, factor: float) -> str:
        return again_words(words, implementation, loaded.budget_s * factor)

    if into is not None:
        longer = loaded.model_copy(update={"budget_s": loaded.budget_s * _RECORDED})
        try:
            first = next_number(into, loaded, target)
            with RepeatProgress(quiet) as progress, repeater(longer, target, into, words, progress) as measuring:
                runs, interrupted = record(longer, measuring, into, processes * _RECORDED, first)
        except RunError as error:
            fail(error)
        if not quiet:
            click.echo(f"recorded {len(runs)} processes in {into}", err=True)
        ctx.exit(130 if interrupted else run_exit_code(case.status for run in runs for case in run.cases))
    assert against is not None
    options = options_from(threshold, confidence, metric, fail_on, cross_machine, shlex.join(words), settle, 1 + again)
    try:
        recorded = open_runs(against)
        if only:  # what was left out by wish is not missing
            for run in recorded:
                run.cases = [case for case in run.cases if case.implementation in only]
        folder = empty_folder(out, f"gate-{loaded.name}")
        with RepeatProgress(quiet) as progress:
            gated = gate(
                loaded, target, against, recorded, options, processes, again, folder, progress, as_recorded=as_recorded
            )
    except (RunError, NothingToCompare) as error:
        fail(error)
    conclude(ctx, gated, form, folder, quiet)
