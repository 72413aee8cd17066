"""What follows from a profile: sums over the units of a trace, and how far reading and computing overlap."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from chunkbench.bench.store.profile import ProfileFacts, TraceFacts, Unit


class Phase(NamedTuple):
    """Sums over some units of one call. The seconds are those of all threads together."""

    name: str
    units: int
    read_bytes: int
    flops: int
    scores_s: float
    softmax_s: float
    values_s: float
    merging_s: float
    """Starting rows, folding in partial results, leaving results."""
    waiting_s: float
    seconds: float
    """All of that."""


class Thread(NamedTuple):
    """What one thread did until the last unit of the call ended."""

    number: int
    computing_s: float
    waiting_s: float
    idle_s: float


class Overlap(NamedTuple):
    """Medians over rounds, in seconds: reading alone, computing alone, and the traced decode that does both."""

    read_s: float
    compute_s: float
    decode_s: float

    @property
    def hideable_s(self) -> float:
        """The shorter of both parts: the longer one could hide it."""
        return min(self.read_s, self.compute_s)

    @property
    def hidden_s(self) -> float:
        """How much of it the longer one does hide."""
        return min(max(self.read_s + self.compute_s - self.decode_s, 0.0), self.hideable_s)


def wall_s(trace: TraceFacts) -> float:
    """From the begin of the native call to the end of its last unit."""
    return max(unit.end_s for unit in trace.units)


def middle(traces: Sequence[TraceFacts]) -> TraceFacts:
    """The call whose time is in the middle; of an even number, the shorter one."""
    return sorted(traces, key=wall_s)[(len(traces) - 1) // 2]


def phases(trace: TraceFacts) -> list[Phase]:
    """Shared units and private ones, as far as there are such, and if there are both also all."""
    parts = (_phase(name, [unit for unit in trace.units if unit.shared == (name == "shared")]) for name in _NAMES)
    found = [part for part in parts if part.units]
    return found if len(found) == 1 else [*found, _phase("all", trace.units)]


_NAMES = ("shared", "private")


def _phase(name: str, units: Sequence[Unit]) -> Phase:
    total = {field: sum(getattr(unit, field) for unit in units) for field in Unit._fields}
    scores, softmax, values = total["scores_s"], total["softmax_s"], total["values_s"]
    return Phase(
        name=name,
        units=len(units),
        read_bytes=int(total["read_bytes"]),
        flops=int(total["flops"]),
        scores_s=scores,
        softmax_s=softmax,
        values_s=values,
        merging_s=total["end_s"] - total["ready_s"] - scores - softmax - values,
        waiting_s=total["ready_s"] - total["begin_s"],
        seconds=total["end_s"] - total["begin_s"],
    )


def threads(trace: TraceFacts) -> list[Thread]:
    """Every thread, also those without a unit."""
    wall, found = wall_s(trace), []
    for number in range(trace.threads):
        own = [unit for unit in trace.units if unit.thread == number]
        computing = sum(unit.end_s - unit.ready_s for unit in own)
        waiting = sum(unit.ready_s - unit.begin_s for unit in own)
        found.append(Thread(number, computing, waiting, max(wall - computing - waiting, 0.0)))
    return found


def overlap(facts: ProfileFacts) -> Overlap | None:
    """None without traces, and where computing alone would read from far: a core's own cache is too small for it."""
    if not facts.compute or facts.compute[0].place_bytes > (facts.l2_bytes or 0):
        return None
    return Overlap(*(median(map(wall_s, traces)) for traces in (facts.read, facts.compute, facts.decode)))
