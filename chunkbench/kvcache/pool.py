"""A pool of chunk ids: integers that stand for places in a chunk store."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from chunkbench.kvcache.errors import PoolExhausted


class ChunkPool:
    """Hands out chunk ids 0, 1, 2, ...; grows on demand up to `limit` chunks and never shrinks.

    The lowest free ids go first, in rising order. So the chunks of a prompt that joins an orderly pool have consecutive
    ids, which the kernels read as one piece of memory, and the ids in use stay dense after sequences have left.
    """

    def __init__(self, limit: int | None = None, make_room: Callable[[int], None] | None = None) -> None:
        """`make_room(capacity)` is called before the pool grows; if it raises, the pool stays as it was."""
        if limit is not None and limit < 1:
            raise ValueError(f"the limit of a pool is at least 1 chunk, not {limit}")
        self.limit = limit
        self._make_room = make_room
        self.capacity = 0
        """Ids that exist, free or in use: what the store has to have room for."""
        self.peak = 0
        """Most ids ever in use at once."""
        self._used: set[int] = set()
        self._returned: list[int] = []  # heap of ids that were in use before
        self._untouched = 0  # ids from here to capacity were never handed out

    @property
    def in_use(self) -> int:
        """Number of ids handed out and not yet released."""
        return len(self._used)

    @property
    def free(self) -> int:
        """Number of ids that can be handed out without growing."""
        return self.capacity - len(self._used)

    def reserve(self, chunks: int) -> None:
        """Make the capacity at least `chunks`, exactly so when it grows. Raises PoolExhausted beyond the limit."""
        if self.limit is not None and chunks > self.limit:
            raise PoolExhausted(f"cannot reserve {chunks} chunks: the pool may hold {self.limit}")
        if chunks > self.capacity:
            self._grow(chunks)

    def allocate(self, count: int) -> list[int]:
        """Take `count` ids, lowest first; all of them or, with PoolExhausted, none.

        Growth is by a half at least, so that a store adds few slabs; `reserve` gives exact sizes.
        """
        short = count - self.free
        if short > 0:
            needed = self.capacity + short
            if self.limit is not None and needed > self.limit:
                raise PoolExhausted(
                    f"{count} more chunks are needed, but {self.in_use} of at most {self.limit} are in use already"
                )
            capacity = max(needed, self.capacity + self.capacity // 2)
            self._grow(capacity if self.limit is None else min(capacity, self.limit))
        returned = min(count, len(self._returned))
        ids = [heapq.heappop(self._returned) for _ in range(returned)]
        fresh = count - returned
        ids.extend(range(self._untouched, self._untouched + fresh))
        self._untouched += fresh
        self._used.update(ids)
        self.peak = max(self.peak, len(self._used))
        return ids

    def _grow(self, capacity: int) -> None:
        if self._make_room is not None:
            self._make_room(capacity)
        self.capacity = capacity

    def release(self, ids: Iterable[int]) -> None:
        """Give ids back. Raises ValueError, releasing none, if one of them is not in use or is named twice."""
        given = list(ids)
        if len(set(given)) != len(given) or not self._used.issuperset(given):
            raise ValueError(f"chunks {given} are not all in use, or one is named twice")
        self._used.difference_update(given)
        for chunk in given:
            heapq.heappush(self._returned, chunk)
