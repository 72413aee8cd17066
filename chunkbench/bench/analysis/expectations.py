"""Checks whether the measured figures meet the expectations of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from chunkbench.bench.analysis.derive import Row, groups
from chunkbench.bench.analysis.ratio import ratio
from chunkbench.bench.experiment.sessions import AT_MOST
from chunkbench.bench.experiment.sweep import read_filter, selects

if TYPE_CHECKING:
    from chunkbench.bench.store.manifest import ExpectationFacts

BarVerdict = Literal["reaches aim", "meets bar", "misses", "not measured"]


@dataclass(frozen=True)
class ExpectationOutcome:
    """The verdict on one expectation at one point."""

    key: str
    """Key of the judged case; empty if the implementation has no case at the point."""
    axes: Mapping[str, Any]
    implementation: str
    metric: str
    against: str | None
    value: float | None
    bar: float | None
    aim: float | None
    verdict: BarVerdict
    reason: str = ""
    """The reason why there is no verdict."""


def outcomes(
    rows: Sequence[Row], expect: Sequence[ExpectationFacts], confidence: float = 0.95
) -> list[ExpectationOutcome]:
    """Judge every expectation at every point that its `where` selects.

    The outcomes have the order of the expectations. `where` has the form of an experiment file: `n_s` may be a share
    such as `0.5 n_p`, and `tree` is one value, not a list. An unknown metric gives the verdict "not measured".
    """
    judged = []
    points = groups(rows)
    for expectation in expect:
        accepted, _ = read_filter(expectation.where, ())
        for point in points:
            if selects(accepted, point.axes):
                judged.append(_judge(expectation, point.axes, point.rows, confidence))
    return judged


def _judge(
    expectation: ExpectationFacts, axes: Mapping[str, Any], rows: Mapping[str, Row], confidence: float
) -> ExpectationOutcome:
    implementation, metric, against = expectation.implementation, expectation.metric, expectation.against
    bar, aim = expectation.bar, expectation.aim
    row = rows.get(implementation)
    value, reason = _value(metric, row, rows.get(against or ""), against, confidence)
    verdict: BarVerdict = "not measured" if value is None or reason else _verdict(metric, value, bar, aim)
    key = row.facts.key if row else ""
    return ExpectationOutcome(key, axes, implementation, metric, against, value, bar, aim, verdict, reason)


def _verdict(metric: str, value: float, bar: float | None, aim: float | None) -> BarVerdict:
    sign = -1 if metric in AT_MOST else 1
    if aim is not None and sign * value >= sign * aim:
        return "reaches aim"
    if bar is not None and sign * value >= sign * bar:
        return "meets bar"
    return "misses"


def _value(
    metric: str, row: Row | None, other: Row | None, against: str | None, confidence: float
) -> tuple[float | None, str]:
    """The measured value, and a reason not to trust the value, if there is one. The value is None if nothing was
    measured; the reason says why."""
    if row is None:
        return None, "not in this run"
    if metric in ("speedup", "latency_ratio"):
        if other is None:
            return None, f"{against} is not in this run"
        latency_ratio = ratio(row.facts, other.facts, confidence)
        if latency_ratio is None:
            failed = next((r.facts for r in (row, other) if r.derived.latency_us is None), None)
            return None, f"{failed.implementation}: {failed.status}" if failed else "never ran side by side"
        return (1 / latency_ratio.value if metric == "speedup" else latency_ratio.value), ""
    if metric == "roofline_fraction":
        value, doubt = row.derived.roofline_fraction, row.derived.probe_error or ""
    elif metric == "append_us":
        value, doubt = row.derived.append_us, ""
    elif metric == "plan_us":
        value, doubt = row.derived.plan_us, ""
    else:
        return None, f"this version does not know the metric {metric}"
    return value, doubt if value is not None else f"{row.facts.implementation}: {row.facts.status}"
