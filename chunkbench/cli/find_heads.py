"""`chunkbench find-heads`: finds the heads of a model that attend to earlier occurrences of a token."""

from __future__ import annotations

import os
from pathlib import Path

import click

from chunkbench.cli.output import fail, serving_libraries, status_line

_EXAMPLES = """\b
Examples:
  chunkbench find-heads smollm2-135m                       heads.json and heads.png, in some minutes
  chunkbench find-heads ~/models/Llama-3.2-1B --tokens 500 --out llama.json
  chunkbench serve smollm2-135m --heads heads.json         serve with these heads
"""


@click.command("find-heads", epilog=_EXAMPLES)
@click.argument("model")
@click.option(
    "--tokens",
    type=click.IntRange(2),
    help="Number of random tokens, read four times.  [default: 2500, or a quarter of the model's positions]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random tokens.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="bfloat16",
    show_default=True,
    help="Dtype of the weights; attention is computed in float32.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("heads.json"),
    show_default=True,
    help="File for the scores, which `serve --heads` reads. The picture has the same name with the ending .png.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only the result.")
def command(model: str, tokens: int | None, seed: int, dtype: str, out: Path, quiet: bool) -> None:
    """Find the retrieval heads of MODEL by RazorAttention's test, and write their scores to a file.

    MODEL is smollm2-135m or the folder of a checkpoint. The model reads random tokens that are repeated four times.
    Each head gets two scores. Echo: its attention to earlier occurrences of the same token. Induction: its attention
    to the tokens after them. A KV head has the scores of its best query head. Of the KV heads of all layers, the
    best 14% by induction and the best 1% by echo are retrieval heads.
    """
    if out.suffix == ".png":
        fail(f"--out {out}: names the scores; the picture is written beside them")
    if not os.access(out.parent, os.W_OK) or out.is_dir():
        fail(f"--out {out}: cannot be written")
    with serving_libraries():
        import torch

        from chunkbench.server.build import ModelChoice
        from chunkbench.server.engine import ModelError
        from chunkbench.server.engine.model import ModelNumbers, load_module
        from chunkbench.server.find_heads import INTERFACE, find_heads, tokens_for
        from chunkbench.server.heads import PAPERS_TOKENS, REPEATS
    from chunkbench.report.figures.head_scores import write_picture

    choice = ModelChoice(model, getattr(torch, dtype))
    try:
        choice.check()
        if choice.folder is None:
            fail(f"{model} has random weights here, so its heads look for nothing; give the folder of a checkpoint")
        module = load_module(choice.folder, choice.dtype, INTERFACE).eval()
    except ModelError as error:
        fail(error)
    most = ModelNumbers(module).max_length
    chosen = tokens or tokens_for(most)
    if chosen * REPEATS > most:
        fail(f"--tokens {chosen}: {REPEATS} times that is more than the {most} positions of the model")

    def advance(share: float) -> None:
        if not quiet:
            status_line(f"reading {chosen} tokens {REPEATS} times: {share:.0%}")

    try:
        scores = find_heads(module, choice.name, chosen, seed, advance)
    except ModelError as error:
        fail(error)
    if not quiet:
        status_line("")
    picture = out.with_suffix(".png")
    try:
        out.write_text(scores.as_json())
        write_picture(picture, scores.model_dump(), scores.retrieval_heads())
    except OSError as error:
        fail(f"{error.filename or out}: {error.strerror}")
    full = scores.retrieval_heads()
    found, heads = sum(map(sum, full)), len(full) * scores.kv_heads
    click.echo(f"{choice.name}: {found} of {heads} KV heads are retrieval heads ({chosen} tokens, {REPEATS} times)")
    if chosen < PAPERS_TOKENS:
        click.echo(f"the test of the paper has {PAPERS_TOKENS} tokens; this model has positions for {tokens_for(most)}")
    named = [f"{layer}.{head}" for layer, heads_ in enumerate(full) for head, is_full in enumerate(heads_) if is_full]
    click.echo(f"layer.head: {', '.join(named)}")
    click.echo(f"scores: {out}, picture: {picture}")
