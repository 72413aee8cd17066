"""`chunkbench load`: sends requests to a server, and prints its latencies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from chunkbench.cli.load_exports import EXPORTS, aiperf_record, exported
from chunkbench.cli.options import FiniteRange, gathered
from chunkbench.cli.output import fail, format_option, show, status_line
from chunkbench.traffic.ladder import Step, saturated
from chunkbench.traffic.load_plan import PlanOptions
from chunkbench.traffic.request_result import FIGURES, Objective, load_numbers

EPILOG = """\b
Examples:
  chunkbench load http://127.0.0.1:8000 --rate 4 --requests 64
  chunkbench load http://127.0.0.1:8000 --rate 2 --n-p 2048 --n-s 2048 --n-c 64 --out requests.jsonl
  chunkbench load http://127.0.0.1:8000 --clients 32 --requests 96       capacity: requests per second
  chunkbench load http://127.0.0.1:8000 --clients 1,8,32 --figure ladder.svg           until the server is saturated
  chunkbench load http://127.0.0.1:8000 --rate 4 --objective ttft=200ms --objective itl=50ms
  chunkbench load http://127.0.0.1:8000 --rate 4 --n-s 1024 --prompts 4 --prime 4      with a warm cache
  chunkbench load http://127.0.0.1:8000 --rate 4 --format aiperf --out profile_export.jsonl > profile_export_aiperf.json
  chunkbench load http://127.0.0.1:8000 --trace traffic.jsonl --format json
  chunkbench load http://127.0.0.1:8000 --trace conversation_trace.jsonl --longest 4096 --requests 200 --rate 1
  chunkbench load http://127.0.0.1:8000 --texts questions --clients 8            real text: a bundled set, or a file
  chunkbench load http://127.0.0.1:8000 --texts questions --clients 8 --control  the same, with nothing to share
"""


class Ladder(click.ParamType[Any]):
    """The type of an option: one value, or several with commas between them, which become steps in ascending order."""

    def __init__(self, of: click.ParamType[Any]) -> None:
        self._of = of
        self.name = f"{of.name}[,...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        steps = [self._of.convert(part.strip(), param, ctx) for part in value.split(",")]
        if len(set(steps)) < len(steps):
            self.fail(f"{value} has a value twice; each step has its own.", param, ctx)
        return tuple(sorted(steps))


class ObjectiveType(click.ParamType[Any]):
    """The type of an option: a limit of a figure, such as ttft=200ms. A plain number is in ms per token."""

    name = "objective"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        figure, equals, limit = value.rpartition("=")
        if equals and figure not in FIGURES:
            self.fail(f"{figure!r} is none of {', '.join(FIGURES)}.", param, ctx)
        unit = next((unit for unit in ("ms", "s") if limit.endswith(unit)), "")
        if bool(unit) != bool(equals):
            self.fail(f"{value!r}: write FIGURE=LIMIT with a unit, such as ttft=200ms, or a number alone.", param, ctx)
        number = FiniteRange(0, min_open=True).convert(limit.removesuffix(unit), param, ctx)
        return Objective(figure or "normalized", number if unit == "s" else number / 1e3)


@click.command("load", epilog=EPILOG)
@click.argument("url")
@click.option("--model", help="The model's name in requests.  [default: the server's only model]")
@click.option(
    "--rate",
    "rates",
    type=Ladder(FiniteRange(0, min_open=True)),
    help="Open loop: requests per second. Several, as 1,2,4: one load after the other, until the server is saturated.",
)
@click.option(
    "--clients",
    type=Ladder(click.IntRange(1)),
    help="Closed loop: number of clients, each of which sends one request after the other. Several, as 1,8,32: one "
    "load after the other, until more clients do not help.",
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
    "--prime",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Send this number of shared prefixes once before the measurement, those that most requests share.",
)
@click.option(
    "--objective",
    "objectives",
    type=ObjectiveType(),
    multiple=True,
    help="Goodput counts requests within this limit, such as ttft=200ms. Give it once for each figure: "
    + "; ".join(f"{name}: {meaning}" for name, meaning in FIGURES.items())
    + ". A number alone: normalized, in ms.",
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
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one line of JSON per request into this file. With --format aiperf, the lines are AIPerf's.",
)
@click.option(
    "--figure",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the steps of a ladder into this file (.svg, .png or .pdf): answered requests against latency.",
)
@format_option("documents", "data", others=EXPORTS)
@gathered(PlanOptions)
def command(
    url: str,
    model: str | None,
    rates: tuple[float, ...] | None,
    clients: tuple[int, ...] | None,
    objectives: tuple[Objective, ...],
    timeout: float,
    keep_eos: bool,
    out: Path | None,
    figure: Path | None,
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
    from chunkbench.cli.load_document import Load, document, ladder_document, missing_figures

    steps = _steps(rates, clients, options.trace)
    if options.texts and options.trace:
        fail("give --trace or --texts, not both")
    limited = [objective.figure for objective in objectives]
    if twice := next((name for name in limited if limited.count(name) > 1), None):
        fail(f"--objective {twice} has two limits; give it once")
    if figure and len(steps) < 2:
        fail("--figure draws a ladder: give several values to --rate or --clients")
    if figure and figure.suffix not in (".svg", ".png", ".pdf"):
        fail(f"--figure {figure}: the ending must be .svg, .png or .pdf")
    if figure and not figure.absolute().parent.is_dir():
        fail(f"--figure {figure}: there is no folder {figure.parent}")
    try:
        plans = [options.plan(step, len(steps)) for step in steps]
    except ValueError as error:
        fail(error)
    loads: list[Load] = []
    stopped = ""
    for step, plan in zip(steps, plans, strict=True):
        named = f"{step}: " if len(steps) > 1 else ""
        planned = len(plan.requests)

        def report_ended(ended: int, named: str = named, planned: int = planned) -> None:
            status_line(f"{named}{ended} of {planned} requests answered")

        record = aiperf_record if form == "aiperf" else None
        measured = Measurement(plan, out, report_ended, step if len(steps) > 1 else None, record)
        sending = LoadOptions(step.clients, timeout, not keep_eos, gaps=True)
        interrupted = False
        try:
            asyncio.run(measured.run(url, model, sending))
        except (LoadError, OSError) as error:
            if not loads:
                fail(error)
            stopped = f"{step}: {error}"
            break
        except KeyboardInterrupt:
            interrupted = True
        numbers = load_numbers(measured.requests, objectives)
        best = max((load.numbers.requests_per_s for load in loads), default=0.0)
        loads.append(Load(measured, numbers, options.control, step, interrupted))
        stopped = "" if interrupted else saturated(step, measured.requests, numbers, best)
        if interrupted or (stopped and step.place + 1 < len(steps)):
            break
    status_line("")
    lacking = missing_figures(objectives, loads)
    if form in EXPORTS:
        burstiness = None if options.arrivals == "constant" else options.spread**-2
        click.echo(exported(loads, form, burstiness))
    else:
        show(document(loads[0]) if len(steps) == 1 else ladder_document(loads, stopped), form)
    if lacking:
        click.echo(f"chunkbench load: {lacking}", err=True)
    if figure:
        from chunkbench.cli.ladder_figure import draw_ladder

        draw_ladder(loads, figure)
    problem = next((load.measured for load in loads if load.measured.problem), None)
    if problem is not None:
        ended = len(problem.requests)
        lacks = f"it lacks {ended - problem.written} of {ended} requests"
        click.echo(f"chunkbench load: {out} cannot be written: {problem.problem}; {lacks}", err=True)
    if loads[-1].interrupted or problem or lacking or any(load.numbers.failed for load in loads):
        click.get_current_context().exit(130 if loads[-1].interrupted else 2 if problem or lacking else 3)


def _steps(rates: tuple[float, ...] | None, clients: tuple[int, ...] | None, trace: Path | None) -> list[Step]:
    if rates is not None and clients is not None:
        fail("give --rate for an open loop or --clients for a closed one, not both")
    if (rates, clients, trace) == (None, None, None):
        fail("give --rate for an open loop, or --clients for a closed one")
    if rates is not None:
        return [Step(rate, None, place) for place, rate in enumerate(rates)]
    return [Step(None, number, place) for place, number in enumerate(clients)] if clients is not None else [Step()]
