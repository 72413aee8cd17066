"""`chunkbench run`: measures an experiment."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import click

from chunkbench.cli.choosing import Changes, choose_experiment, parse_list
from chunkbench.cli.options import gathered
from chunkbench.cli.output import (
    RUNS,
    OutputFormat,
    command_line,
    new_run,
    open_page,
    run_exit_code,
    screen,
    typed_command,
)
from chunkbench.cli.placing import Placing, placing_options


@dataclass(frozen=True)
class Printing:
    """Values of the options for the output at the end of a run."""

    form: str | None
    detail: bool
    show: bool
    quiet: bool


@click.command("run")
@click.argument("experiment", metavar="EXPERIMENT")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), help="Use this device instead of the experiment's."
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "float16", "bfloat16"]),
    help="Use this dtype instead of the experiment's.",
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="AXIS=V1,V2",
    help="Replace the values of an axis in every block. Repeatable.",
)
@click.option(
    "--model",
    metavar="NAME",
    help="With `kind: modules`: measure a layer of this model: llama3-8b, ... or a config.json.",
)
@click.option("--only", multiple=True, metavar="IMPL", help="Measure only this implementation. Repeatable.")
@click.option(
    "--modes", metavar="M1,M2", help="Modes of timing on a GPU: events, graph, eager.  [default: the file's, or all]"
)
@click.option(
    "--caches",
    metavar="C1,C2",
    help="States of the hardware caches: cold, warm.  [default: the file's, or the protocol's]",
)
@click.option(
    "--budget",
    metavar="TIME",
    help="Approximate time, e.g. 90s, 5m, 1h30m. The smallest number of rounds may take longer.",
)
@click.option("--full", is_flag=True, help="Time every step, in the minimum number of rounds, even beyond the budget.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory [results/runs/EXPERIMENT-TIME].")
@click.option("--resume", is_flag=True, help="Continue the run in --out, or the latest run of the experiment.")
@click.option(
    "--retry",
    metavar="S1,S2",
    help="With --resume: measure points again that have a result with one of these statuses.",
)
@placing_options
@click.option("--dry-run", is_flag=True, help="Print the plan, the memory and the time; measure nothing.")
@click.option(
    "--format",
    "form",
    type=OutputFormat("documents", "records", "data"),
    help="Format of the output at the end.  [default: table, or nothing with -q]",
)
@click.option("--detail", is_flag=True, help="Print all tables, and the details of the measurement.")
@click.option("--open", "show", is_flag=True, help="Open the report in the browser.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress, and no table unless --format is given.")
@click.pass_context
@gathered(Placing, "placing")
@gathered(Changes, "changes")
@gathered(Printing, "printing")
def command(
    ctx: click.Context,
    experiment: str,
    changes: Changes,
    out: Path | None,
    resume: bool,
    retry: str | None,
    dry_run: bool,
    printing: Printing,
    placing: Placing,
) -> None:
    """Measure EXPERIMENT (a YAML file, or the name of a bundled one) and print its table.

    The run directory keeps all raw samples. Ctrl-C keeps the finished points and prints the command that resumes the
    run. Exit code: 0, also if something is unavailable, unsupported or noisy; 2 wrong usage; 3 an implementation was
    incorrect, raised, crashed or ran out of time, or nothing was measured; 130 interrupted.

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
      chunkbench run table3 --on ray
      chunkbench run table3 --on ray://head:10001 --machines each --budget 1h
      chunkbench run table3 --on ray --machine a100 --alone
      torchrun --nproc-per-node 4 --no-python chunkbench run ring --set ranks=4
    """
    from chunkbench.bench import workload
    from chunkbench.bench.experiment import TimedExperiment
    from chunkbench.bench.runner.passes import RunOptions
    from chunkbench.bench.runner.run import run_experiment
    from chunkbench.bench.store import latest_run, writing
    from chunkbench.bench.store.results import Status
    from chunkbench.cli.progress import RunProgress
    from chunkbench.report.build import build
    from chunkbench.report.files import render_run, write_all

    if retry is not None and not resume:
        raise click.UsageError("--retry needs --resume: a new run has no rows yet")
    statuses = [status for status in get_args(Status) if status != "ok"]
    options = RunOptions(retry=frozenset(parse_list("retry", retry, statuses) if retry is not None else ()))
    loaded = choose_experiment(experiment, changes)
    if not dry_run and workload.of(loaded).follow(loaded):
        return
    timed = loaded if isinstance(loaded, TimedExperiment) else None
    if out is None:
        out = latest_run(RUNS, loaded.name) if resume else new_run(loaded.name)
    with (
        RunProgress(printing.quiet, placing.remote) as progress,
        placing.executors(progress.problem, dry_run) as executor_for,
    ):
        executor = executor_for(loaded, out if resume else None)
        devices = {target.device for target in executor.targets}
        if changes.modes is not None and timed is not None and devices == {"cpu"} and timed.modes != ("eager",):
            raise click.BadParameter("a CPU has only the mode eager", param_hint="--modes")
        if dry_run:
            for target in executor.targets:
                click.echo(workload.of(loaded).describe(loaded, target))
            return
        outcome = run_experiment(loaded, executor, out, resume, command_line(), progress, options)
    try:
        if outcome.run.cases:
            report = build(outcome.run)
            with writing(out):
                write_all(outcome.run, report)
            if printing.form is not None or not printing.quiet:
                click.echo(
                    render_run(outcome.run, report, printing.form or "table", screen(not printing.detail)), nl=False
                )
            page = out / "report.html"
            if printing.form is None and not printing.quiet:
                click.echo(f"\nreport: {page}")
            if printing.show:
                open_page(page)
    finally:  # a second Ctrl-C stops the report, but the command to resume is still printed
        if outcome.interrupted:
            click.echo(f"interrupted; finished points are kept. To continue:\n  {_resume_command(out)}", err=True)
    if outcome.interrupted:
        ctx.exit(130)
    ctx.exit(run_exit_code(case.status for case in outcome.run.cases))


def _resume_command(out: Path) -> str:
    """The command line that resumes this run."""
    words = typed_command()
    if "--resume" not in words:
        words.append("--resume")
    if not any(word == "--out" or word.startswith("--out=") for word in words):
        words += ["--out", str(out)]
    return shlex.join(words)
