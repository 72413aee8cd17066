"""Whether the servers of a run fit into memory together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chunkbench.bench.runner.memory_guard import gigabytes, group


@dataclass(frozen=True)
class MemoryPlan:
    """What each system gets, and which of them are up at the same time."""

    kv_bytes: int
    """K/V memory of every system."""
    groups: tuple[tuple[str, ...], ...]
    """Systems that are measured in turns. The first has the reference of the loads; all have the baseline."""
    too_large: Mapping[str, str]
    """Systems that do not fit even alone -> reason, with the figures."""
    told: str
    """What differs from what was asked; empty: nothing."""


def plan_memory(
    besides: Mapping[str, int | None], asked: int, needed: int, baseline: str, reference: str, room: int
) -> MemoryPlan:
    """How the systems of a run fit into `room` bytes.

    `besides`: what each holds beside K/V; None: it runs elsewhere. `asked`, `needed`: bytes of K/V that each gets, and
    that it needs to hold a full batch. K/V memory above that is cut first, for all alike; then the systems are measured
    in groups, each with the baseline.
    """
    names = tuple(besides)
    held = [size for size in besides.values() if size is not None]
    whole = sum(held) + asked * len(held)
    if whole <= room:
        return MemoryPlan(asked, (names,) if names else (), {}, "")
    least = min(asked, needed)
    kv_bytes = max(least, (room - sum(held)) // len(held))
    sizes = {name: 1 if size is None else size + kv_bytes for name, size in besides.items()}
    told = f"all servers together need {gigabytes(whole)}, {gigabytes(room)} are available: "
    smaller = f"every system has {kv_bytes / 2**30:.2f} GiB of K/V memory in place of {asked / 2**30:.2f}"
    if sum(sizes.values()) <= room:
        return MemoryPlan(kv_bytes, (names,), {}, told + smaller)
    grouping = group(sizes, names, baseline, room)
    groups = sorted(grouping.groups, key=lambda members: reference not in members)
    parts = [smaller] if kv_bytes < asked else []
    if len(groups) > 1:
        parts.append(f"measured in groups, one after the other: {_words(groups)}")
    if grouping.too_large:
        parts.append(f"left out: {', '.join(grouping.too_large)}")
    return MemoryPlan(kv_bytes, tuple(groups), grouping.too_large, told + "; ".join(parts))


def _words(groups: Sequence[Sequence[str]]) -> str:
    return "; ".join(", ".join(members) for members in groups)
