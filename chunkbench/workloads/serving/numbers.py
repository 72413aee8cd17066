"""Numbers of a system under load, from its measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from chunkbench.analysis.derive import Row
from chunkbench.analysis.requests import load_numbers
from chunkbench.workloads.serving.result import ServerFacts, ServingResult

OBJECTIVE_LOAD = 90
"""The paper's objective of 40 ms per token is its machine's. Here it is the reference's normalized latency with nothing
shared, at this percentage of its own capacity."""


@dataclass(frozen=True)
class ServingNumbers:
    """Medians over the arrival seeds, and the largest peaks. Times in seconds; None where it is not known."""

    first_token_p50: float | None
    first_token_p99: float | None
    per_token_p50: float | None
    per_token_p99: float | None
    requests_per_s: float | None
    goodput_per_s: float | None
    """Requests per second that meet the objective."""
    cached_share: float | None
    peak_kv_bytes: int | None
    peak_batch: int | None
    servers: Sequence[ServerFacts]
    """What the server did, by arrival seed; empty if it tells nothing."""

    def server(self, fact: Callable[[ServerFacts], float | None]) -> float | None:
        """The median of a fact about the server."""
        return _median(map(fact, self.servers))


def serving_numbers(row: Row, objective_s: float | None = None) -> ServingNumbers | None:
    """The numbers of a row of this kind; None if nothing was measured. `objective_s`: most seconds per token."""
    facts = row.facts
    if not isinstance(facts, ServingResult) or row.derived.latency_us is None:
        return None
    numbers = [load_numbers(measurement.requests, objective_s) for measurement in facts.measurements]
    servers = [measurement.server for measurement in facts.measurements if measurement.server]
    return ServingNumbers(
        first_token_p50=_median(n.time_to_first_token.p50 if n.time_to_first_token else None for n in numbers),
        first_token_p99=_median(n.time_to_first_token.p99 if n.time_to_first_token else None for n in numbers),
        per_token_p50=_median(n.time_per_token.p50 if n.time_per_token else None for n in numbers),
        per_token_p99=_median(n.time_per_token.p99 if n.time_per_token else None for n in numbers),
        requests_per_s=_median(n.requests_per_s for n in numbers),
        goodput_per_s=_median(n.goodput_per_s for n in numbers),
        cached_share=_median(n.cached_share for n in numbers),
        peak_kv_bytes=max((s.peak_kv_bytes for s in servers if s.peak_kv_bytes is not None), default=None),
        peak_batch=max((s.peak_batch for s in servers if s.peak_batch is not None), default=None),
        servers=servers,
    )


def _median(values: Iterable[float | None]) -> float | None:
    """Of the values that are known."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def objective_s(rows: Iterable[Row], n_p: int) -> float | None:
    """The objective for prompts of n_p tokens, in seconds per token; None if it was not measured."""
    for row in rows:
        facts = row.facts
        if not isinstance(facts, ServingResult) or facts.implementation != facts.reference:
            continue
        if (facts.n_p, facts.n_s, facts.load) == (n_p, 0, OBJECTIVE_LOAD) and row.derived.latency_us is not None:
            return row.derived.latency_us / 1e6
    return None


def shares_one_prefix(axes: Mapping[str, Any]) -> bool:
    """Whether the requests of a point share one prefix of n_s tokens, or nothing, as in the paper; axis -> value.

    Only such points make a line over the rate: n_s alone does not tell apart trees and several prefixes.
    """
    return axes["n_s"] is not None and axes["prompts"] in (None, 1)


@dataclass(frozen=True)
class SustainedRate:
    """The highest rate at which a system meets an objective."""

    per_s: float
    at_least: bool
    """Whether the objective was met at every measured rate."""


def sustained_rate(spots: Iterable[tuple[float, float]], objective_s: float) -> SustainedRate | None:
    """By interpolation between the highest rate that meets the objective and the next one.

    `spots`: requests per second and seconds per token of a system, alike in all else. None if no rate meets it.
    """
    ordered = sorted(spots)
    met = [number for number, (_, latency) in enumerate(ordered) if latency <= objective_s]
    if not met:
        return None
    rate, latency = ordered[met[-1]]
    if met[-1] == len(ordered) - 1:
        return SustainedRate(rate, True)
    next_rate, next_latency = ordered[met[-1] + 1]
    return SustainedRate(rate + (next_rate - rate) * (objective_s - latency) / (next_latency - latency), False)


def spots(rows: Iterable[Row]) -> list[tuple[float, float]]:
    """Requests per second and normalized latency (s per token) of the rows that have both."""
    return [
        (row.facts.requests_per_s, row.derived.latency_us / 1e6)
        for row in rows
        if isinstance(row.facts, ServingResult) and row.facts.requests_per_s and row.derived.latency_us is not None
    ]
