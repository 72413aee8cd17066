"""Facts -> derived rows: every figure that reports show and that `chunkbench.load` returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from chunkbench.analysis.points import group, measured
from chunkbench.analysis.ratio import ratio
from chunkbench.analysis.roofline import bandwidth_fraction, mean_roofline_us, probe_error, roofline_fraction
from chunkbench.analysis.statistics import IntervalKind, interval, latency_us, round_means

if TYPE_CHECKING:
    from chunkbench.store.facts import CaseFacts


@dataclass(frozen=True)
class Derived:
    """Figures of one case; None where the case was not measured or the figure does not apply."""

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
    """Latency over the baseline's; above 1 is slower than the baseline."""
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratio_kind: IntervalKind | None = None
    paper_us: float | None = None
    """The paper's latency at this point; `chunkbench.paper.beside` fills in this field and the next one."""
    paper_ratio: float | None = None


@dataclass(frozen=True)
class Row:
    """One case: its facts and the figures derived from them."""

    facts: CaseFacts
    derived: Derived

    def as_dict(self) -> dict[str, Any]:
        """Every fact and every derived figure by name, as JSON types and nested lists."""
        return self.facts.model_dump(mode="json") | asdict(self.derived)


def derive(cases: Sequence[CaseFacts], baseline: str = "chunk_attn", confidence: float = 0.95) -> list[Row]:
    """One row per case, in the order given. Ratios refer to the implementation `baseline` of the same point."""
    base_of: dict[int, CaseFacts] = {}
    for _, members in group(cases):
        for base in (case for case in members if case.implementation == baseline):
            base_of.update((id(case), base) for case in members)
    return [Row(case, _derive(case, base_of.get(id(case)), confidence)) for case in cases]


def _derive(case: CaseFacts, base: CaseFacts | None, confidence: float) -> Derived:
    if not measured(case):
        return Derived(rounds=len(case.samples_us))
    latency = latency_us(case.samples_us)
    low, high, kind = interval(round_means(case.samples_us), confidence)
    append = latency_us(case.append_samples_us) if case.append_samples_us else None
    plan = latency_us(case.plan_samples_us) if case.plan_samples_us else None
    to_base = ratio(case, base, confidence) if base is not None else None
    return Derived(
        rounds=len(case.samples_us),
        latency_us=latency,
        low_us=low,
        high_us=high,
        interval_kind=kind,
        append_us=append,
        plan_us=plan,
        step_us=None if append is None or plan is None else append + plan + latency,
        token_rate=case.batch_size * 1e6 / latency,
        roofline_us=mean_roofline_us(case),
        roofline_fraction=roofline_fraction(case),
        bandwidth_fraction=bandwidth_fraction(case),
        probe_error=probe_error(case),
        ratio_to_baseline=to_base.value if to_base else None,
        ratio_low=to_base.low if to_base else None,
        ratio_high=to_base.high if to_base else None,
        ratio_kind=to_base.kind if to_base else None,
    )
