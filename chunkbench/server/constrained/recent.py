"""A cache that keeps the most recently used entries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A dictionary of at most `most` entries with a total weight of at most `heaviest`. The least recently used entry
    is dropped first.

    An entry that is heavier than `heaviest` is not stored.
    """

    def __init__(self, most: int, heaviest: float = inf) -> None:
        self._most, self._heaviest = most, heaviest
        self._entries: OrderedDict[K, tuple[V, float]] = OrderedDict()
        self._weight = 0.0

    def get(self, key: K) -> V | None:
        """Return an entry and mark it as used now. None if the entry is not stored."""
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def keep(self, key: K, value: V, weight: float = 0.0) -> None:
        """Store an entry, and drop others if necessary."""
        _, before = self._entries.pop(key, (None, 0.0))
        if weight > self._heaviest:
            self._weight -= before
            return
        self._entries[key] = value, weight
        self._weight += weight - before
        while len(self._entries) > self._most or self._weight > self._heaviest:
            _, (_, gone) = self._entries.popitem(last=False)
            self._weight -= gone
