"""The objective for the latency of servers under load, and the rates that meet it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from chunkbench.bench.analysis.derive import Row
from chunkbench.traffic.request_result import load_numbers
from chunkbench.workloads.serving.result import ServingResult

OBJECTIVE_LOAD = 90
"""Percent of the reference's capacity. The reference's normalized latency at this load with nothing shared is the
objective, because the paper's 40 ms per token fit only its own machine.
"""


def goodput_per_s(facts: ServingResult, objective_s: float) -> float:
    """Requests per second that meet the objective; median over arrival seeds."""
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
    """Whether the requests of a point share one prefix of n_s tokens, or nothing, as in the paper. `axes`: axis ->
    value.

    Only points of this kind form a line over the rate: n_s alone does not tell trees and several prefixes apart.
    """
    return axes["n_s"] is not None and axes["prompts"] in (None, 1)


@dataclass(frozen=True)
class SustainedRate:
    """The highest rate at which a system meets an objective."""

    per_s: float
    at_least: bool
    """Whether the objective was met at every measured rate."""


def sustained_rate(spots: Iterable[tuple[float, float]], objective_s: float) -> SustainedRate | None:
    """Interpolate between the highest rate that meets the objective and the next higher rate.

    `spots`: requests per second and seconds per token of a system; all other axes must be equal. None if no rate meets
    the objective.
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
