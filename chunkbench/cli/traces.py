"""`chunkbench traces`: what a trace of requests asks for."""

from __future__ import annotations

from pathlib import Path

import click

from chunkbench.cli.output import fail, format_option, show, write_experiment

_EXAMPLES = """\b
Examples:
  chunkbench traces conversation_trace.jsonl
  chunkbench traces AzureLLMInferenceTrace_conv.csv --format markdown
  chunkbench traces conversation_trace.jsonl --cache 2000 --cache 20000 --format json
  chunkbench traces conversation_trace.jsonl --experiment replay.yaml
"""
_CACHES = (1_000, 10_000, 30_000, 50_000, 100_000)


@click.command("traces", epilog=_EXAMPLES, short_help="Lengths, rate and sharing of a trace of requests.")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--cache",
    "caches",
    metavar="BLOCKS",
    type=click.IntRange(1),
    multiple=True,
    help="Count hits in a cache of this size; may be repeated.  [default: 1000, 10000, 30000, 50000, 100000]",
)
@click.option(
    "--experiment",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write an experiment that replays the trace through cache managers, as YAML.",
)
@format_option("documents", "data")
def command(path: Path, caches: tuple[int, ...], experiment: Path | None, form: str) -> None:
    """Describe the requests in FILE: lengths, rate, and how much of their prompts a cache would hold.

    The first line tells the format: Mooncake's JSON lines (with hash_ids of blocks of 512 tokens), the CSV of Azure's
    and BurstGPT's traces (lengths and times, nothing about sharing), or the JSON lines of `chunkbench load --trace`. A
    file with a bad line is refused, and the message names the line.
    """
    from chunkbench.analysis.traffic import traffic_numbers
    from chunkbench.report.traffic import document
    from chunkbench.report.traffic import experiment as as_experiment
    from chunkbench.text_file import is_stream, is_text
    from chunkbench.traces import TraceError, read_traffic

    try:
        trace = read_traffic(path)
    except TraceError as error:
        fail(error)
    dues, prompts, answers, blocks, *_ = zip(*trace.requests, strict=True)
    numbers = traffic_numbers(dues, prompts, answers, blocks, trace.block_tokens, caches or _CACHES)
    if experiment is not None:
        if experiment.exists():
            fail(f"{experiment} exists already; give another name, or remove it")
        if is_stream(path):
            fail(f"{path} is no file; a replay reads the trace again: save it first")
        if not is_text(str(path)):
            fail(f"{path}: the name is not UTF-8, and an experiment is; rename the file")
        experiment = write_experiment(experiment, as_experiment(path, numbers, trace.block_tokens))
        click.echo(f"wrote {experiment}; replay it: chunkbench run {experiment}", err=True)
    show(document(path.name, trace.format, trace.block_tokens, numbers, trace.notes), form)
