"""What was used last is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `most` entries: the one that was used longest ago goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """An entry, which counts as used now; None if it is not there."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def keep(self, key: K, value: V) -> None:
        """Remember an entry."""
        self._entries[key] = value
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)
