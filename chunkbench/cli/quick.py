"""`chunkbench quick`: measures in a minute how much memory and time shared prefixes save on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from chunkbench.cli.output import command_line, fail, new_run, open_page, run_exit_code


@click.command(
    "quick",
    epilog="""\b
    Examples:
      chunkbench quick
      chunkbench quick --model llama3-8b --open
      chunkbench quick --model models/mine/config.json --n-p 3000 --n-s 2500 --batch 16
      chunkbench quick --prompts traffic.jsonl --tokenizer cl100k_base
    """,
)
@click.option(
    "--model", default="llama2-7b", show_default=True, metavar="NAME", help="Name of a known model, or a config.json."
)
@click.option("--n-p", type=click.IntRange(1, 1 << 17), help="Number of tokens of a prompt.  [default: 1280]")
@click.option(
    "--n-s",
    type=click.IntRange(0, 1 << 17),
    help="Number of leading tokens that all prompts share.  [default: four fifths of --n-p]",
)
@click.option("--batch", type=click.IntRange(1, 256), help="Number of sequences decoded together.  [default: 32]")
@click.option(
    "--prompts",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File of prompts. Their lengths and shared tokens replace --n-p, --n-s and --batch. Repeatable.",
)
@click.option("--tokenizer", metavar="NAME|FILE", help="Tokenizer if --prompts is text; see `chunkbench prompts`.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory [results/runs/quick-TIME].")
@click.option("--open", "show", is_flag=True, help="Open the report in the browser.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    n_p: int | None,
    n_s: int | None,
    batch: int | None,
    prompts: tuple[Path, ...],
    tokenizer: str | None,
    out: Path | None,
    show: bool,
    quiet: bool,
) -> None:
    """Measure decode attention at one point: the shape of your model, and prompts like yours.

    Prints how much K/V memory sharing saves in all layers of the model, and how much faster decode attention
    becomes. The exit codes are those of `chunkbench run`.
    """
    from chunkbench.bench.experiment import load_experiment
    from chunkbench.bench.runner.executor import LocalExecutor
    from chunkbench.bench.runner.run import run_experiment
    from chunkbench.bench.runner.target import resolve_target
    from chunkbench.cli.progress import RunProgress
    from chunkbench.llama import ShapeError, shape_of
    from chunkbench.report.build import build
    from chunkbench.report.files import write_all
    from chunkbench.workloads.decode.headline import gains

    if prompts and (n_p, n_s, batch) != (None, None, None):
        raise click.UsageError("--prompts states --n-p, --n-s and --batch; leave them out")
    try:
        shape = shape_of(model)
    except ShapeError as error:
        fail(error)
    if prompts:
        lengths, description = _of_prompts(prompts, tokenizer)
    else:
        tokens, sequences = n_p or 1280, batch or 32
        shared = tokens * 4 // 5 if n_s is None else n_s
        if shared > tokens:
            raise click.BadParameter(f"{shared} shared tokens do not fit into prompts of {tokens}", param_hint="--n-s")
        lengths = {"n_p": tokens, "n_s": shared, "batch_size": sequences}
        description = f"{sequences} requests of {tokens} tokens, {shared} of them shared"
    axes = lengths | {
        "heads": shape.num_attention_heads,
        "kv_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
    }
    experiment = load_experiment("quick", {axis: str(value) for axis, value in axes.items()}, "chunkbench quick")
    out = out or new_run("quick")
    with RunProgress(quiet) as progress:
        outcome = run_experiment(
            experiment, LocalExecutor(resolve_target(experiment)), out, False, command_line(), progress
        )
    if not outcome.run.cases:
        click.echo("interrupted before anything was measured", err=True)
        ctx.exit(130)
    report = build(outcome.run)
    write_all(outcome.run, report)
    click.echo(f"{description}; {shape.name}, on this machine:")
    for line in gains(report, shape):
        click.echo(f"  {line}")
    click.echo(f"report: {out / 'report.html'}")
    if show:
        open_page(out / "report.html")
    ctx.exit(130 if outcome.interrupted else run_exit_code(case.status for case in outcome.run.cases))


def _of_prompts(paths: tuple[Path, ...], tokenizer: str | None) -> tuple[dict[str, object], str]:
    """Axes, and a description, of the forest of prompts: the first prompts of the largest group in these files."""
    from chunkbench.report.numbers import count
    from chunkbench.report.sharing import MOST_SEQUENCES
    from chunkbench.traffic.live import forest_of
    from chunkbench.traffic.prompt_sets import PromptsError, grouped, read

    try:
        groups = grouped(read(paths), tokenizer)
    except PromptsError as error:
        fail(error)
    if not groups:
        fail(f"{', '.join(map(str, paths))}: no prompt in it")
    name, prompts = max(groups.items(), key=lambda group: len(group[1]))
    chosen = prompts[:MOST_SEQUENCES]
    part = f" of {len(prompts):,}" if len(chosen) < len(prompts) else ""
    group = f" in {name}, the largest of {len(groups)} groups" if len(groups) > 1 else ""
    shortest, longest = min(map(len, chosen)), max(map(len, chosen))
    lengths = f"{shortest:,}" if shortest == longest else f"{shortest:,} to {longest:,}"
    description = f"{count(len(chosen), 'prompt')}{part}{group}, of {lengths} tokens, with their shared prefixes"
    return {"tree": json.dumps(forest_of(chosen))}, description
