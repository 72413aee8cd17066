"""`chunkbench load`: send requests to a server and print its latencies."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkbench.cli.options import FiniteRange
from chunkbench.cli.output import fail, format_option, show, status_line

if TYPE_CHECKING:
    from chunkbench.report.model import Output, Table
    from chunkbench.traffic import PlannedRequest, Prompt
    from chunkbench.traffic.cache_hits import CacheHits, Exchange
    from chunkbench.traffic.load import Tokens
    from chunkbench.traffic.request_result import LoadNumbers, Quantiles, RequestResult

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


ANSWER_TOKENS = 64
"""Tokens to generate if nothing else is asked for."""
_MOST_WAIT_S = 86_400.0
"""A trace whose first request is due later has the time of a clock."""
_MOST_REASONS = 5
"""So many reasons of failures are printed."""


@click.command("load", epilog=EPILOG, short_help="Measure a server that speaks OpenAI's protocol.")
@click.argument("url")
@click.option("--model", help="The model's name.  [default: the one that the server has]")
@click.option("--rate", type=FiniteRange(0, min_open=True), help="Requests per second, open loop.")
@click.option("--clients", type=click.IntRange(1), help="Closed loop: clients that send one request after the other.")
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "gamma", "constant"]),
    default="poisson",
    show_default=True,
    help="Gaps between requests of the open loop.",
)
@click.option(
    "--spread",
    type=FiniteRange(1e-3, 1e3),
    default=1.0,
    show_default=True,
    help="gamma: standard deviation of the gaps over their mean.",
)
@click.option(
    "--requests",
    "count",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Requests to send; of a published trace or of texts the first so many (of texts: lines).",
)
@click.option("--n-p", type=click.IntRange(1), default=1024, show_default=True, help="Tokens of a prompt.")
@click.option("--n-s", type=click.IntRange(0), default=0, show_default=True, help="Leading tokens that prompts share.")
@click.option("--prompts", type=click.IntRange(1), default=1, show_default=True, help="Different shared prefixes.")
@click.option(
    "--n-c",
    type=click.IntRange(1),
    help="Tokens to generate.  [default: 64; of texts as many as the model makes, at most 512]",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Requests from a file: JSON objects with prompt (token ids), max_tokens and maybe due (seconds), one a line; "
    "or a published trace (see `chunkbench traces`), with drawn tokens.",
)
@click.option(
    "--texts",
    metavar="NAME|FILE",
    help="Real text: a bundled set (questions, conversations), or a file of JSON objects with text, messages or turns, "
    "one a line.",
)
@click.option(
    "--control",
    is_flag=True,
    help="Begin each request with a word of its own (token ids: other first ids), so that no cache helps.",
)
@click.option("--longest", type=click.IntRange(2), help="Leave out longer requests of a published trace (tokens).")
@click.option("--vocabulary", type=click.IntRange(2), default=2048, show_default=True, help="Token ids are below this.")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws arrivals and prompts.")
@click.option("--warm-up", type=click.IntRange(0), default=4, show_default=True, help="Other requests sent before.")
@click.option("--objective", type=FiniteRange(0, min_open=True), help="Most ms per token, for the goodput.")
@click.option("--timeout", type=FiniteRange(0, min_open=True), default=600.0, show_default=True, help="Seconds.")
@click.option("--keep-eos", is_flag=True, help="Do not send ignore_eos, for servers that refuse it.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a line of JSON for each request.")
@format_option("documents", "data")
def command(url: str, **options: Any) -> None:
    """Measure the server at URL, which speaks OpenAI's protocol and takes token ids as prompts, or text (--texts).

    Due times and prompts are drawn before the first request is sent. Latency counts from when a request was due, not
    from when it was sent: a request that waited in the client has waited. Prompts differ from seed to seed; a server
    that keeps prefixes finds those of an earlier call with the same seed, so give each call its own. What the server
    found in its cache is printed beside what the requests share by themselves; --control sends them with nothing to
    find.

    Ctrl-C prints what was measured so far. The key in OPENAI_API_KEY is sent. Exit code 3 if a request failed, 2 if
    --out could not be written.
    """
    import asyncio

    try:
        from chunkbench.traffic.load import LoadError, LoadOptions, cached_so_far, describe_server, send
    except ModuleNotFoundError as error:
        fail(str(error))
    from chunkbench.traffic import Chat, TraceError, control
    from chunkbench.traffic.cache_hits import Exchange, cache_hits
    from chunkbench.traffic.request_result import load_numbers

    if options["rate"] is not None and options["clients"] is not None:
        fail("give --rate for an open loop or --clients for a closed one, not both")
    if (options["rate"], options["clients"], options["trace"]) == (None, None, None):
        fail("give --rate for an open loop, or --clients for a closed one")
    if options["texts"] and options["trace"]:
        fail("give --trace or --texts, not both")
    try:
        plan, notes = _plan(options)
        if options["control"]:
            plan = control(plan, options["vocabulary"])
        warm_up = _warm_up(plan, options)
    except (TraceError, ValueError) as error:
        fail(error)
    facts: list[RequestResult] = []
    exchanges: list[Exchange] = []
    out: _Out | None = None
    how = LoadOptions(options["clients"], options["timeout"], not options["keep_eos"])

    def ended(request: RequestResult, prompt: Prompt, answer: Tokens) -> None:
        facts.append(request)
        said = (prompt.text(), prompt.text(answer.text)) if isinstance(prompt, Chat) else (prompt, prompt)
        exchanges.append(Exchange(request, *said))
        if out is not None:
            out.add(request)
        status_line(f"{len(facts)} of {len(plan)} requests answered")

    async def measure() -> tuple[float, float | None]:
        nonlocal out
        target = await describe_server(url, options["model"])
        longest = max((len(r.prompt) + r.max_tokens for r in plan if isinstance(r.prompt, tuple)), default=0)
        if target.max_length is not None and longest > target.max_length:
            raise LoadError(f"requests have up to {longest} tokens, {target.model} takes {target.max_length}")
        out = _Out(options["out"]) if options["out"] else None
        if warm_up:
            await send(target, warm_up, dataclasses.replace(how, clients=len(warm_up)))
        before = await cached_so_far(target)
        measured = await send(target, plan, how, ended)
        after = await cached_so_far(target)
        return measured.client_cpu, None if before is None or after is None else after - before

    cpu, counted, interrupted = 0.0, None, False
    try:
        cpu, counted = asyncio.run(measure())
    except (LoadError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        interrupted = True
    status_line("")
    objective = options["objective"]
    numbers = load_numbers(facts, objective / 1e3 if objective else None)
    found = cache_hits(exchanges, counted)
    notes = (*notes, *_doubts(found, options["control"]))
    show(_output(numbers, found, cpu, facts, len(plan), interrupted, notes), options["form"])
    unwritten = out.problem if out is not None else ""
    if unwritten:
        click.echo(f"chunkbench load: {unwritten}", err=True)
    if interrupted or numbers.failed or unwritten:
        click.get_current_context().exit(130 if interrupted else 2 if unwritten else 3)


class _Out:
    """The file of `--out`. A line that cannot be written is counted, not raised: the figures need no file."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self._path = path
        self._file = path.open("wb", buffering=0)
        self._bytes = self._written = self._lost = 0
        self._reason = ""

    def add(self, request: RequestResult) -> None:
        """Write a line, whole or not at all."""
        line = rest = (request.model_dump_json() + "\n").encode()
        try:
            while rest and not self._lost:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._reason = error.strerror or str(error)
            with contextlib.suppress(OSError):  # a pipe cannot be cut
                self._file.truncate(self._bytes)
        if rest:
            self._lost += 1
        else:
            self._written += 1
            self._bytes += len(line)

    @property
    def problem(self) -> str:
        """What was not written, and why; empty if all was."""
        if not self._lost:
            return ""
        lacks = f"it lacks {self._lost} of {self._lost + self._written} requests"
        return f"{self._path} cannot be written: {self._reason}; {lacks}"


def _plan(options: dict[str, Any]) -> tuple[list[PlannedRequest], tuple[str, ...]]:
    """The requests that the options describe, and what a reader must know of a trace. Raises TraceError and
    ValueError."""
    from chunkbench.traffic import Arrivals, PlannedRequest, Prompts, draw_prompts, due_times, read_texts

    rate, seed, count = options["rate"], options["seed"], options["count"]
    arrivals = Arrivals(options["arrivals"], options["spread"])
    if options["texts"]:
        texts = read_texts(options["texts"])
        lines = min(count, len(texts.lines))
        dues = due_times(arrivals, rate, lines, seed) if rate is not None else [0.0] * lines
        return texts.plan(dues, options["n_c"]), ()
    if options["trace"]:
        requests, timed, notes = _trace(options)
        if rate is not None:
            dues = due_times(arrivals, rate, len(requests), seed)
            moved = [dataclasses.replace(one, due=due, after=None) for one, due in zip(requests, dues, strict=True)]
            return moved, notes
        if not timed and options["clients"] is None:
            raise ValueError(f"{options['trace']} does not say when requests are due: give --rate or --clients")
        first = min(request.due for request in requests)
        if first > _MOST_WAIT_S and options["clients"] is None:
            raise ValueError(
                f"{options['trace']}: the first request is due {first:,.0f} s after the start, more than a day. `due` "
                f"counts from the start of the load: subtract the first (jq -c '.due -= {first!r}' FILE > NEW), or "
                "give --rate"
            )
        return requests, notes
    prompts = Prompts(options["n_p"], options["n_s"], options["prompts"])
    drawn = draw_prompts(prompts, count, options["vocabulary"], seed)
    dues = due_times(arrivals, rate, count, seed) if rate is not None else [0.0] * count
    n_c = options["n_c"] or ANSWER_TOKENS
    return [PlannedRequest(due, prompt, n_c) for due, prompt in zip(dues, drawn, strict=True)], ()


def _trace(options: dict[str, Any]) -> tuple[list[PlannedRequest], bool, tuple[str, ...]]:
    """The requests of the file, whether it says when they are due, and its notes. Raises TraceError and ValueError."""
    from chunkbench.traffic import PlannedRequest, draw_traffic, read_traffic

    trace = read_traffic(options["trace"])
    if trace.has_token_ids:
        requests = [PlannedRequest(r.due, r.prompt, r.answer_tokens) for r in trace.requests]
    else:
        requests = draw_traffic(trace, options["count"], options["vocabulary"], options["seed"], options["longest"])
    return requests, trace.timed, trace.notes


def _warm_up(plan: list[PlannedRequest], options: dict[str, Any]) -> list[PlannedRequest]:
    """Requests as long as those of the plan, with other tokens or another first word."""
    from chunkbench.traffic import PlannedRequest, Prompts, control, draw_prompts

    if options["texts"]:
        first = [dataclasses.replace(request, due=0.0) for request in plan if request.after is None]
        return control(first[: options["warm_up"]], options["vocabulary"])
    length = sorted(len(request.prompt) for request in plan if isinstance(request.prompt, tuple))[len(plan) // 2]
    drawn = draw_prompts(Prompts(length), options["warm_up"], options["vocabulary"], f"warm-up {options['seed']}")
    return [PlannedRequest(0.0, prompt, plan[0].max_tokens) for prompt in drawn]


def _doubts(found: CacheHits | None, control: bool) -> tuple[str, ...]:
    """Why latencies may say more about what the cache held than about the server."""
    from chunkbench.traffic.cache_hits import SLACK_TOKENS

    if found is None or found.cached_tokens is None:
        return ()
    if control and (found.most_cached or 0) > SLACK_TOKENS:
        most = f"{found.most_cached} tokens of a request were found in the cache"
        return (f"The control fails: {most}. A long chat template, or other clients?",)
    if not control and found.warm:
        return (
            "The cache was warm: the server found more than the requests share by themselves, from earlier calls or "
            "other clients. Restart it, or give another --seed; --control shows its speed without a cache.",
        )
    return ()


def _hits(found: CacheHits) -> Table:
    from chunkbench.report.model import Column, Table
    from chunkbench.report.numbers import percent

    def part(tokens: int | None) -> tuple[int | None, float | None]:
        return tokens, None if tokens is None else tokens / found.prompt_tokens

    named = f"found in the server's cache ({found.source or 'it does not say'})"
    lines: list[tuple[str, int | None, float | None]] = [
        (named, *part(found.cached_tokens)),
        ("most of one request", found.most_cached, None),
        (f"shared by the requests themselves ({found.unit})", None, found.shared),
        ("computed by this server", *part(found.computed_tokens)),
        ("computed by a server that shares nothing", *part(found.prompt_tokens)),
    ]
    columns: tuple[Column[tuple[str, int | None, float | None]], ...] = (
        Column("tokens of prompts", lambda line: line[0], align="left"),
        Column("tokens", lambda line: "-" if line[1] is None else f"{line[1]:,}"),
        Column("of all", lambda line: "-" if line[2] is None else percent(line[2])),
    )
    return Table("", columns, lines)


def _output(
    numbers: LoadNumbers,
    found: CacheHits | None,
    cpu: float,
    facts: list[RequestResult],
    planned: int,
    interrupted: bool,
    notes: tuple[str, ...],
) -> Output:
    from chunkbench.report.model import Column, Output, Table
    from chunkbench.report.numbers import percent, significant

    lines = (
        ("normalized latency, ms/token", numbers.normalized_latency, 1e3),
        ("latency, s", numbers.latency, 1.0),
        ("time to first token, ms", numbers.time_to_first_token, 1e3),
        ("time per token, ms", numbers.time_per_token, 1e3),
        ("sent after due, ms", numbers.sending_delay, 1e3),
    )

    def quantile(of: str) -> Column[tuple[str, Quantiles, float]]:
        return Column(of, lambda line: significant(getattr(line[1], of) * line[2], 3))

    name: Column[tuple[str, Quantiles, float]] = Column("", lambda line: line[0], align="left")
    columns = (name, *map(quantile, ("mean", "p50", "p90", "p99")))
    rates = f"{significant(numbers.requests_per_s, 3)} requests/s, {significant(numbers.tokens_per_s, 3)} tokens/s"
    told = [rates if numbers.answered else "No request was answered"]
    if numbers.goodput_per_s is not None:
        told.append(f"{significant(numbers.goodput_per_s, 3)} requests/s meet the objective")
    if numbers.cached_share is not None:
        told.append(f"{percent(numbers.cached_share)} of the prompt tokens were cached")
    bottleneck = f"The client was a bottleneck: it sent late, or its CPU was full ({percent(cpu)})."
    failures = Counter(f"{one.status}: {one.reason}" for one in facts if one.status not in ("ok", "cancelled"))
    named = [f"failed, {reason} ({count} of {planned})" for reason, count in failures.most_common(_MOST_REASONS)]
    if len(failures) > _MOST_REASONS:
        named.append(f"failed for {len(failures) - _MOST_REASONS} other reasons: --format json names all")
    if numbers.cancelled:
        told.append(f"{numbers.cancelled} were not answered when the load was interrupted")
    return Output(
        title=f"{numbers.answered} of {planned} requests answered in {numbers.seconds:.1f} s",
        warnings=(*notes, bottleneck) if numbers.client_late or cpu > 0.9 else notes,
        headline="; ".join(told),
        tables=(
            *([Table("", columns, [line for line in lines if line[1] is not None])] if numbers.answered else []),
            *([_hits(found)] if found else []),
        ),
        statuses=tuple(named),
        data={
            **dataclasses.asdict(numbers),
            "failures": dict(failures.most_common()),
            "prompt_cache": dataclasses.asdict(found) if found else None,
            "client_cpu": cpu,
            "interrupted": interrupted,
        },
    )
