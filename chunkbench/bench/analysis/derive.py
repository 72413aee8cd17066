"""Computes the figures that reports show and that `chunkbench.load` returns, from the facts of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chunkbench.bench.analysis.points import group, measured
from chunkbench.bench.analysis.ratio import ratio
from chunkbench.bench.analysis.roofline import bandwidth_fraction, mean_roofline_us, probe_error, roofline_fraction
from chunkbench.bench.analysis.statistics import IntervalKind, interval, latency_us, round_means
from chunkbench.bench.store.results import Result, SessionResult, TimedResult


@dataclass(frozen=True)
class Derived:
    """Figures of one case. A figure is None if the case was not measured, or if the figure does not apply."""

    rounds: int = 0
    latency_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    interval_kind: IntervalKind | None = None
    append_us: float | None = None
    plan_us: float | None = None
    step_us: float | None = None
    token_rate: float | None = None
    """Tokens per second of the attention kernel alone: batch_size * 1e6 / latency_us."""
    roofline_us: float | None = None
    roofline_fraction: float | None = None
    bandwidth_fraction: float | None = None
    probe_error: str | None = None
    ratio_to_baseline: float | None = None
    """Latency divided by the baseline's latency. Above 1, the case is slower than the baseline."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_kind: IntervalKind | None = None
    paper_us: float | None = None
    """The latency in microseconds that the paper prints for this point. `chunkbench.report.printed` sets `paper_us` and
    `paper_ratio`."""
    paper_ratio: float | None = None


@dataclass(frozen=True)
class Row:
    """One case: its facts and the figures derived from them."""

    facts: Result
    derived: Derived

    @property
    def timed(self) -> TimedResult | None:
        return self.facts if isinstance(self.facts, TimedResult) else None

    @property
    def session(self) -> SessionResult | None:
        return self.facts if isinstance(self.facts, SessionResult) else None

    @property
    def kv_bytes(self) -> int | None:
        """Bytes of K and V that the session reported; None if it reported none."""
        return self.session.kv_bytes if self.session else None

    @property
    def max_error(self) -> float | None:
        """Largest relative error against the float64 reference; None if nothing was checked."""
        return self.session.max_error if self.session else None

    def as_dict(self) -> dict[str, Any]:
        """All recorded and derived figures: name -> value, in JSON types."""
        return self.facts.model_dump(mode="json") | asdict(self.derived)


@dataclass(frozen=True)
class Group:
    """One row per implementation. All rows have the same machine, point, protocol, cache and mode."""

    axes: Mapping[str, Any]
    rows: Mapping[str, Row]


def groups(rows: Sequence[Row]) -> list[Group]:
    """Group the rows that differ only in the implementation. The groups are sorted by the values of their axes."""
    row_of = {id(row.facts): row for row in rows}
    return [
        Group(axes, {case.implementation: row_of[id(case)] for case in cases})
        for axes, cases in group([row.facts for row in rows])
    ]


def derive(cases: Sequence[Result], baseline: str = "chunk_attn", confidence: float = 0.95) -> list[Row]:
    """Compute the figures of each case, in the given order. Ratios divide by the latency of `baseline` at the same
    point."""
    base_of: dict[int, Result] = {}
    for _, members in group(cases):
        for base in (case for case in members if case.implementation == baseline):
            base_of.update((id(case), base) for case in members)
    return [Row(case, _derive(case, base_of.get(id(case)), confidence)) for case in cases]


def _derive(case: Result, base: Result | None, confidence: float) -> Derived:
    if not measured(case):
        return Derived(rounds=len(case.rounds))
    latency = latency_us(case.rounds)
    low, high, kind = interval(round_means(case.rounds), confidence)
    timed = case if isinstance(case, TimedResult) else None
    append = latency_us(timed.append_samples_us) if timed and timed.append_samples_us else None
    plan = latency_us(timed.plan_samples_us) if timed and timed.plan_samples_us else None
    to_base = ratio(case, base, confidence) if base is not None else None
    return Derived(
        rounds=len(case.rounds),
        latency_us=latency,
        low_us=low,
        high_us=high,
        interval_kind=kind,
        append_us=append,
        plan_us=plan,
        step_us=None if append is None or plan is None else append + plan + latency,
        token_rate=case.batch_size * 1e6 / latency,
        roofline_us=mean_roofline_us(timed) if timed else None,
        roofline_fraction=roofline_fraction(timed) if timed else None,
        bandwidth_fraction=bandwidth_fraction(timed) if timed else None,
        probe_error=probe_error(timed) if timed else None,
        ratio_to_baseline=to_base.value if to_base else None,
        ratio_low=to_base.low if to_base else None,
        ratio_high=to_base.high if to_base else None,
        ratio_kind=to_base.kind if to_base else None,
    )
