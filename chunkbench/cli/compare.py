"""`chunkbench compare`: shows the changes from one run to another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import click

from chunkbench.cli.comparing import (
    ComparisonOptions,
    judging_options,
    out_option,
    quiet_option,
    show_comparison,
    write_and_show,
)
from chunkbench.cli.options import gathered
from chunkbench.cli.output import fail
from chunkbench.report.compare.verdicts import Between

if TYPE_CHECKING:
    from chunkbench.bench.store import Run

_EXAMPLES = """\b
Examples:
  chunkbench compare results/runs/before results/runs/after
  chunkbench compare results/runs/regress-monday results/runs/regress-friday --threshold 3% --format markdown
  chunkbench compare before/cases.jsonl after/cases.jsonl --metric kv_bytes --format json
  chunkbench compare monday/table4 friday/table4 --metric first_token_p99
  chunkbench compare before after --out reports --fail-on slower,incorrect,missing,inconclusive
  chunkbench compare results/runs/float32 results/runs/bfloat16 --between dtypes
  chunkbench compare laptop/table3 server/table3 --between machines --over naive
  chunkbench compare results/runs/on-both-machines --between machines
  chunkbench compare --schema > comparison.schema.json
"""


def _print_schema(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from chunkbench.report.compare.verdicts import Comparison

        click.echo(json.dumps(Comparison.model_json_schema(), indent=2))
        context.exit()


@click.command("compare", epilog=_EXAMPLES)
@click.argument("base", metavar="BASE")
@click.argument("head", metavar="[HEAD]", required=False)
@judging_options
@out_option("Also write the report in every format into this folder.", file_okay=False)
@click.option(
    "--between",
    type=click.Choice(get_args(Between)),
    help="If times cannot be compared: compare speed-ups over one implementation that both runs measured.",
)
@click.option(
    "--over",
    metavar="IMPL",
    help="With --between: compute speed-ups over this implementation.  [default: naive, or BASE's baseline]",
)
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON schema of a comparison.",
)
@quiet_option
@click.pass_context
@gathered(ComparisonOptions)
def command(
    ctx: click.Context,
    base: str,
    head: str | None,
    between: Between | None,
    over: str | None,
    options: ComparisonOptions,
) -> None:
    """Compare HEAD with BASE. Each is a run directory, its cases.jsonl, or a folder of `chunkbench regress --out`.

    Every case is faster, same, slower, inconclusive, incorrect, missing or new. Figures that are counted, not timed
    (kv_bytes, work_items, ...), get their own verdict if they changed. Exit code: 0; 1 slower or missing; 2 wrong
    usage, or nothing to compare; 3 incorrect, error, crashed or timeout; 4 inconclusive, if --fail-on asks for it.

    With --between, a table of speed-ups replaces the verdicts on times, and the exit code is 0 or 2. With `--between
    machines`, one run is enough if it measured on several kinds of machines.
    """
    if head is None and between != "machines":
        raise click.UsageError("HEAD is missing; one run alone can be compared with --between machines")
    if head is None:
        _compare_machines(base, over, options)
        return
    if between is not None:
        _compare_speedups(base, head, between, over, options)
        return
    if over is not None:
        raise click.UsageError("--over belongs to --between")
    from chunkbench.bench.store import open_runs
    from chunkbench.report.compare.compare import compare
    from chunkbench.run_error import RunError

    compare_options = options.compare_options()
    try:
        comparison = compare(open_runs(base), open_runs(head), compare_options)
    except RunError as error:
        fail(error)
    show_comparison(comparison, options, options.out)
    ctx.exit(comparison.exit_code)


def _compare_machines(base: str, over: str | None, options: ComparisonOptions) -> None:
    """Compare the kinds of machines of one run, each with the first kind."""
    from chunkbench.bench.store import open_run
    from chunkbench.run_error import RunError

    try:
        first, *others = open_run(base).by_machine_kind()
    except RunError as error:
        fail(error)
    if not others:
        fail(
            f"{base}: was measured on one kind of machine; `chunkbench run ... --on ray --machines each` measures more"
        )
    for number, other in enumerate(others, start=2):
        name = "speedups" if len(others) == 1 else f"speedups-{number}"
        _show_speedups([first], [other], "machines", over, options, name)


def _compare_speedups(base: str, head: str, between: Between, over: str | None, options: ComparisonOptions) -> None:
    """Print the speed-ups of two measurements."""
    from chunkbench.bench.store import open_runs
    from chunkbench.run_error import RunError

    try:
        base_runs, head_runs = open_runs(base), open_runs(head)
    except RunError as error:
        fail(error)
    _show_speedups(base_runs, head_runs, between, over, options, "speedups")


def _show_speedups(
    base: Sequence[Run],
    head: Sequence[Run],
    between: Between,
    over: str | None,
    options: ComparisonOptions,
    name: str,
) -> None:
    """Print the speed-ups, and write them as text, Markdown and JSON into the folder of --out."""
    from chunkbench.report.compare.speedups import speedups
    from chunkbench.report.compare.speedups_table import document
    from chunkbench.report.formats import names
    from chunkbench.run_error import RunError

    options.check_confidence()
    if options.form not in names("documents", "data"):
        raise click.BadParameter(
            f"speed-ups are printed as {', '.join(names('documents', 'data'))}", param_hint="--format"
        )
    threshold = options.threshold_share()
    try:
        compared = speedups(base, head, between, over, threshold, options.confidence)
    except RunError as error:
        fail(error)
    write_and_show(document(compared), options, name, ("json", "table", "markdown"), options.quiet)
