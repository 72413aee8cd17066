"""`chunkbench traces`: describes a trace, that is, a file of requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkbench.cli.options import FiniteRange
from chunkbench.cli.output import (
    fail,
    format_option,
    new_experiment,
    refuse_existing,
    show,
    write_experiment,
    write_text,
)

if TYPE_CHECKING:
    from chunkbench.traffic import Trace

_EXAMPLES = """\b
Examples:
  chunkbench traces conversation_trace.jsonl
  chunkbench traces AzureLLMInferenceTrace_conv.csv --format markdown
  chunkbench traces conversation_trace.jsonl --cache 2000 --cache 20000 --format json
  chunkbench traces conversation_trace.jsonl --experiment replay.yaml
  chunkbench traces conversation_trace.jsonl --trees busy.json --most 64
"""
_CACHES = (1_000, 10_000, 30_000, 50_000, 100_000)
_TOKEN_S = 0.05


@click.command("traces", epilog=_EXAMPLES)
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--cache",
    "caches",
    metavar="BLOCKS",
    type=click.IntRange(1),
    multiple=True,
    help="Count hits in a cache of this many blocks. Repeatable.  [default: 1000, 10000, 30000, 50000, 100000]",
)
@click.option(
    "--experiment",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write an experiment that replays the trace through cache managers, as YAML.",
)
@click.option(
    "--trees",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the forest of the prompts that are being answered (live) at one instant, as JSON for the axis tree.",
)
@click.option(
    "--at",
    type=FiniteRange(),
    metavar="SECONDS",
    help="Instant for --trees, in seconds.  [default: when the most requests are live]",
)
@click.option(
    "--token-time",
    type=FiniteRange(1e-6, 1e3),
    metavar="SECONDS",
    help="With --trees: seconds per token of an answer. They decide how long a request is live.  [default: 0.05]",
)
@click.option(
    "--most", type=click.IntRange(1), help="With --trees: take at most this many live requests, the first by arrival."
)
@format_option("documents", "data")
def command(
    path: Path,
    caches: tuple[int, ...],
    experiment: Path | None,
    trees: Path | None,
    at: float | None,
    token_time: float | None,
    most: int | None,
    form: str,
) -> None:
    """Describe the requests in FILE: lengths, rate, and how much of their prompts would be found in a cache.

    The first line decides the format: Mooncake's JSON lines (with hash_ids of blocks of 512 tokens), the CSV of
    Azure's and BurstGPT's traces (lengths and times, nothing about sharing), or the JSON lines of `chunkbench load
    --trace`. If a line is bad, the command stops and names the line.
    """
    from chunkbench.bench.analysis.traffic import traffic_numbers
    from chunkbench.report.trace_document import document
    from chunkbench.report.trace_document import experiment as as_experiment
    from chunkbench.text_file import is_stream, is_text
    from chunkbench.traffic import TraceError, read_traffic

    if trees is None and (at, token_time, most) != (None, None, None):
        raise click.UsageError("--at, --token-time and --most belong to --trees")
    if experiment is not None:
        if is_stream(path):
            fail(f"{path} is no regular file; a replay reads the trace again, so save the trace first")
        if not is_text(str(path)):
            fail(f"{path}: the name is not UTF-8, as an experiment requires; rename the file")
        experiment = new_experiment(experiment)
    try:
        trace = read_traffic(path)
    except TraceError as error:
        fail(error)
    dues, prompts, answers, blocks, *_ = zip(*trace.requests, strict=True)
    numbers = traffic_numbers(dues, prompts, answers, blocks, trace.block_tokens, caches or _CACHES)
    if trees is not None:
        _write_forest(trees, trace, _TOKEN_S if token_time is None else token_time, at, most)
    if experiment is not None:
        write_experiment(experiment, as_experiment(path, numbers, trace.block_tokens))
        click.echo(f"wrote {experiment}; replay it: chunkbench run {experiment}", err=True)
    show(document(path.name, trace.format, trace.block_tokens, numbers, trace.notes), form)


def _write_forest(path: Path, trace: Trace, token_s: float, at: float | None, most: int | None) -> None:
    """Write the forest at an instant, or end with a message if the forest is no valid tree."""
    from chunkbench.bench.experiment.findings import Findings
    from chunkbench.bench.experiment.tree_reader import read_forest
    from chunkbench.report.trace_document import cut_lines
    from chunkbench.text_file import is_text
    from chunkbench.traffic.live import cut_forest, live_at

    if path.suffix != ".json":
        path = path.with_name(f"{path.name}.json")
    refuse_existing(path)
    if not is_text(str(path)):
        fail(f"{path}: the name is not UTF-8, as an experiment requires; give another name")
    try:
        at, live = live_at(trace.requests, token_s, at, most)
    except ValueError as error:
        fail(error)
    try:
        forest = cut_forest(live, trace.block_tokens)
        read_forest(forest)
    except ValueError as error:
        problem = error.findings[0].message if isinstance(error, Findings) else error
        fail(f"{path} is not written, it would be no valid tree: {problem} (--at and --most select other requests)")
    write_text(path, json.dumps(forest) + "\n")
    click.echo("\n".join(cut_lines(path, forest, at)), err=True)
