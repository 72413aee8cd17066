"""Rates that cache managers sustain in replays."""

from __future__ import annotations

from collections.abc import Sequence

from chunkbench.bench.analysis.derive import Row
from chunkbench.workloads.replay.result import ReplayResult
from chunkbench.workloads.serving.objective import SustainedRate, sustained_rate

OBJECTIVE_S = 0.1
"""Seconds per token up to which a rate of generated or recorded traffic counts as sustained. Our choice: the
PagedAttention paper compares rates at similar latencies, on axes up to 1 s. Below it waits begin; far above it, rates
depend on how long the traffic lasts."""


def rates_by_seed(rows: Sequence[Row], objective_s: float) -> list[SustainedRate | None]:
    """Sustained requests per second of each arrival seed, from rows of one manager that differ in the rate alone."""
    facts = [row.facts for row in rows if isinstance(row.facts, ReplayResult) and row.facts.rate is not None]
    seeds = min((len(one.us_per_token) for one in facts), default=0)
    return [
        sustained_rate([((one.rate or 0) / 60, one.us_per_token[seed] / 1e6) for one in facts], objective_s)
        for seed in range(seeds)
    ]


def rate_ratios(rows: Sequence[Row], base_rows: Sequence[Row], objective_s: float) -> list[float]:
    """Sustained rate over that of another manager, of each arrival seed in which both are more than a lower bound."""
    pairs = zip(rates_by_seed(rows, objective_s), rates_by_seed(base_rows, objective_s), strict=False)
    return [
        rate.per_s / base.per_s for rate, base in pairs if rate and base and not rate.at_least and not base.at_least
    ]
