"""Shows what `chunkbench load` measured: one load, or the steps of a ladder."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from chunkbench.report.model import Column, Output, Table
from chunkbench.report.numbers import NOTHING, count, percent, significant
from chunkbench.traffic.cache_hits import CacheHits, HitShares, hit_shares
from chunkbench.traffic.ladder import Step
from chunkbench.traffic.request_result import LoadNumbers, Objective, Quantiles, figure_of

if TYPE_CHECKING:
    from chunkbench.traffic.load.measurement import Measurement

_MOST_REASONS = 5
"""At most this number of reasons of failures are printed."""
_FULL_CPU = 0.9
"""CPUs that the client, which has one thread, may keep busy without a warning."""


@dataclasses.dataclass(frozen=True)
class Load:
    """One load, when it has ended or was interrupted."""

    measured: Measurement
    numbers: LoadNumbers
    control: bool
    """Whether the requests share nothing (`--control`)."""
    step: Step
    interrupted: bool = False

    @property
    def data(self) -> dict[str, Any]:
        hits = self.measured.cache_hits
        return {
            **dataclasses.asdict(self.numbers),
            "failures": dict(self.failures.most_common()),
            "prompt_cache": dataclasses.asdict(hits) if hits else None,
            "hits": [shares._asdict() for shares in hit_shares(self.measured.exchanges)],
            "client_cpu": self.measured.client_cpu,
            "interrupted": self.interrupted,
        }

    @property
    def failures(self) -> Counter[str]:
        failed = (request for request in self.measured.requests if request.status not in ("ok", "cancelled"))
        return Counter(f"{request.status}: {request.reason}" for request in failed)

    @property
    def warnings(self) -> tuple[str, ...]:
        hits, cpu = self.measured.cache_hits, self.measured.client_cpu
        doubt = hits.doubt(self.control) if hits else ""
        delay = self.numbers.sending_delay
        late = full = ""
        if self.numbers.client_late and delay:
            late = f"The client sent requests late, by {significant(delay.mean * 1e3, 3)} ms on average"
            late += f" and {significant(delay.p99 * 1e3, 3)} ms at p99: a part of these latencies is its own."
        if cpu > _FULL_CPU:
            full = f"The client used {percent(cpu)} of a CPU: it may be what limits these rates."
        return (*self.measured.plan.notes, *filter(None, (doubt, late, full)))


def missing_figures(objectives: Sequence[Objective], loads: Sequence[Load]) -> str:
    """A text on an objective whose figure no answered request has; empty if there is none."""
    answered = [request for load in loads for request in load.measured.requests if request.status == "ok"]
    for objective in objectives if answered else ():
        if all(figure_of(objective.figure, request) is None for request in answered):
            return f"--objective {objective.figure}: this server's answers do not give this figure; leave it out"
    return ""


def document(load: Load) -> Output:
    """Show one load."""
    numbers, measured = load.numbers, load.measured
    planned = len(measured.plan.requests)
    lines = (
        ("normalized latency, ms/token", numbers.normalized_latency, 1e3),
        ("latency, s", numbers.latency, 1.0),
        ("time to first token, ms", numbers.time_to_first_token, 1e3),
        ("time per token, ms", numbers.time_per_token, 1e3),
        ("gap between tokens (ITL), ms", numbers.gap, 1e3),
        ("delay of sending, ms", numbers.sending_delay, 1e3),
    )

    def quantile(of: str) -> Column[tuple[str, Quantiles, float]]:
        return Column(of, lambda line: significant(getattr(line[1], of) * line[2], 3))

    name: Column[tuple[str, Quantiles, float]] = Column("", lambda line: line[0], align="left")
    columns = (name, *map(quantile, ("mean", "p50", "p90", "p95", "p99")))
    rates = f"{significant(numbers.requests_per_s, 3)} requests/s, {significant(numbers.tokens_per_s, 3)} tokens/s"
    headline = [rates if numbers.answered else "No request was answered"]
    if numbers.goodput_per_s is not None:
        headline.append(f"{significant(numbers.goodput_per_s, 3)} requests/s meet the objective")
    if numbers.cached_share is not None:
        headline.append(f"{percent(numbers.cached_share)} of the prompt tokens were cached")
    if numbers.cancelled:
        headline.append(f"{numbers.cancelled} were not answered when the load was interrupted")
    known = [line for line in lines if line[1] is not None]
    hits = measured.cache_hits
    shares = hit_shares(measured.exchanges)
    return Output(
        title=f"{numbers.answered} of {planned} requests answered in {numbers.seconds:.1f} s",
        warnings=load.warnings,
        headline="; ".join(headline),
        tables=(
            *([Table("", columns, known)] if numbers.answered else []),
            *([_hits(hits)] if hits else []),
            *([_shares(shares)] if len(shares) > 1 else []),
        ),
        statuses=_failed(load),
        data=load.data,
    )


def ladder_document(loads: Sequence[Load], saturated: str) -> Output:
    """Show the steps of a ladder in one table. `saturated`: why the ladder stopped early; empty if it did not."""

    def time(of: str, which: str, factor: float = 1e3) -> Callable[[Load], str]:
        def text(load: Load) -> str:
            quantiles = getattr(load.numbers, of)
            return NOTHING if quantiles is None else significant(getattr(quantiles, which) * factor, 3)

        return text

    columns: list[Column[Load]] = [
        Column("load", lambda load: str(load.step), align="left"),
        Column("answered", lambda load: f"{load.numbers.answered} of {len(load.measured.plan.requests)}"),
        Column("requests/s", lambda load: significant(load.numbers.requests_per_s, 3)),
        Column("tokens/s", lambda load: significant(load.numbers.tokens_per_s, 3)),
        Column("first token, ms: p50", time("time_to_first_token", "p50")),
        Column("first token: p99", time("time_to_first_token", "p99")),
        Column("gap, ms: p50", time("gap", "p50")),
        Column("gap: p99", time("gap", "p99")),
        Column("normalized, ms/token: p50", time("normalized_latency", "p50")),
    ]
    if any(load.numbers.goodput_per_s is not None for load in loads):
        columns.append(Column("within objectives/s", lambda load: significant(load.numbers.goodput_per_s or 0.0, 3)))
    if any(load.numbers.cached_share is not None for load in loads):
        columns.append(Column("cached", lambda load: percent(load.numbers.cached_share)))
    best = max(loads, key=lambda load: load.numbers.requests_per_s)
    most = f"At most {significant(best.numbers.requests_per_s, 3)} requests/s were answered, at {best.step}."
    notes = [f"{load.step}: {note}" for load in loads for note in (*load.warnings, *_failed(load))]
    if loads[-1].interrupted:
        notes.append(f"{loads[-1].step}: interrupted")
    steps = [{**load.step.axis, **load.data} for load in loads]
    return Output(
        title=f"A ladder of {count(len(loads), 'step')}",
        headline=f"{most} {saturated[:1].upper()}{saturated[1:]}".strip(),
        tables=(Table("", tuple(columns), loads),),
        statuses=tuple(notes),
        data={"steps": steps, "saturated": saturated},
    )


def _failed(load: Load) -> tuple[str, ...]:
    planned = len(load.measured.plan.requests)
    named = [f"failed, {reason} ({count} of {planned})" for reason, count in load.failures.most_common(_MOST_REASONS)]
    if len(load.failures) > _MOST_REASONS:
        named.append(f"failed for {len(load.failures) - _MOST_REASONS} other reasons: --format json names all")
    return tuple(named)


def _hits(hits: CacheHits) -> Table:
    def part(tokens: int | None) -> tuple[int | None, float | None]:
        return tokens, None if tokens is None else tokens / hits.prompt_tokens

    named = f"found in the server's cache ({hits.source or 'source unknown'})"
    lines: list[tuple[str, int | None, float | None]] = [
        (named, *part(hits.cached_tokens)),
        ("the most that was found for a single request", hits.most_cached, None),
        (f"shared by the requests themselves, and sent before ({hits.unit})", None, hits.shared),
        ("computed by this server", *part(hits.computed_tokens)),
        ("computed by a server that shares nothing", *part(hits.prompt_tokens)),
    ]
    columns: tuple[Column[tuple[str, int | None, float | None]], ...] = (
        Column("tokens of prompts", lambda line: line[0], align="left"),
        Column("tokens", lambda line: "-" if line[1] is None else f"{line[1]:,}"),
        Column("share", lambda line: "-" if line[2] is None else percent(line[2])),
    )
    return Table("", columns, lines)


def _shares(shares: Sequence[HitShares]) -> Table:
    columns: tuple[Column[HitShares], ...] = (
        Column("found in the server's cache, by", lambda one: one.of, align="left"),
        Column("number", lambda one: str(one.number)),
        Column("p10", lambda one: percent(one.p10)),
        Column("p50", lambda one: percent(one.p50)),
        Column("p90", lambda one: percent(one.p90)),
    )
    return Table("", columns, shares)
