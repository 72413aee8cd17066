"""In which order waiting requests are admitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from chunkbench.attention.manager import Manager
from chunkbench.server.scheduling.entry import Entry

E = TypeVar("E", bound=Entry)
Order = Callable[[Sequence[E], Manager], list[E]]
MOST_MATCHED = 128
"""With more waiting requests, `longest_prefix` falls back to the order of arrival: matching would take too long."""


def by_arrival(waiting: Sequence[E], manager: Manager) -> list[E]:
    """First come, first served."""
    return list(waiting)


def longest_prefix(waiting: Sequence[E], manager: Manager) -> list[E]:
    """Longest cached prefix first (RadixAttention); those with equally long ones by arrival."""
    if len(waiting) > MOST_MATCHED:
        return list(waiting)
    return sorted(waiting, key=lambda entry: -manager.cached(entry.text))


def depth_first(waiting: Sequence[E], manager: Manager) -> list[E]:
    """Depth first through the prefixes that waiting requests share: first the branch that is in the cache, because it
    was begun, then branches with more requests.

    A cache that holds the longest request then computes every shared token once, if all requests wait (RadixAttention).
    """
    size = manager.block_tokens
    ordered: list[E] = []
    stack: list[tuple[Sequence[E], int]] = [(waiting, 0)]
    while stack:
        group, depth = stack.pop()
        if len(group) == 1:
            ordered += group
            continue
        ends: list[E] = []
        branches: dict[int, list[E]] = {}
        for entry in group:
            own = entry.prompt_keys(size)
            if depth < len(own):
                branches.setdefault(own[depth], []).append(entry)
            else:
                ends.append(entry)
        ordered += ends
        below = list(branches.values())
        if len(below) > 1:
            begun = [manager.cached(branch[0].text) > depth * size for branch in below]
            first_to_last = sorted(zip(begun, below, strict=True), key=lambda pair: (not pair[0], -len(pair[1])))
            below = [branch for _, branch in first_to_last]
        stack += [(branch, depth + 1) for branch in reversed(below)]
    return ordered


def shortest(waiting: Sequence[E], manager: Manager) -> list[E]:
    """Shortest prompt first."""
    return sorted(waiting, key=lambda entry: entry.text.prompt)


ORDERS: Mapping[str, Order[Entry]] = {
    "fcfs": by_arrival,
    "prefix": longest_prefix,
    "depth-first": depth_first,
    "shortest": shortest,
}
"""By the names that experiments and `chunkbench serve` use."""
