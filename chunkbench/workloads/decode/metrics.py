"""Metrics of results that worker processes measure: decode attention, modules of a layer, and K/V memory."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from chunkbench.bench.analysis.roofline import bandwidth_fraction, roofline_fraction
from chunkbench.bench.analysis.statistics import round_means
from chunkbench.bench.store.results import TimedResult
from chunkbench.report.metric import BYTES, COUNT, MICROSECONDS, NUMBER, SHARE, Metric, Unit, by_name, one


def _rates(result: TimedResult) -> list[float]:
    """[round] tokens per second of the attention kernel alone, other work of a step excluded."""
    return [result.batch_size * 1e6 / mean for mean in round_means(result.rounds)]


def _rate_of_median_time(rates: Sequence[float]) -> float:
    return 1 / median(1 / rate for rate in rates)


def _means(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [fmean(samples) for samples in rounds]


HELD = by_name(
    Metric("kv_bytes", "bytes of K/V", one(lambda result: result.kv_bytes), BYTES, exact=True),
    Metric("work_items", "work items", one(lambda result: result.work_items), Unit("items", COUNT.text), exact=True),
    Metric("max_error", "error", one(lambda result: result.max_error), Unit("", "{:.1e}".format)),
    Metric("deviation", "deviation", one(lambda result: result.deviation), NUMBER),
)
"""Metrics that need no timed calls."""
METRICS = HELD | by_name(
    Metric("token_rate", "token rate", _rates, Unit("tokens/s", NUMBER.text), "higher", _rate_of_median_time),
    Metric("append", "append", lambda result: _means(result.append_samples_us), MICROSECONDS),
    Metric("plan", "plan", lambda result: _means(result.plan_samples_us), MICROSECONDS),
    Metric("roofline_fraction", "roofline", one(roofline_fraction), SHARE, "higher"),
    Metric("bandwidth_fraction", "bandwidth", one(bandwidth_fraction), SHARE, "higher"),
)
"""The metrics of `HELD`, and those of timed calls."""
