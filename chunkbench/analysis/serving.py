"""Numbers of a system under load, from its measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from chunkbench.analysis.derive import Row
from chunkbench.analysis.requests import LoadNumbers, load_numbers
from chunkbench.store.serving_facts import Measurement, ServerFacts, ServingFacts


@dataclass(frozen=True)
class ServingNumbers:
    """Medians over the arrival seeds, and the largest peaks. Times in seconds; None where it is not known."""

    first_token_p50: float | None
    first_token_p99: float | None
    per_token_p50: float | None
    per_token_p99: float | None
    requests_per_s: float | None
    cached_share: float | None
    peak_kv_bytes: int | None
    peak_batch: int | None
    step_s: float | None
    own_s: float | None


def serving_numbers(row: Row) -> ServingNumbers | None:
    """The numbers of a row of this kind; None if nothing was measured."""
    facts = row.facts
    if not isinstance(facts, ServingFacts) or row.derived.latency_us is None:
        return None
    numbers = [load_numbers(measurement.requests) for measurement in facts.measurements]

    def middle(value: Callable[[LoadNumbers], float | None]) -> float | None:
        known = [number for one in numbers if (number := value(one)) is not None]
        return median(known) if known else None

    return ServingNumbers(
        first_token_p50=middle(lambda n: n.time_to_first_token.p50 if n.time_to_first_token else None),
        first_token_p99=middle(lambda n: n.time_to_first_token.p99 if n.time_to_first_token else None),
        per_token_p50=middle(lambda n: n.time_per_token.p50 if n.time_per_token else None),
        per_token_p99=middle(lambda n: n.time_per_token.p99 if n.time_per_token else None),
        requests_per_s=middle(lambda n: n.requests_per_s),
        cached_share=middle(lambda n: n.cached_share),
        peak_kv_bytes=_largest(facts, lambda server: server.peak_kv_bytes),
        peak_batch=_largest(facts, lambda server: server.peak_batch),
        step_s=_middle(facts.measurements, lambda server: server.step_s),
        own_s=_middle(facts.measurements, lambda server: server.own_s),
    )


def _largest(facts: ServingFacts, value: Callable[[ServerFacts], int | None]) -> int | None:
    known = [number for m in facts.measurements if m.server and (number := value(m.server)) is not None]
    return max(known, default=None)


def _middle(measurements: tuple[Measurement, ...], value: Callable[[ServerFacts], float | None]) -> float | None:
    known = [number for m in measurements if m.server and (number := value(m.server)) is not None]
    return median(known) if known else None


@dataclass(frozen=True)
class SustainedRate:
    """The highest rate at which a system meets an objective."""

    per_s: float
    at_least: bool
    """Whether the objective was met at every measured rate."""


def sustained_rate(spots: Sequence[tuple[float, float]], objective_s: float) -> SustainedRate | None:
    """By interpolation between the highest measured rate that meets the objective and the next one.

    `spots`: (requests per second, normalized latency in seconds). None if no rate meets the objective.
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
