"""The objective of servers under load, and what meets it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from chunkbench.bench.analysis.derive import Row
from chunkbench.traffic.request_result import load_numbers
from chunkbench.workloads.serving.result import ServingResult

OBJECTIVE_LOAD = 90
"""The paper's objective of 40 ms per token is its machine's. Here it is the reference's normalized latency with nothing
shared, at this percentage of its own capacity."""


def goodput_per_s(facts: ServingResult, objective_s: float) -> float:
    """Requests per second that meet the objective, the median over arrival seeds."""
    return median(load_numbers(measured.requests, objective_s).goodput_per_s or 0.0 for measured in facts.measurements)


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
