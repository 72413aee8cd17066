"""Made-up results of rings, with small numbers whose figures can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chunkbench.bench.store.results import Status
from chunkbench.workloads.ring.methods import CHOICES
from chunkbench.workloads.ring.result import Activity, RankFacts, RankTimes, RingPoint, RingResult

ROUNDS = (1.0, 1.25, 0.8)
"""How much longer each round took than the first one."""


def ring_result(
    implementation: str,
    seconds: Sequence[float] = (0.1, 0.2),
    *,
    compute: float = 0.5,
    transfer: float = 0.4,
    wait: float = 0.1,
    pairs: Sequence[int] = (100, 300),
    sent: int | None = 2_000_000,
    peak: int | None = 3_000_000,
    status: Status = "ok",
    reason: str = "",
    rates: tuple[float | None, float | None] = (4e10, 2e9),
    hosts: int = 1,
    **axes: Any,
) -> RingResult:
    """A result of some ranks: the seconds of each, and shares of them; sent and peak bytes are the same for all."""
    given = {"device": "cpu", "dtype": "float32", "n_p": 4096, "heads": 8, "ranks": len(seconds)} | axes
    point = RingPoint.model_validate(RingPoint.completed(given))

    def times(total: float) -> RankTimes:
        return RankTimes(
            total_s=total, compute_s=compute * total, wait_s=wait * total, transfer_s=transfer * total if sent else 0.0
        )

    moves: tuple[Activity, ...] = (("transfer", 0.0, 0.04), ("wait", 0.05, 0.06)) if sent else ()
    timeline: tuple[Activity, ...] = (("compute", 0.0, 0.05), *moves)
    measured = status in ("ok", "noisy")
    return RingResult(
        **dict(point),
        key=f"{implementation} {sorted(given.items())}",
        experiment="made",
        implementation=implementation,
        label=CHOICES[implementation].label,
        status=status,
        reason=reason,
        times=tuple(tuple(times(longer * total) for total in seconds) for longer in ROUNDS) if measured else (),
        ranks_facts=tuple(RankFacts(sent_bytes=sent, peak_bytes=peak, pairs=count) for count in pairs)
        if measured
        else (),
        timeline=tuple(timeline for _ in seconds) if measured else (),
        flops_per_s=rates[0],
        bytes_per_s=rates[1],
        max_error=2.5e-7 if measured else None,
        tolerance=1e-5,
        hosts=hosts,
    )
