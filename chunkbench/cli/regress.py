"""`chunkbench regress`: measures whether this code is slower than another revision."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkbench.cli.comparing import ComparisonOptions, judging_options, out_option, quiet_option, show_comparison
from chunkbench.cli.options import gathered, without
from chunkbench.cli.output import command_line, fail, new_run, stderr_log
from chunkbench.cli.placing import FLAGS, VALUED, Placing, placing_options

if TYPE_CHECKING:
    from chunkbench.bench.experiment import TimedExperiment

_EXAMPLES = """\b
Examples:
  chunkbench regress --base main
  chunkbench regress --base HEAD~1 experiments/gate.yaml --budget 60s
  chunkbench regress --base v0.2.0 smoke --only chunk_attn --format markdown
  chunkbench regress --base origin/main --format github --out regress
  chunkbench regress --base main --project ../my-kernel ../my-kernel/gate.yaml
  chunkbench regress --base-python ../old-torch/.venv/bin/python
  chunkbench regress --base main --on ray --machines each
"""


@dataclass(frozen=True)
class RegressOptions(ComparisonOptions):
    budget: str | None
    processes: int
    only: tuple[str, ...]

    def load(self, name: str) -> TimedExperiment:
        """Load the experiment to measure. Raises `ExperimentError` and `click.BadParameter`."""
        from chunkbench.bench.experiment import TimedExperiment
        from chunkbench.cli.choosing import Changes, choose_experiment

        experiment = choose_experiment(name, Changes(budget=self.budget, only=self.only))
        if not isinstance(experiment, TimedExperiment):
            message = (
                f"`kind: {experiment.kind}` times nothing; compare two runs of it "
                "(chunkbench compare BASE HEAD --metric kv_bytes)"
            )
            raise click.BadParameter(message, param_hint="EXPERIMENT")
        return experiment


@click.command("regress", epilog=_EXAMPLES)
@click.argument("experiment", metavar="[EXPERIMENT]", required=False)
@click.option("--base", metavar="REV", help="Compare with this git revision: a branch, tag or commit.")
@click.option(
    "--base-python",
    metavar="PYTHON",
    help="Compare with this interpreter, for example one with a new torch or compiler. "
    "It must have ChunkBench and the project.",
)
@click.option(
    "--project",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="PATH",
    help="The git repository whose revisions are compared.  [default: the repository of the current folder]",
)
@click.option(
    "--budget",
    metavar="TIME",
    help="Time for the minimum number of pairs (--processes), e.g. 20s. All pairs take at most six times as long.  "
    "[default: the experiment's]",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    default=12,
    show_default=True,
    help="Minimum number of pairs of processes for each case.",
)
@click.option("--only", multiple=True, metavar="IMPL", help="Measure only this implementation. Repeatable.")
@judging_options
@out_option("Folder for runs and reports [results/runs/regress-...].")
@placing_options
@quiet_option
@click.pass_context
@gathered(Placing, "placing")
@gathered(RegressOptions)
def command(
    ctx: click.Context,
    experiment: str | None,
    base: str | None,
    base_python: str | None,
    project: Path | None,
    options: RegressOptions,
    placing: Placing,
) -> None:
    """Is this code slower than the code of REV, or slower than in another PYTHON?

    With --base, the project is a git repository with its own implementations. Both sides are built in temporary
    folders. One side is the working tree, with files that are not committed; the other side is REV. The installed
    ChunkBench measures both sides. In a checkout of ChunkBench itself, the installed checkout is compared with REV.

    With --base-python, the interpreter PYTHON is compared with the one that runs this command. Each uses its own
    packages, and the report lists the versions that differ.

    EXPERIMENT lists implementations of the project. The default is gate.yaml in its top folder, or ChunkBench's own.

    The two sides of a case are measured by a pair of processes that take turns, round by round. So a disturbance of the
    machine affects both sides. Pairs go on until each case has a verdict, or until six budgets are used up.

    All reports are written before the exit code is decided: 0; 1 slower or missing; 2 wrong usage, or REV is too old
    for this command; 3 incorrect, error, crashed or timeout; 4 inconclusive, if --fail-on names it; 130 interrupted.

    With --on ray, the command runs on one node of the cluster. The node builds both versions, and measures nothing
    else meanwhile. With --machines each, it runs on one node of every kind.
    """
    from chunkbench.bench.runner.run import signals_as_interrupt
    from chunkbench.bench.runner.target import resolve_target
    from chunkbench.bench.store import writing
    from chunkbench.cli.progress import RepeatProgress
    from chunkbench.report.compare.builds import commit_of, repository
    from chunkbench.report.compare.interleaved import InterleavedJob
    from chunkbench.report.compare.metrics import metric_of
    from chunkbench.report.compare.regress import default_experiment, regress
    from chunkbench.report.compare.sides import interpreters, revisions
    from chunkbench.run_error import RunError

    if (base is None) == (base_python is None):
        raise click.UsageError("give either --base REV or --base-python PYTHON")
    try:
        if placing.remote:
            if base is None:
                raise click.UsageError("--base-python compares interpreters of this machine; with --on ray give --base")
            ctx.exit(_on_cluster(experiment, repository(project or Path()), base, options, placing))
        placing.check_local()
        place = repository(project or Path()) if base is not None or experiment is None else Path()
        loaded = options.load(experiment or default_experiment(place))
        compare_options = replace(options.compare_options(), case_command=_alone)
        metric_of(options.metric, [loaded.kind])
        if base is not None:
            commit_of(place, base)  # before there is a folder
        folder = _empty_folder(options.out, f"regress-{loaded.name}")
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with RepeatProgress(options.quiet) as progress, signals_as_interrupt():
            job = InterleavedJob(loaded, resolve_target(loaded), folder, progress, options.processes)
            sides = (
                nullcontext(interpreters(base_python, partial(click.echo, err=True)))
                if base_python is not None
                else revisions(place, base or "", loaded, folder / "build.log")
            )
            if base is not None:
                progress.building(base, folder / "build.log")
            with sides as (base_side, head_side):
                outcome = regress(job, base_side, head_side, compare_options)
    except RunError as error:
        fail(error)
    except KeyboardInterrupt:  # during a build
        outcome = None
    if outcome is not None and outcome.comparison is not None:
        show_comparison(outcome.comparison, options, folder)
    if outcome is None or outcome.interrupted or outcome.comparison is None:
        click.echo(f"interrupted; what was measured is in {folder}", err=True)
        ctx.exit(130)
    ctx.exit(outcome.comparison.exit_code)


def _alone(implementation: str) -> str:
    """The command line that measures only this implementation."""
    return shlex.join([*without(command_line(), ("--only", "--out")), "--only", implementation])


def _empty_folder(out: Path | None, name: str) -> Path:
    """The folder for the runs: `out`, or a new one. Raises `RunError` if it is not empty."""
    from chunkbench.run_error import RunError

    folder = out or new_run(name)
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder}: is not empty; choose a new folder for --out")
    return folder


def _on_cluster(experiment: str | None, project: Path, base: str, options: RegressOptions, placing: Placing) -> int:
    """Run the same command on nodes of a cluster. Returns the exit code."""
    from chunkbench.bench.environment.revision import PROJECT as OURS
    from chunkbench.plugins.ray.remote import OUT
    from chunkbench.plugins.ray.remote_commands import PROJECT, packed_checkout, run_remote_command
    from chunkbench.report.compare.builds import commit_of

    folder = _empty_folder(options.out, f"regress-{project.name}")
    commit = commit_of(project, base)
    arguments = without(command_line()[1:], (*VALUED, "--out", "--project", "--base"), FLAGS)
    arguments += ["--base", commit, "--project", PROJECT, "--out", OUT]
    files = {}
    if experiment is not None and Path(experiment).is_file():
        files[Path(experiment).name] = Path(experiment).read_bytes()
        arguments[arguments.index(experiment)] = Path(experiment).name
    checkout = None if project.resolve() == OURS else packed_checkout(project, commit)
    log = stderr_log(options.quiet)
    codes = []
    with placing.fleet(log) as fleet:
        nodes = fleet.one_of_each(placing.machines, placing.machine)
        for number, node in enumerate(nodes, start=1):
            log(f"[{number}/{len(nodes)}] on {node.name}: {node.kind}")
            done = run_remote_command(fleet.cluster, node, arguments, files, checkout, log)
            done.unpack(folder / node.machine)
            if done.code not in (0, 1, 3, 4):
                click.echo(done.stderr, err=True, nl=False)
            click.echo(done.stdout, nl=False)
            codes.append(done.code)
    log(f"reports of each machine: {folder}")
    return next(code for code in (130, 2, 3, 1, 4, 0) if code in codes)
