"""`chunkbench claims RUN...`: judges the paper's quantitative claims by measurements of this machine."""

from __future__ import annotations

from pathlib import Path

import click

from chunkbench.cli.output import RUNS, fail, format_option, runs_in, show


@click.command(
    "claims",
    epilog="""\b
    Examples:
      chunkbench claims
      chunkbench claims results/runs/table3-20260101T000000Z results/runs/figure3-20260101T003000Z
      chunkbench claims results/recorded/epyc-zen3-2-cores
      chunkbench claims --format json > claims.json
    """,
)
@click.argument("runs", metavar="[RUN...]", nargs=-1, type=click.Path(path_type=Path))
@format_option("documents", "records", "data")
def command(runs: tuple[Path, ...], form: str) -> None:
    """Judge every quantitative claim of the paper by RUNs: run directories, or recorded results.

    RUN can also be a folder with runs at any depth, such as results/recorded/epyc-zen3-2-cores. Without RUNs, the
    newest run of each experiment below results/runs counts. Each machine is judged by its own runs. If two runs of a
    machine measured the same point, the run that is named last counts. Claims whose verdict differs between such
    runs are listed. Claims about shapes or about the paper's own numbers need no run. The exit code is 0 whatever
    the verdicts are.
    """
    from chunkbench.bench.store import newest_runs, open_run
    from chunkbench.report.claims.document import document_of
    from chunkbench.run_error import RunError

    try:
        opened = runs_in(runs) if runs else [open_run(run) for run in newest_runs(RUNS)]
    except RunError as error:
        fail(error)
    show(document_of(opened), form)
