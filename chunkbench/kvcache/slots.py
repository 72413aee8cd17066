"""What is known of each live sequence, in arrays; and how the rows of tensors lie in them."""

from __future__ import annotations

import heapq
from collections.abc import Collection

import numpy as np

from chunkbench.kvcache.changes import Append
from chunkbench.kvcache.integers import Ints, ranges
from chunkbench.kvcache.nodes import Sequence


class Slots:
    """Arrays with a place for each live sequence, which it keeps: when one leaves, nothing moves."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        # Longer than there are sequences, so that joins seldom reallocate.
        self.lengths: Ints = np.zeros(8, np.int64)
        """`[slot]`: tokens."""
        self.last_chunks: Ints = np.zeros(8, np.int64)
        """`[slot]`: id of the last chunk."""
        self.last_tokens: Ints = np.zeros(8, np.int64)
        """`[slot]`: tokens in it, 1..chunk_size."""
        self.tails: Ints = np.zeros((8, chunk_size), np.int64)
        """`[slot, chunk_size]`: their ids, valid while the chunk is partial."""
        self._free: list[int] = []  # heap of slots that were taken before
        self._taken = 0  # slots from here on were never taken
        self._of_rows: Ints | slice | None = None  # None: to be found

    def take(self) -> int:
        """A free slot, the lowest."""
        self._of_rows = None
        if self._free:
            return heapq.heappop(self._free)
        if self._taken == len(self.lengths):
            self.lengths, self.last_chunks, self.last_tokens, self.tails = (
                np.concatenate([array, np.zeros_like(array)])
                for array in (self.lengths, self.last_chunks, self.last_tokens, self.tails)
            )
        self._taken += 1
        return self._taken - 1

    def give_back(self, slot: int) -> None:
        """The sequence in this slot has left."""
        self._of_rows = None
        heapq.heappush(self._free, slot)

    def of_rows(self, live: Collection[Sequence]) -> Ints | slice:
        """`[b]`: the slots of all live sequences, in order of addition; a slice where they are 0, 1, ..., b - 1."""
        if self._of_rows is None:
            slots = np.fromiter((sequence.slot for sequence in live), np.int64, len(live))
            in_order = bool((slots == np.arange(len(slots))).all())
            self._of_rows = slice(0, len(slots)) if in_order else slots
        return self._of_rows

    def rows(self, slots: Ints) -> Ints:
        """The rows of sequences in these slots. `of_rows` has been asked since the last one came or left."""
        if isinstance(self._of_rows, slice):
            return slots
        assert self._of_rows is not None
        rows = np.empty(self._taken, np.int64)
        rows[self._of_rows] = np.arange(len(self._of_rows))
        return rows[slots]

    def end_at(self, slot: int, length: int, chunk: int) -> None:
        """A sequence now has `length` tokens, the last of them in this chunk."""
        self.lengths[slot] = length
        self.last_chunks[slot] = chunk
        self.last_tokens[slot] = (length - 1) % self.chunk_size + 1

    def append(self, slots: Ints, taken: Ints, begin: Ints, new: Ints) -> Append:
        """`taken[i]` tokens for slot `slots[i]`, which begins `begin[i]` of the chunks `new` for them.

        Lengths and last chunks follow; `tails` is the caller's.
        """
        c = self.chunk_size
        held = self.last_tokens[slots]
        # Each sequence's chunks from its last one on, and where its tokens lie, counted from the begin of that.
        firsts = np.cumsum(begin) - begin + np.arange(len(slots))
        chunks = np.empty(len(slots) + len(new), np.int64)
        chunks[firsts] = self.last_chunks[slots]
        chunks[ranges(firsts + 1, begin)] = new
        places = ranges(held, taken)
        written = chunks[np.repeat(firsts, taken) + places // c]
        self.last_chunks[slots] = chunks[firsts + begin]
        self.last_tokens[slots] = held + taken - begin * c
        self.lengths[slots] += taken
        return Append(written, places % c, new, every_row=False)
