"""Invented profiles, whose numbers can be added up by hand."""

from __future__ import annotations

from typing import Any

from chunkbench.bench.store.profile import ProfileFacts, TraceFacts, Unit
from tests.invented_facts import MakeFacts


def trace(scale: float = 1.0, place_bytes: int = 1000) -> TraceFacts:
    """Two of three threads work for 10 ms times `scale`: a shared unit, then two private ones, of which one waits 1 ms
    for it."""
    ms = scale / 1000
    units = [
        Unit(0, True, 0, 0, 4 * ms, 2 * ms, 0.5 * ms, 1 * ms, 2000, 64_000),
        Unit(1, False, 1 * ms, 2 * ms, 8 * ms, 3 * ms, 0.25 * ms, 2 * ms, 6000, 6_000),
        Unit(0, False, 4 * ms, 4 * ms, 10 * ms, 2 * ms, 1 * ms, 2 * ms, 4000, 4_000),
    ]
    return TraceFacts(threads=3, seconds=10.5 * ms, place_bytes=place_bytes, units=units)


def profile(
    facts: MakeFacts, ms: float = 10, read: float | None = 6, compute: float = 5, **changes: Any
) -> ProfileFacts:
    """A decode of so many ms, of which reading alone and computing alone take `read` and `compute`; None: no trace."""
    checked = {"max_error": 0.001, "tolerance": 0.01}
    rates: dict[str, Any] = {"unique_bytes": (5_000_000,), "read_bytes": (5_000_000,), "flops": (10**9,)}
    case = facts(
        samples_us=((1000 * ms,),) * 3, steps=(64,), **checked, **{key: changes.pop(key, rates[key]) for key in rates}
    )
    traces = {"decode": ms, "read": read, "compute": compute} if read is not None else {}
    place = changes.pop("place_bytes", 1000)
    calls = {name: [trace(each / 10 * step, place) for step in (1.0, 0.9, 1.1)] for name, each in traces.items()}
    return ProfileFacts(case=case, warm_us=(9000.0,) * 3, l2_bytes=1 << 20, no_counters="none", **calls, **changes)
