"""`chunkbench compare`: what changed from one run to another."""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path

import click

from chunkbench.cli.comparing import again, comparing_options, options_from, tell
from chunkbench.cli.output import fail
from chunkbench.regression.verdicts import Metric

_EXAMPLES = """\b
Examples:
  chunkbench compare results/runs/before results/runs/after
  chunkbench compare results/recorded/laptop/gate results/runs/gate-1 --threshold 3% --format markdown
  chunkbench compare before/cases.jsonl after/cases.jsonl --metric kv_bytes --format json
  chunkbench compare before after --out reports --fail-on slower,incorrect,missing,inconclusive
  chunkbench compare --schema > comparison.schema.json
"""


def _schema(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from chunkbench.regression.verdicts import Comparison

        click.echo(json.dumps(Comparison.model_json_schema(), indent=2))
        context.exit()


@click.command("compare", epilog=_EXAMPLES, short_help="Compare two runs, case by case.")
@click.argument("base", metavar="BASE")
@click.argument("head", metavar="HEAD")
@comparing_options
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write every format in here too.")
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_schema,
    help="Print the JSON schema.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code tells.")
@click.pass_context
def command(
    ctx: click.Context,
    base: str,
    head: str,
    threshold: str,
    confidence: float,
    metric: Metric,
    form: str,
    fail_on: str,
    cross_machine: bool,
    out: Path | None,
    quiet: bool,
) -> None:
    """Compare HEAD with BASE: each a run directory, its cases.jsonl, or a recording (a folder of runs 1, 2, ...).

    Every case is faster, same, slower, inconclusive, incorrect, missing or new; an exact count that changed (kv_bytes,
    work_items) is a verdict of its own. Exit code: 0; 1 slower or missing; 2 wrong usage, or nothing to compare;
    3 incorrect, error, crashed or timeout; 4 inconclusive, if --fail-on asks for it.
    """
    from chunkbench.experiment import bundled_experiments
    from chunkbench.regression.compare import NothingToCompare, compare
    from chunkbench.store import RunError, open_runs

    def settle(implementation: str, factor: float) -> str:
        budget = math.ceil(sum(run.manifest.experiment.budget_s for run in runs) * factor)
        name = runs[0].manifest.experiment.name or "EXPERIMENT"
        file = name if name in bundled_experiments() else f"{name}.yaml"
        words = ["gate", file, "--against", base, "--threshold", threshold, "--confidence", f"{confidence:g}"]
        return again(["chunkbench", *words, "--metric", metric], implementation, budget)

    command_line = shlex.join(["chunkbench", *sys.argv[1:]])
    options = options_from(threshold, confidence, metric, fail_on, cross_machine, command_line, settle)
    try:
        recorded, runs = open_runs(base), open_runs(head)
        comparison = compare(recorded, runs, options)
    except (RunError, NothingToCompare) as error:
        fail(error)
    tell(comparison, form, out, quiet)
    ctx.exit(comparison.exit_code)
