"""Plans how the servers of a run fit into memory together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chunkbench.bench.runner.memory_guard import gigabytes, group


@dataclass(frozen=True)
class MemoryPlan:
    """How much K/V memory the systems get, and which systems run at the same time."""

    kv_bytes: int
    """Bytes of K/V memory of each system."""
    groups: tuple[tuple[str, ...], ...]
    """Groups of systems that run at the same time. Every group has the baseline. The first group has the system to
    whose capacity `load` refers.
    """
    too_large: Mapping[str, str]
    """System that does not fit into memory even alone -> explanation with the sizes."""
    difference: str
    """How the plan differs from what the experiment asks for. Empty if it does not."""


def plan_memory(
    besides: Mapping[str, int | None], asked: int, needed: int, baseline: str, reference: str, room: int
) -> MemoryPlan:
    """Plan how the servers of a run fit into `room` bytes.

    `besides`: system -> bytes that it needs in addition to K/V; None if it runs on another machine. `asked`: bytes of
    K/V that each system should get. `needed`: bytes of K/V for a full batch. If memory is too small, all systems first
    get less K/V memory, down to `needed`. If that is not enough, the systems are measured in groups, each with the
    baseline.
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
