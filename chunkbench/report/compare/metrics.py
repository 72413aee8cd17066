"""Finds the figures that can be compared: the latency, and the figures of a kind of work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from chunkbench.bench import workload
from chunkbench.bench.analysis.points import counted, measured
from chunkbench.bench.analysis.statistics import round_means
from chunkbench.bench.store.results import Result
from chunkbench.report.metric import MICROSECONDS, Metric
from chunkbench.run_error import RunError

LATENCY = Metric("latency", "latency", lambda result: round_means(result.rounds), MICROSECONDS)


def metrics_of(kind: str) -> Mapping[str, Metric]:
    """Name -> figure, for all figures of a kind of work."""
    return {LATENCY.name: LATENCY, **workload.get(kind).layout().metrics}


def exact_of(kind: str) -> list[Metric]:
    """The figures of a kind of work that are counted, not measured."""
    return sorted((metric for metric in metrics_of(kind).values() if metric.exact), key=lambda metric: metric.name)


def metric_of(name: str, kinds: Iterable[str]) -> Metric:
    """Find the figure with this name. If several kinds have one, the first kind counts. Raises `RunError`, which lists
    all names."""
    names: dict[str, Metric] = {}
    for kind in kinds:
        names = {**metrics_of(kind), **names}
    if name not in names:
        near = "".join(f"did you mean {close}? " for close in get_close_matches(name, names, 1))
        what = " and ".join(f"kind: {kind}" for kind in dict.fromkeys(kinds))
        raise RunError(f"--metric {name}: no figure of {what}; {near}There are {', '.join(names)}")
    return names[name]


def has(case: Result, metric: Metric) -> bool:
    """Whether the case has a value of this figure that can be compared."""
    if metric is LATENCY:
        return measured(case)
    return counted(case) and (metric.exact or metric.value(case) is not None)
