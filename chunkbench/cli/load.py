"""`chunkbench load`: sends requests to a server, and prints its latencies."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkbench.cli.options import FiniteRange, gathered
from chunkbench.cli.output import fail, format_option, show, status_line
from chunkbench.traffic.load_plan import PlanOptions

if TYPE_CHECKING:
    from chunkbench.report.model import Output, Table
    from chunkbench.traffic.cache_hits import CacheHits
    from chunkbench.traffic.load.measurement import Measurement
    from chunkbench.traffic.request_result import LoadNumbers, Quantiles

EPILOG = """\b
Examples:
  chunkbench load http://127.0.0.1:8000 --rate 4 --requests 64
  chunkbench load http://127.0.0.1:8000 --rate 2 --n-p 2048 --n-s 2048 --n-c 64 --out requests.jsonl
  chunkbench load http://127.0.0.1:8000 --clients 32 --requests 96       capacity: requests per second
  chunkbench load http://127.0.0.1:8000 --trace traffic.jsonl --format json
  chunkbench load http://127.0.0.1:8000 --trace conversation_trace.jsonl --longest 4096 --requests 200 --rate 1
  chunkbench load http://127.0.0.1:8000 --texts questions --clients 8            real text: a bundled set, or a file
  chunkbench load http://127.0.0.1:8000 --texts questions --clients 8 --control  the same, with nothing to share
"""

_MOST_REASONS = 5
"""At most this number of reasons of failures are printed."""


@click.command("load", epilog=EPILOG, short_help="Measure a server that speaks OpenAI's protocol.")
@click.argument("url")
@click.option("--model", help="The model's name in requests.  [default: the server's only model]")
@click.option("--rate", type=FiniteRange(0, min_open=True), help="Open loop: requests per second.")
@click.option(
    "--clients",
    type=click.IntRange(1),
    help="Closed loop: number of clients, each of which sends one request after the other.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "gamma", "constant"]),
    default="poisson",
    show_default=True,
    help="Open loop: distribution of the gaps between requests.",
)
@click.option(
    "--spread",
    type=FiniteRange(1e-3, 1e3),
    default=1.0,
    show_default=True,
    help="With gamma: standard deviation of the gaps divided by their mean.",
)
@click.option(
    "--requests",
    "count",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Number of requests to send. From a trace: its first N requests; from a text file: its first N lines.",
)
@click.option("--n-p", type=click.IntRange(1), default=1024, show_default=True, help="Number of tokens of a prompt.")
@click.option(
    "--n-s", type=click.IntRange(0), default=0, show_default=True, help="Number of leading tokens that prompts share."
)
@click.option(
    "--prompts", type=click.IntRange(1), default=1, show_default=True, help="Number of different shared prefixes."
)
@click.option(
    "--n-c",
    type=click.IntRange(1),
    help="Number of tokens to generate.  [default: 64; for texts: until the model stops, at most 512]",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read requests from a file: one JSON object per line with prompt (token ids), max_tokens and maybe due "
    "(seconds); or a published trace (see `chunkbench traces`), whose tokens are drawn.",
)
@click.option(
    "--texts",
    metavar="NAME|FILE",
    help="Send real text: a bundled set (questions, conversations), or a file with one JSON object per line, with "
    "text, messages or turns.",
)
@click.option(
    "--control",
    is_flag=True,
    help="Give each request its own first word, or its own first token ids, so that no cache helps.",
)
@click.option(
    "--longest", type=click.IntRange(2), help="With a published trace: leave out requests with more tokens than this."
)
@click.option(
    "--vocabulary", type=click.IntRange(2), default=2048, show_default=True, help="Draw token ids below this number."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of arrivals and prompts.")
@click.option(
    "--warm-up",
    type=click.IntRange(0),
    default=4,
    show_default=True,
    help="Number of other requests to send before the measurement.",
)
@click.option(
    "--objective",
    type=FiniteRange(0, min_open=True),
    help="Goodput counts requests with at most this many ms per token.",
)
@click.option(
    "--timeout",
    type=FiniteRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="Maximum seconds for a request.",
)
@click.option("--keep-eos", is_flag=True, help="Do not send the field ignore_eos, which some servers refuse.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write one line of JSON per request into this file."
)
@format_option("documents", "data")
@gathered(PlanOptions)
def command(
    url: str,
    model: str | None,
    objective: float | None,
    timeout: float,
    keep_eos: bool,
    out: Path | None,
    form: str,
    options: PlanOptions,
) -> None:
    """Measure the server at URL. It must speak OpenAI's protocol, and take prompts as token ids, or as text (--texts).

    Due times and prompts are drawn before the first request is sent. Latency counts from the due time of a request, so
    time that the request waits in the client counts, too.

    Give each call its own seed: with the same seed the prompts are the same, and a server that keeps prefixes finds
    them. The output compares the tokens that the server found in its cache with the tokens that the requests share.
    With --control the requests share nothing.

    Ctrl-C prints the results so far. The key in OPENAI_API_KEY is sent. Exit code 3 if a request failed, 2 if --out
    could not be written.
    """
    try:
        from chunkbench.traffic.load import LoadError, LoadOptions
        from chunkbench.traffic.load.measurement import Measurement
    except ModuleNotFoundError as error:
        fail(str(error))
    from chunkbench.traffic.request_result import load_numbers

    if options.rate is not None and options.clients is not None:
        fail("give --rate for an open loop or --clients for a closed one, not both")
    if (options.rate, options.clients, options.trace) == (None, None, None):
        fail("give --rate for an open loop, or --clients for a closed one")
    if options.texts and options.trace:
        fail("give --trace or --texts, not both")
    try:
        plan = options.plan()
    except ValueError as error:
        fail(error)
    planned = len(plan.requests)
    measured = Measurement(plan, out, lambda ended: status_line(f"{ended} of {planned} requests answered"))
    interrupted = False
    try:
        asyncio.run(measured.run(url, model, LoadOptions(options.clients, timeout, not keep_eos)))
    except (LoadError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        interrupted = True
    status_line("")
    numbers = load_numbers(measured.requests, objective / 1e3 if objective else None)
    show(_document(measured, numbers, options.control, interrupted), form)
    if measured.problem:
        ended = len(measured.requests)
        lacks = f"it lacks {ended - measured.written} of {ended} requests"
        click.echo(f"chunkbench load: {out} cannot be written: {measured.problem}; {lacks}", err=True)
    if interrupted or numbers.failed or measured.problem:
        click.get_current_context().exit(130 if interrupted else 2 if measured.problem else 3)


def _document(measured: Measurement, numbers: LoadNumbers, control: bool, interrupted: bool) -> Output:
    from chunkbench.report.model import Column, Output, Table
    from chunkbench.report.numbers import percent, significant

    hits, cpu = measured.cache_hits, measured.client_cpu
    planned = len(measured.plan.requests)
    lines = (
        ("normalized latency, ms/token", numbers.normalized_latency, 1e3),
        ("latency, s", numbers.latency, 1.0),
        ("time to first token, ms", numbers.time_to_first_token, 1e3),
        ("time per token, ms", numbers.time_per_token, 1e3),
        ("delay of sending, ms", numbers.sending_delay, 1e3),
    )

    def quantile(of: str) -> Column[tuple[str, Quantiles, float]]:
        return Column(of, lambda line: significant(getattr(line[1], of) * line[2], 3))

    name: Column[tuple[str, Quantiles, float]] = Column("", lambda line: line[0], align="left")
    columns = (name, *map(quantile, ("mean", "p50", "p90", "p99")))
    rates = f"{significant(numbers.requests_per_s, 3)} requests/s, {significant(numbers.tokens_per_s, 3)} tokens/s"
    headline = [rates if numbers.answered else "No request was answered"]
    if numbers.goodput_per_s is not None:
        headline.append(f"{significant(numbers.goodput_per_s, 3)} requests/s meet the objective")
    if numbers.cached_share is not None:
        headline.append(f"{percent(numbers.cached_share)} of the prompt tokens were cached")
    failed = (request for request in measured.requests if request.status not in ("ok", "cancelled"))
    failures = Counter(f"{request.status}: {request.reason}" for request in failed)
    named = [f"failed, {reason} ({count} of {planned})" for reason, count in failures.most_common(_MOST_REASONS)]
    if len(failures) > _MOST_REASONS:
        named.append(f"failed for {len(failures) - _MOST_REASONS} other reasons: --format json names all")
    if numbers.cancelled:
        headline.append(f"{numbers.cancelled} were not answered when the load was interrupted")
    doubt = hits.doubt(control) if hits else ""
    bottleneck = f"The client was a bottleneck: it sent late, or its CPU was full ({percent(cpu)})."
    doubts = (doubt, bottleneck if numbers.client_late or cpu > 0.9 else "")
    return Output(
        title=f"{numbers.answered} of {planned} requests answered in {numbers.seconds:.1f} s",
        warnings=(*measured.plan.notes, *filter(None, doubts)),
        headline="; ".join(headline),
        tables=(
            *([Table("", columns, [line for line in lines if line[1] is not None])] if numbers.answered else []),
            *([_hits(hits)] if hits else []),
        ),
        statuses=tuple(named),
        data={
            **dataclasses.asdict(numbers),
            "failures": dict(failures.most_common()),
            "prompt_cache": dataclasses.asdict(hits) if hits else None,
            "client_cpu": cpu,
            "interrupted": interrupted,
        },
    )


def _hits(hits: CacheHits) -> Table:
    from chunkbench.report.model import Column, Table
    from chunkbench.report.numbers import percent

    def part(tokens: int | None) -> tuple[int | None, float | None]:
        return tokens, None if tokens is None else tokens / hits.prompt_tokens

    named = f"found in the server's cache ({hits.source or 'source unknown'})"
    lines: list[tuple[str, int | None, float | None]] = [
        (named, *part(hits.cached_tokens)),
        ("found for one request, at most", hits.most_cached, None),
        (f"shared by the requests themselves ({hits.unit})", None, hits.shared),
        ("computed by this server", *part(hits.computed_tokens)),
        ("computed by a server that shares nothing", *part(hits.prompt_tokens)),
    ]
    columns: tuple[Column[tuple[str, int | None, float | None]], ...] = (
        Column("tokens of prompts", lambda line: line[0], align="left"),
        Column("tokens", lambda line: "-" if line[1] is None else f"{line[1]:,}"),
        Column("share", lambda line: "-" if line[2] is None else percent(line[2])),
    )
    return Table("", columns, lines)
