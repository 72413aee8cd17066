"""`chunkbench prompts`: counts the shared prefixes of a set of prompts."""

from __future__ import annotations

import json
from pathlib import Path

import click

from chunkbench.cli.output import (
    fail,
    format_option,
    new_experiment,
    refuse_existing,
    show,
    write_experiment,
    write_text,
)

_EXAMPLES = """\b
Examples:
  chunkbench prompts traffic.jsonl --tokenizer cl100k_base
  chunkbench prompts prompts/*.txt --tokenizer models/llama/tokenizer.json --model llama3-8b
  chunkbench prompts token-ids.jsonl --group-by tenant --experiment traffic.yaml
  chunkbench prompts token-ids.jsonl --format json
  chunkbench prompts token-ids.jsonl --trace requests.jsonl --n-c 128
"""


@click.command("prompts", epilog=_EXAMPLES)
@click.argument("paths", metavar="FILES...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--tokenizer",
    metavar="NAME|FILE",
    help="A tokenizer.json, tiktoken encoding or Hugging Face model; token ids need no tokenizer.",
)
@click.option("--group-by", metavar="FIELD", help="JSON field that names a prompt's group.  [default: group]")
@click.option(
    "--n-c",
    type=click.IntRange(0, 1 << 20),
    default=512,
    show_default=True,
    help="Number of completion tokens after each prompt.",
)
@click.option(
    "--chunk-size", type=click.IntRange(1), default=64, show_default=True, help="Number of tokens of a chunk."
)
@click.option(
    "--model", default="llama2-7b", show_default=True, help="Model, or its config.json, to compute the bytes of K/V."
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the prompts as requests of --n-c tokens, for replays and `chunkbench load --trace`.",
)
@click.option(
    "--experiment",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write an experiment with these prompts, as YAML.",
)
@format_option("documents", "records", "data")
def command(
    paths: tuple[Path, ...],
    tokenizer: str | None,
    group_by: str | None,
    n_c: int,
    chunk_size: int,
    model: str,
    trace: Path | None,
    experiment: Path | None,
    form: str,
) -> None:
    """Count the leading tokens that the prompts in FILES have in common, for each group of prompts.

    A .jsonl file holds a prompt in every line, a .json file holds a list of prompts. A prompt is a text, a list of
    token ids, a list of chat messages, or an object with prompt, token_ids or messages, and maybe a group. Any other
    file is one prompt. Without names, a group is a .json or .jsonl file, or a folder of text files. If the tokenizer
    is on this machine, nothing is downloaded.
    """
    from chunkbench.bench.analysis.sharing import sharing
    from chunkbench.llama import ShapeError, shape_of
    from chunkbench.report.sharing import MOST_SEQUENCES, document
    from chunkbench.report.sharing import experiment as as_experiment
    from chunkbench.traffic.live import forest_of
    from chunkbench.traffic.prompt_sets import PromptsError, grouped, read

    if trace is not None:
        refuse_existing(trace)
    if experiment is not None:
        experiment = new_experiment(experiment)
    try:
        shape = shape_of(model)
        prompts = read(paths, group_by)
        if not prompts:
            fail(f"{', '.join(map(str, paths))}: no prompt in it")
        if tokenizer and all(prompt.tokens is not None for prompt in prompts):
            click.echo("--tokenizer has no effect: all prompts are token ids", err=True)
        groups = grouped(prompts, tokenizer)
    except (PromptsError, ShapeError) as error:
        fail(error)
    stats = sharing(groups, chunk_size, n_c)
    if experiment is not None:
        forests = [forest_of(group[:MOST_SEQUENCES]) for group in groups.values()]
        write_experiment(experiment, as_experiment(stats, forests, shape, chunk_size, max(1, n_c)))
        click.echo(f"wrote {experiment}; measure it: chunkbench run {experiment}", err=True)
    if trace is not None:
        lines = [json.dumps({"prompt": ids, "max_tokens": max(1, n_c)}) for group in groups.values() for ids in group]
        write_text(trace, "\n".join(lines) + "\n")
        click.echo(f"wrote {trace}; describe it: chunkbench traces {trace}", err=True)
    show(document(stats, shape, chunk_size, n_c), form)
