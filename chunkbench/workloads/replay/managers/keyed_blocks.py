"""A pool of blocks that have keys and reference counts, and are taken least recently used first. Ids only."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from chunkbench.attention.tokens import alike
from chunkbench.kernels.integers import Ints

_MOST_OUTDATED = 1 << 16
"""So many places of the queue may be outdated, and as many as are not."""


class _Run:
    """Keys that follow one another, and the first block that got each."""

    __slots__ = ("blocks", "keys")

    def __init__(self) -> None:
        self.keys = array("q")
        self.blocks = array("i")

    def common(self, first: int, keys: Ints) -> int:
        """How many of these keys are here from place `first` on."""
        if first == len(self.keys):  # most often
            return 0
        own = self.keys[first : first + len(keys)]
        return alike(own.tobytes(), keys[: len(own)].tobytes()) // keys.itemsize


class KeyedBlocks:
    """Blocks 1 to `blocks`. A block without references is free; it keeps its key until it is taken.

    Free blocks without a key are taken first, those given back last before others, and before those never used. Then
    come those with a key, the ones given back first before others.

    A key names its block and all before it, so it follows one other key, or none. Who holds or gives back a block with
    a key does the same with a block of the key before, and gives that back later. So a key is there only as long as
    those before it.
    """

    # Traces have millions of blocks. So keys that follow one another are a run, and what is known of a block is in
    # arrays, which grow when blocks are used for the first time. There is no block 0.

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.shared = 0
        """Blocks with several references."""
        self.shared_references = 0
        """References of these blocks."""
        self.evictable = 0
        """Free blocks that have a key."""
        self.evictions = 0
        """Blocks that lost their key because they were taken."""
        self._used = 0
        """Blocks that were ever taken: 1 to this."""
        self._nameless: list[int] = []
        """Free blocks that were used before and have no key; the last one is taken first."""
        self._references = np.zeros(8, np.int32)
        self._run: npt.NDArray[np.object_] = np.zeros(8, np.object_)
        """The run of each block's key, also where another block got the key first; 0: it has none."""
        self._place = np.zeros(8, np.int32)
        """Place of the key in its run."""
        self._freed = np.zeros(8, np.int64)
        """When a block with a key became free the last time."""
        self._queue: deque[tuple[int, npt.NDArray[np.int32]]] = deque()
        """Blocks with a key, and when they became free, in this order. Outdated where they were taken or shared since.
        """
        self._queued = 0
        """Blocks in the queue."""
        self._next: Iterator[int] = iter(())
        """What is left of the entry that was taken from the queue last."""
        self._next_freed = self._time = 0
        self._runs: dict[int, _Run] = {}
        """By the first key."""
        self._more: dict[int, list[int]] = {}
        """Further blocks with the same key."""

    @property
    def free(self) -> int:
        """Blocks that can be taken."""
        return self.evictable + len(self._nameless) + self.blocks - self._used

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of these blocks are free."""
        return len(blocks) - int(np.count_nonzero(self._references[_ids(blocks)]))

    def find(self, keys: Ints) -> list[int]:
        """The blocks of the leading keys, up to the first key that no block has."""
        found: list[int] = []
        while len(found) < len(keys) and (run := self._runs.get(int(keys[len(found)]))) is not None:
            found += run.blocks[: run.common(0, keys[len(found) :])]
        return found

    def share(self, blocks: Sequence[int]) -> None:
        """Add a reference to each of these different blocks. One without references must have a key."""
        ids = _ids(blocks)
        before = self._references[ids]
        self._references[ids] = before + 1
        free, single = int(np.count_nonzero(before == 0)), int(np.count_nonzero(before == 1))
        self.evictable -= free
        self.shared += single
        self.shared_references += len(blocks) - free + single

    def take(self, count: int) -> list[int]:
        """Blocks with one reference each and without keys. The caller makes sure that so many are free."""
        references = self._references
        taken: list[int] = []
        if self._nameless:
            split = max(0, len(self._nameless) - count)
            taken = self._nameless[split:][::-1]
            del self._nameless[split:]
            references[taken] = 1
        fresh = min(count - len(taken), self.blocks - self._used)
        if fresh:
            first = self._used + 1
            self._used += fresh
            if self._used >= len(references):
                self._make_room()
            taken += range(first, first + fresh)
            self._references[first : first + fresh] = 1
        if len(taken) < count:
            taken += self._evict(count - len(taken))
        return taken

    def name(self, before: int | None, blocks: Sequence[int], keys: Ints) -> None:
        """Give taken blocks their keys. `before`: the block in front of them; None: there is none."""
        run, place = (None, 0) if before is None else (self._run[before] or None, int(self._place[before]) + 1)
        known = 0 if run is None else run.common(place, keys)
        if known == 0 and (other := self._runs.get(int(keys[0]))) is not None:
            run, place, known = other, 0, other.common(0, keys)
        if known:
            for key, block in zip(keys[:known].tolist(), blocks, strict=False):
                self._more.setdefault(key, []).append(block)
        else:
            if run is None or place < len(run.keys):
                run, place = _Run(), 0
                self._runs[int(keys[0])] = run
            known = len(keys)
            run.keys.frombytes(keys.tobytes())
            run.blocks.extend(blocks)
        if known == 1:
            self._run[blocks[0]], self._place[blocks[0]] = run, place
        else:
            ids = _ids(blocks[:known])
            self._run[ids], self._place[ids] = run, np.arange(place, place + known, dtype=np.int32)
        if known < len(keys):
            self.name(blocks[known - 1], blocks[known:], keys[known:])

    def give_back(self, blocks: Sequence[int]) -> None:
        """Take one reference from each of these different blocks. Of those that become free and are alike in having a
        key or not, the first will be taken first."""
        ids = _ids(blocks)
        left = self._references[ids] - 1
        self._references[ids] = left
        single = int(np.count_nonzero(left == 1))
        free = ids[left == 0]
        self.shared -= single
        self.shared_references -= len(ids) - len(free) + single
        with_key = self._run[free] != 0
        self._nameless += free[~with_key][::-1].tolist()
        queued = free[with_key]
        if len(queued):
            self._time += 1
            self._freed[queued] = self._time
            self._queue.append((self._time, queued.astype(np.int32)))
            self._queued += len(queued)
            self.evictable += len(queued)
            if self._queued > 2 * self.evictable + _MOST_OUTDATED:
                self._clean()

    def _evict(self, count: int) -> list[int]:
        """Take free blocks that have keys."""
        references, freed = self._references, self._freed
        taken: list[int] = []
        while len(taken) < count:
            for block in self._next:
                if references[block] == 0 and freed[block] == self._next_freed:
                    self._forget(block)
                    references[block] = 1
                    taken.append(block)
                    if len(taken) == count:
                        break
            else:
                self._next_freed, blocks = self._queue.popleft()
                self._queued -= len(blocks)
                self._next = iter(blocks.tolist())
        self.evictable -= count
        self.evictions += count
        return taken

    def _forget(self, block: int) -> None:
        """Take a block's key away; the next block with this key becomes the first."""
        run, place = self._run[block], int(self._place[block])
        self._run[block] = 0
        key = run.keys[place]
        more = self._more.get(key)
        if more is None:  # no key behind it is there any more
            run.keys.pop()
            run.blocks.pop()
            if place == 0:
                del self._runs[key]
            return
        if run.blocks[place] == block:
            run.blocks[place] = more.pop(0)
        else:
            more.remove(block)
        if not more:
            del self._more[key]

    def _clean(self) -> None:
        """Remove what is outdated from the queue."""
        kept = [
            (time, blocks[(self._references[blocks] == 0) & (self._freed[blocks] == time)])
            for time, blocks in self._queue
        ]
        self._queue = deque((time, blocks) for time, blocks in kept if len(blocks))
        self._queued = sum(len(blocks) for _, blocks in self._queue)

    def _make_room(self) -> None:
        """Lengthen the arrays until they hold all blocks that were used."""
        more = max(self._used + 1 - len(self._place), len(self._place) // 2)
        for name in ("_references", "_run", "_place", "_freed"):
            before = getattr(self, name)
            setattr(self, name, np.append(before, np.zeros(more, before.dtype)))


def _ids(blocks: Sequence[int]) -> Ints:
    return np.array(blocks, np.int64)
