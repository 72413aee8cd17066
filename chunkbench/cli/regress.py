"""`chunkbench regress`: is this revision slower than another one?"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from chunkbench.cli.comparing import again as again_words
from chunkbench.cli.comparing import comparing_options, conclude, empty_folder, options_from, to_be_timed
from chunkbench.cli.output import fail
from chunkbench.regression.verdicts import Metric

_EXAMPLES = """\b
Examples:
  chunkbench regress --base main
  chunkbench regress --base HEAD~1 experiments/gate.yaml --budget 60s
  chunkbench regress --base v0.1.0 smoke --only chunk_attn --format markdown
  chunkbench regress --base origin/main --format github --out regress
"""


@click.command("regress", epilog=_EXAMPLES, short_help="Build another revision and measure both in turns.")
@click.argument("experiment", metavar="[EXPERIMENT]", default="gate")
@click.option("--base", required=True, metavar="GIT_REF", help="The revision to compare with: a branch, tag or commit.")
@click.option("--budget", metavar="TIME", help="Of each measurement, e.g. 20s, 2m.  [default: the experiment's]")
@click.option("--processes", type=click.IntRange(1, 1000), default=12, show_default=True, help="Fewest of a side.")
@click.option("--again", type=click.IntRange(0, 20), default=3, show_default=True, help="Times to measure again.")
@click.option("--only", multiple=True, metavar="IMPL", help="Measure only this implementation. Repeatable.")
@comparing_options
@click.option("--out", type=click.Path(path_type=Path), help="Folder for runs and reports [results/runs/regress-...].")
@click.option("-q", "--quiet", is_flag=True, help="No progress, and nothing printed; the exit code tells.")
@click.pass_context
def command(
    ctx: click.Context,
    experiment: str,
    base: str,
    budget: str | None,
    processes: int,
    again: int,
    only: tuple[str, ...],
    threshold: str,
    confidence: float,
    metric: Metric,
    form: str,
    fail_on: str,
    cross_machine: bool,
    out: Path | None,
    quiet: bool,
) -> None:
    """Compare this checkout, as it is installed, with the revision GIT_REF, which is built beside it for the time.

    A case's two versions run in turns, round by round, in processes of their own: what disturbs the machine disturbs
    both. Exit codes are those of `chunkbench gate`; 2 also where GIT_REF is too old for this.
    """
    from chunkbench.cli.choosing import chosen
    from chunkbench.cli.progress import RepeatProgress
    from chunkbench.regression.compare import NothingToCompare
    from chunkbench.regression.regress import regress
    from chunkbench.runner.target import resolve
    from chunkbench.store import RunError

    loaded = to_be_timed(chosen(experiment, budget=budget, only=only))
    words = ["chunkbench", *sys.argv[1:]]

    def settle(implementation: str, factor: float) -> str:
        return again_words(words, implementation, loaded.budget_s * factor)

    try:
        options = options_from(
            threshold, confidence, metric, fail_on, cross_machine, shlex.join(words), settle, 1 + again
        )
        folder = empty_folder(out, f"regress-{loaded.name}")
        with RepeatProgress(quiet) as progress:
            found = regress(loaded, resolve(loaded), base, options, processes, again, folder, progress)
    except (RunError, NothingToCompare) as error:
        fail(error)
    conclude(ctx, found, form, folder, quiet)
