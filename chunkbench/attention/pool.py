"""A pool of chunk ids. A chunk id is an integer that names a place in a chunk store."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence

from chunkbench.attention.errors import PoolExhausted


class ChunkPool:
    """A pool that hands out chunk ids 0, 1, 2, ... It grows on demand up to `limit` chunks and never shrinks.

    It hands out the lowest free ids first, in ascending order. So the chunks of a prompt usually have consecutive ids,
    and the kernels read them as one block of memory. The ids in use also stay dense after sequences leave.
    """

    def __init__(self, limit: int | None = None, make_room: Callable[[int], None] | None = None) -> None:
        """`make_room(capacity)` is called before the pool grows. If it raises, the pool stays unchanged."""
        if limit is not None and limit < 1:
            raise ValueError(f"the limit of a pool is at least 1 chunk, not {limit}")
        self.limit = limit
        self._make_room = make_room
        self.capacity = 0
        """Number of ids that exist, free or in use. The store must have room for this many chunks."""
        self._used: set[int] = set()
        self._returned: list[int] = []  # heap of released ids
        self._first_unused = 0  # ids from here to capacity were never handed out

    @property
    def in_use(self) -> int:
        """Number of ids handed out and not yet released."""
        return len(self._used)

    @property
    def free(self) -> int:
        """Number of ids that can be handed out without growing."""
        return self.capacity - len(self._used)

    def reserve(self, chunks: int) -> None:
        """Grow the capacity to exactly `chunks` if it is smaller. Raises PoolExhausted beyond the limit."""
        if self.limit is not None and chunks > self.limit:
            raise PoolExhausted(f"cannot reserve {chunks} chunks: the pool may hold {self.limit}")
        if chunks > self.capacity:
            self._grow(chunks)

    def allocate(self, count: int) -> list[int]:
        """Take `count` ids, lowest first. Raises PoolExhausted, taking none, if the limit does not allow all of them.

        If the pool must grow, it grows by at least one half, within the limit, so that it grows rarely. `reserve` grows
        to an exact size.
        """
        needed = self.in_use + count
        if self.limit is not None and needed > self.limit:
            raise PoolExhausted(
                f"{count} more chunks are needed, but {self.in_use} of at most {self.limit} are in use already"
            )
        if needed > self.capacity:
            capacity = max(needed, self.capacity + self.capacity // 2)
            self._grow(capacity if self.limit is None else min(capacity, self.limit))
        returned = min(count, len(self._returned))
        ids = [heapq.heappop(self._returned) for _ in range(returned)]
        fresh = count - returned
        ids.extend(range(self._first_unused, self._first_unused + fresh))
        self._first_unused += fresh
        self._used.update(ids)
        return ids

    def shareable(self, chunks: Sequence[int], count: int) -> int:
        """Number of chunks at the beginning of a path that later sequences may share; at most `count`. `chunks`: the
        path, from the root."""
        return count

    def _grow(self, capacity: int) -> None:
        if self._make_room is not None:
            self._make_room(capacity)
        self.capacity = capacity

    def release(self, ids: Iterable[int]) -> None:
        """Give ids back. Raises ValueError, releasing none, if an id is not in use or occurs twice."""
        released = list(ids)
        if len(set(released)) != len(released) or not self._used.issuperset(released):
            raise ValueError(f"chunks {released} are not all in use, or one occurs twice")
        self._used.difference_update(released)
        for chunk in released:
            heapq.heappush(self._returned, chunk)
