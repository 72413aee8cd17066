"""`chunkbench run`: measure an experiment."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import get_args

import click

from chunkbench.cli.output import FORMATS, RUNS, colour_wanted, new_run, run_exit_code


@click.command("run", short_help="Measure an experiment and print its table.")
@click.argument("experiment", metavar="EXPERIMENT")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Instead of the experiment's device.")
@click.option(
    "--dtype", type=click.Choice(["auto", "float32", "float16", "bfloat16"]), help="Instead of the experiment's dtype."
)
@click.option("--set", "sets", multiple=True, metavar="AXIS=V1,V2", help="Replace an axis in every block. Repeatable.")
@click.option("--model", metavar="NAME", help="Whose layer `kind: modules` measures: llama3-8b, ... or a config.json.")
@click.option("--only", multiple=True, metavar="IMPL", help="Measure only this implementation. Repeatable.")
@click.option(
    "--modes", metavar="M1,M2", help="How to time on a GPU: events, graph, eager.  [default: the file's, or all]"
)
@click.option("--caches", metavar="C1,C2", help="cold, warm.  [default: the file's, or the protocol's own]")
@click.option("--budget", metavar="TIME", help="About how long to measure, e.g. 90s, 5m, 1h30m.")
@click.option("--full", is_flag=True, help="Time every step of the fewest rounds, however long that takes.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory [results/runs/EXPERIMENT-TIME].")
@click.option("--resume", is_flag=True, help="Go on with the run in --out, or with the experiment's latest.")
@click.option(
    "--retry", metavar="S1,S2", help="With --resume: measure points again that have a row with such a status, but ok."
)
@click.option("--dry-run", is_flag=True, help="Print what would be measured, the memory and the time; measure nothing.")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="What to print at the end.  [default: table, or nothing with -q]",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress, and no table unless --format is given.")
@click.pass_context
def command(
    ctx: click.Context,
    experiment: str,
    device: str | None,
    dtype: str | None,
    sets: tuple[str, ...],
    model: str | None,
    only: tuple[str, ...],
    modes: str | None,
    caches: str | None,
    budget: str | None,
    full: bool,
    out: Path | None,
    resume: bool,
    retry: str | None,
    dry_run: bool,
    form: str | None,
    quiet: bool,
) -> None:
    """Measure EXPERIMENT (a YAML file, or the name of a bundled one) and print its table.

    Everything measured lies in the run directory as raw samples; Ctrl-C keeps the finished points and prints the
    command that goes on. Exit code: 0, also where something is unavailable, unsupported or noisy; 2 wrong usage;
    3 an implementation was incorrect, raised, crashed or ran out of time; 130 interrupted.

    \b
    Examples:
      chunkbench run table3
      chunkbench run table3 --dry-run
      chunkbench run experiments/table3.yaml --budget 20m --out results/runs/mine
      chunkbench run table3 --set n_p=1024 --only chunk_attn --only naive
      chunkbench run table3 --out results/runs/mine --resume
      chunkbench run table3 --resume --retry crashed,timeout,unavailable
      chunkbench run table1 --model llama3-8b
      chunkbench run figure3 --full
      chunkbench run table3 --device cuda --modes graph,events --caches cold,warm
    """
    from chunkbench.cli.choosing import chosen, several
    from chunkbench.cli.progress import RunProgress
    from chunkbench.experiment import TimedExperiment
    from chunkbench.report import build, render, write_all
    from chunkbench.runner.measuring import measuring
    from chunkbench.runner.options import RunOptions
    from chunkbench.runner.run import run_experiment
    from chunkbench.runner.target import resolve
    from chunkbench.store import latest_run
    from chunkbench.store.facts import Status

    sets = (*sets, f"model={model}") if model else sets
    if full and budget is not None:
        raise click.UsageError("--full takes as long as it takes; leave --budget out")
    if retry is not None and not resume:
        raise click.UsageError("--retry goes with --resume: a new run has no rows yet")
    statuses = [status for status in get_args(Status) if status != "ok"]
    options = RunOptions(retry=frozenset(several("retry", retry, statuses) if retry is not None else ()))
    wanted = chosen(experiment, sets, device, dtype, budget, only, modes, caches)
    timed = wanted if isinstance(wanted, TimedExperiment) else None
    if full:
        if timed is None:
            raise click.UsageError(f"--full: experiments of `kind: {wanted.kind}` have no rounds")
        wanted = timed = timed.in_full()
    target = resolve(wanted, describing=dry_run)
    if modes is not None and timed is not None and target.device == "cpu" and timed.modes != ("eager",):
        raise click.BadParameter("a CPU has only the mode eager", param_hint="--modes")
    if dry_run:
        click.echo(measuring(wanted).describe(wanted, target))
        return
    if out is None:
        out = latest_run(RUNS, wanted.name) if resume else new_run(wanted.name)
    with RunProgress(quiet) as progress:
        outcome = run_experiment(wanted, target, out, resume, ["chunkbench", *sys.argv[1:]], progress, options)
    try:
        if outcome.run.cases:
            report = build(outcome.run)
            write_all(outcome.run, report)
            if form is not None or not quiet:
                click.echo(render(report, form or "table", colour_wanted()), nl=False)
    finally:  # a second Ctrl-C gives up the report, not the way to go on
        if outcome.interrupted:
            click.echo(f"interrupted; finished points are kept. To go on:\n  {_resume_command(out)}", err=True)
    if outcome.interrupted:
        ctx.exit(130)
    ctx.exit(run_exit_code(case.status for case in outcome.run.cases))


def _resume_command(out: Path) -> str:
    """This command line with --out and --resume."""
    words = list(sys.argv[1:])
    if "--resume" not in words:
        words.append("--resume")
    if not any(word == "--out" or word.startswith("--out=") for word in words):
        words += ["--out", str(out)]
    return shlex.join(["chunkbench", *words])
