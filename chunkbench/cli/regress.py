"""`chunkbench regress`: is this revision slower than another one?"""

from __future__ import annotations

from pathlib import Path

import click

from chunkbench.cli.comparing import conclude, empty_folder
from chunkbench.cli.comparison_options import (
    GateOptions,
    judging_options,
    measuring_options,
    out_option,
    quiet_option,
)
from chunkbench.cli.options import gathered, without
from chunkbench.cli.output import command_line, fail, stderr_log
from chunkbench.cli.placing import FLAGS, VALUED, Placing, placing_options

_EXAMPLES = """\b
Examples:
  chunkbench regress --base main
  chunkbench regress --base HEAD~1 experiments/gate.yaml --budget 60s
  chunkbench regress --base v0.1.0 smoke --only chunk_attn --format markdown
  chunkbench regress --base origin/main --format github --out regress
  chunkbench regress --base main --project ../my-kernel ../my-kernel/gate.yaml
  chunkbench regress --base main --on ray --machines each
"""


@click.command("regress", epilog=_EXAMPLES, short_help="Build another revision and measure both in turns.")
@click.argument("experiment", metavar="[EXPERIMENT]", required=False)
@click.option("--base", required=True, metavar="GIT_REF", help="The revision to compare with: a branch, tag or commit.")
@click.option(
    "--project",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="PATH",
    help="The git repository to compare revisions of.  [default: that of the current folder]",
)
@measuring_options(fewest_processes=1)
@judging_options
@out_option("Folder for runs and reports [results/runs/regress-...].")
@placing_options
@quiet_option("Print nothing; only the exit code tells the result.")
@click.pass_context
@gathered(Placing, "placing")
@gathered(GateOptions)
def command(
    ctx: click.Context,
    experiment: str | None,
    base: str,
    project: Path | None,
    options: GateOptions,
    placing: Placing,
) -> None:
    """Compare the present revision of a project with the revision GIT_REF.

    The project is a git repository with implementations of its own. Both revisions are built in temporary folders: the
    working tree, with files that are not committed, and GIT_REF. They are measured with the ChunkBench that is
    installed. In a checkout of ChunkBench itself, the installed checkout is compared with GIT_REF.

    EXPERIMENT lists implementations of the project. The default is gate.yaml in its top folder, or ChunkBench's own.

    Both versions of a case are measured in turns, round by round, in processes of their own. So a disturbance of the
    machine affects both. The exit codes are those of `chunkbench gate`; 2 also if GIT_REF is too old for this command.

    With --on ray, the command runs on one node of the cluster, which builds both versions and measures nothing else
    meanwhile; with --machines each, on one node of every kind.
    """
    from chunkbench.cli.progress import RepeatProgress
    from chunkbench.regression.job import Job
    from chunkbench.regression.regress import default_experiment, regress
    from chunkbench.regression.revision_build import repository
    from chunkbench.runner.target import resolve
    from chunkbench.store import RunError

    try:
        folder_of_project = repository(project or Path())
        if placing.remote:
            ctx.exit(_on_cluster(experiment, folder_of_project, base, options, placing))
        placing.check_local()
        loaded = options.load(experiment or default_experiment(folder_of_project))
        compare_options = options.gate_options(loaded.budget_s)
        folder = empty_folder(options.out, f"regress-{loaded.name}")
        with RepeatProgress(options.quiet) as progress:
            job = Job(loaded, resolve(loaded), folder, progress, command_line())
            result = regress(job, folder_of_project, base, compare_options, options.repeats)
    except RunError as error:
        fail(error)
    conclude(ctx, result, options, folder)


def _on_cluster(experiment: str | None, project: Path, base: str, options: GateOptions, placing: Placing) -> int:
    """Run the same command on nodes of a cluster. Returns the exit code."""
    from chunkbench.cluster.errands import PROJECT, packed_checkout, run_errand
    from chunkbench.cluster.remote import OUT
    from chunkbench.environment.revision import PROJECT as OURS
    from chunkbench.regression.revision_build import resolve as commit_of

    folder = empty_folder(options.out, f"regress-{project.name}")
    commit = commit_of(project, base)
    words = without(command_line()[1:], (*VALUED, "--out", "--project", "--base"), FLAGS)
    words += ["--base", commit, "--project", PROJECT, "--out", OUT]
    files = {}
    if experiment is not None and Path(experiment).is_file():
        files[Path(experiment).name] = Path(experiment).read_bytes()
        words[words.index(experiment)] = Path(experiment).name
    checkout = None if project.resolve() == OURS else packed_checkout(project, commit)
    tell = stderr_log(options.quiet)
    codes = []
    with placing.nodes(tell) as (cluster, nodes):
        for number, node in enumerate(nodes, start=1):
            tell(f"[{number}/{len(nodes)}] on {node.name}: {node.kind}")
            done = run_errand(cluster, node, words, files, checkout, tell)
            done.unpack(folder / node.machine)
            if done.code not in (0, 1, 3, 4):
                click.echo(done.said, err=True, nl=False)
            click.echo(done.printed, nl=False)
            codes.append(done.code)
    tell(f"reports of each machine: {folder}")
    return next(code for code in (130, 2, 3, 1, 4, 0) if code in codes)
