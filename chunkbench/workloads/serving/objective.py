"""The latency objective of servers under load, and the highest rates that meet it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from chunkbench.bench.analysis.derive import Row
from chunkbench.traffic.request_result import Objective, load_numbers
from chunkbench.workloads.serving.result import ServingResult

OBJECTIVE_LOAD = 90
"""Load, in percent of the reference's capacity, at which the objective is measured.

The objective is the normalized latency of the reference at this load with nothing shared. The paper's objective of 40
ms per token fits only its own machine.
"""


def goodput_per_s(facts: ServingResult, objective_s: float) -> float:
    """Number of requests per second that meet the objective: the median over arrival seeds."""
    objectives = [Objective("normalized", objective_s)]
    return median(load_numbers(measured.requests, objectives).goodput_per_s or 0.0 for measured in facts.measurements)


def objective_s(rows: Iterable[Row], n_p: int) -> float | None:
    """The objective for prompts of n_p tokens, in seconds per token. None if it was not measured."""
    for row in rows:
        facts = row.facts
        if not isinstance(facts, ServingResult) or facts.implementation != facts.reference:
            continue
        if (facts.n_p, facts.n_s, facts.load) == (n_p, 0, OBJECTIVE_LOAD) and row.derived.latency_us is not None:
            return row.derived.latency_us / 1e6
    return None


def shares_one_prefix(axes: Mapping[str, Any]) -> bool:
    """Whether all requests of a point share one prefix, or share nothing. `axes`: name -> value.

    Comparisons over the rate use only such points. Points with prefix trees or several prefixes may have the same n_s,
    so n_s cannot tell them apart.
    """
    return axes["n_s"] is not None and axes["prompts"] in (None, 1)


@dataclass(frozen=True)
class SustainedRate:
    """The highest request rate at which a system meets the objective."""

    per_s: float
    at_least: bool
    """Whether the system met the objective at every measured rate. Then the true rate may be higher."""


def sustained_rate(spots: Iterable[tuple[float, float]], objective_s: float) -> SustainedRate | None:
    """Estimate the highest rate that meets the objective. Interpolates between the last measured rate that meets it and
    the next one.

    `spots`: (requests per second, seconds per token) of one system. None if no rate meets the objective.
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
    """(requests per second, seconds per token) of each row that has both."""
    return [
        (row.facts.requests_per_s, row.derived.latency_us / 1e6)
        for row in rows
        if isinstance(row.facts, ServingResult) and row.facts.requests_per_s and row.derived.latency_us is not None
    ]
