"""Plans how the servers of a run fit into memory together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chunkbench.bench.runner.memory_guard import gigabytes, group


@dataclass(frozen=True)
class MemoryPlan:
    """The K/V memory of each system, and which systems run at the same time."""

    kv_bytes: int
    """K/V memory of every system."""
    groups: tuple[tuple[str, ...], ...]
    """Groups of systems that are measured in turns. The first group has the system whose capacity is the load's
    reference; every group has the baseline.
    """
    too_large: Mapping[str, str]
    """System that does not fit even alone -> reason, with the figures."""
    difference: str
    """Description of the difference from what was asked for; empty if there is none."""


def plan_memory(
    besides: Mapping[str, int | None], asked: int, needed: int, baseline: str, reference: str, room: int
) -> MemoryPlan:
    """Plan how the systems of a run fit into `room` bytes.

    `besides`: system -> bytes that it holds besides K/V; None for a system on another machine. `asked`: bytes of K/V
    that each system should get; `needed`: bytes of K/V for a full batch. K/V memory above `needed` is cut first,
    equally for all systems. If that is not enough, the systems are measured in groups, each with the baseline.
    """
    names = tuple(besides)
    held = [size for size in besides.values() if size is not None]
    whole = sum(held) + asked * len(held)
    if whole <= room:
        return MemoryPlan(asked, (names,) if names else (), {}, "")
    least = min(asked, needed)
    kv_bytes = max(least, (room - sum(held)) // len(held))
    sizes = {name: 1 if size is None else size + kv_bytes for name, size in besides.items()}
    difference = f"all servers together need {gigabytes(whole)}, {gigabytes(room)} are available: "
    smaller = f"every system has {kv_bytes / 2**30:.2f} GiB of K/V memory in place of {asked / 2**30:.2f}"
    if sum(sizes.values()) <= room:
        return MemoryPlan(kv_bytes, (names,), {}, difference + smaller)
    grouping = group(sizes, names, baseline, room)
    groups = sorted(grouping.groups, key=lambda members: reference not in members)
    parts = [smaller] if kv_bytes < asked else []
    if len(groups) > 1:
        parts.append(f"measured in groups, one after the other: {_words(groups)}")
    if grouping.too_large:
        parts.append(f"left out: {', '.join(grouping.too_large)}")
    return MemoryPlan(kv_bytes, tuple(groups), grouping.too_large, difference + "; ".join(parts))


def _words(groups: Sequence[Sequence[str]]) -> str:
    return "; ".join(", ".join(members) for members in groups)
