"""`chunkbench compare`: what changed from one run to another."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from chunkbench.cli.comparing import show
from chunkbench.cli.comparison_options import (
    ComparisonOptions,
    gathered,
    judging_options,
    longer_command,
    out_option,
    quiet_option,
)
from chunkbench.cli.output import fail

if TYPE_CHECKING:
    from chunkbench.store import Run

_EXAMPLES = """\b
Examples:
  chunkbench compare results/runs/before results/runs/after
  chunkbench compare results/recorded/laptop/gate results/runs/gate-1 --threshold 3% --format markdown
  chunkbench compare before/cases.jsonl after/cases.jsonl --metric kv_bytes --format json
  chunkbench compare before after --out reports --fail-on slower,incorrect,missing,inconclusive
  chunkbench compare --schema > comparison.schema.json
"""


def _print_schema(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from chunkbench.regression.verdicts import Comparison

        click.echo(json.dumps(Comparison.model_json_schema(), indent=2))
        context.exit()


@click.command("compare", epilog=_EXAMPLES, short_help="Compare two runs, case by case.")
@click.argument("base", metavar="BASE")
@click.argument("head", metavar="HEAD")
@judging_options
@out_option("Also write the report in every format into this folder.", file_okay=False)
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON schema.",
)
@quiet_option("Print nothing; only the exit code tells the result.")
@click.pass_context
@gathered(ComparisonOptions)
def command(ctx: click.Context, base: str, head: str, options: ComparisonOptions) -> None:
    """Compare HEAD with BASE: each a run directory, its cases.jsonl, or a recording (a folder of runs 1, 2, ...).

    Every case is faster, same, slower, inconclusive, incorrect, missing or new; an exact count that changed (kv_bytes,
    work_items) is a verdict of its own. Exit code: 0; 1 slower or missing; 2 wrong usage, or nothing to compare;
    3 incorrect, error, crashed or timeout; 4 inconclusive, if --fail-on asks for it.
    """
    from chunkbench.regression.compare import NothingToCompare, compare
    from chunkbench.store import RunError, open_runs

    def settling_command(implementation: str, factor: float) -> str:
        return _gate_command(head_runs, base, options, implementation, factor)

    compare_options = options.compare_options(settling_command)
    try:
        base_runs, head_runs = open_runs(base), open_runs(head)
        comparison = compare(base_runs, head_runs, compare_options)
    except (RunError, NothingToCompare) as error:
        fail(error)
    show(comparison, options, options.out)
    ctx.exit(comparison.exit_code)


def _gate_command(
    runs: Sequence[Run], base: str, options: ComparisonOptions, implementation: str, factor: float
) -> str:
    """The gate that measures the experiment of `runs` against the recording `base`, `factor` times as long."""
    from chunkbench.experiment import bundled_experiments

    budget_s = math.ceil(sum(run.manifest.experiment.budget_s for run in runs) * factor)
    name = runs[0].manifest.experiment.name or "EXPERIMENT"
    file = name if name in bundled_experiments() else f"{name}.yaml"
    words = ["chunkbench", "gate", file, "--against", base, "--threshold", options.threshold]
    words += ["--confidence", f"{options.confidence:g}", "--metric", options.metric]
    return longer_command(words, implementation, budget_s)
