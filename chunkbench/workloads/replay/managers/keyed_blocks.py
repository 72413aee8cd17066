"""A pool of blocks that takes the least recently used block first, among those with a key."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from chunkbench.attention.tokens import alike
from chunkbench.kernels.integers import Bools, Ints
from chunkbench.workloads.replay.managers.pools import Blocks, ids_of

_MOST_OUTDATED = 1 << 16
"""Stale blocks are removed from the queue when the queue has over this many more stale blocks than live ones."""


class _Run:
    """Keys that follow one another, with the first block that got each key."""

    __slots__ = ("blocks", "keys")

    def __init__(self) -> None:
        self.keys = array("q")
        self.blocks = array("i")

    def common(self, first: int, keys: Ints) -> int:
        """Number of leading `keys` that equal the stored keys from index `first` on."""
        if first == len(self.keys):  # the most frequent case
            return 0
        own = self.keys[first : first + len(keys)]
        return alike(own.tobytes(), keys[: len(own)].tobytes()) // keys.itemsize


class KeyedBlocks(Blocks):
    """A pool that takes blocks with a key in the order in which they became free. Several blocks may have one key.

    A key stands for the tokens of its block and of all earlier blocks of the text. So each key has at most one
    predecessor: the key of the block before. A sequence that holds a block with a key also holds a block with the
    predecessor, and gives back the predecessor's block later. So while a key exists, all its predecessors exist.
    """

    # Traces have millions of blocks, so consecutive keys are stored together, as a run.
    _arrays = ("_references", "_run", "_place", "_freed")

    def __init__(self, blocks: int) -> None:
        super().__init__(blocks)
        self._run: npt.NDArray[np.object_] = np.zeros(8, np.object_)
        """[block] the run of its key, even if another block got the key first; 0 if it has no key."""
        self._place = np.zeros(8, np.int32)
        """[block] index of its key in the run."""
        self._freed = np.zeros(8, np.int64)
        """[block] time when it last became free with a key."""
        self._queue: deque[tuple[int, npt.NDArray[np.int32]]] = deque()
        """(time, blocks with a key that became free at that time), in order. An entry is stale for blocks that were
        taken or shared since then.
        """
        self._queued = 0
        """Number of blocks in the queue, stale ones included."""
        self._next: Iterator[int] = iter(())
        """Blocks of the entry that left the queue last, except those that `_evict` has already examined."""
        self._next_freed = self._time = 0
        self._runs: dict[int, _Run] = {}
        """First key of a run -> the run."""
        self._more: dict[int, list[int]] = {}
        """Key -> further blocks with this key."""

    def find(self, keys: Ints) -> list[int]:
        found: list[int] = []
        while len(found) < len(keys) and (run := self._runs.get(int(keys[len(found)]))) is not None:
            found += run.blocks[: run.common(0, keys[len(found) :])]
        return found

    def name(self, before: int | None, blocks: Sequence[int], keys: Ints) -> None:
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
            ids = ids_of(blocks[:known])
            self._run[ids], self._place[ids] = run, np.arange(place, place + known, dtype=np.int32)
        if known < len(keys):
            self.name(blocks[known - 1], blocks[known:], keys[known:])

    def _have_keys(self, ids: Ints) -> Bools:
        found: Bools = self._run[ids] != 0
        return found

    def _keep(self, ids: Ints) -> None:
        self._time += 1
        self._freed[ids] = self._time
        self._queue.append((self._time, ids.astype(np.int32)))
        self._queued += len(ids)
        if self._queued > 2 * self.evictable + _MOST_OUTDATED:
            self._clean()

    def _evict(self, count: int) -> list[int]:
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
        return taken

    def _forget(self, block: int) -> None:
        """Remove a block's key. If other blocks have the same key, the next of them becomes the first."""
        run, place = self._run[block], int(self._place[block])
        self._run[block] = 0
        key = run.keys[place]
        more = self._more.get(key)
        if more is None:  # no later key of this run exists any more
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
        """Remove stale blocks from the queue."""
        kept = [
            (time, blocks[(self._references[blocks] == 0) & (self._freed[blocks] == time)])
            for time, blocks in self._queue
        ]
        self._queue = deque((time, blocks) for time, blocks in kept if len(blocks))
        self._queued = sum(len(blocks) for _, blocks in self._queue)
