"""Arrays that hold the length and the last chunk of each live sequence, and the map from rows of tensors to slots of
these arrays."""

from __future__ import annotations

import heapq
from collections.abc import Collection

import numpy as np

from chunkbench.attention.nodes import TreeSequence
from chunkbench.kernels.changes import Append
from chunkbench.kernels.integers import Ints, ranges


class Slots:
    """Arrays with one slot per live sequence. A sequence keeps its slot when other sequences leave."""

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        # The arrays are longer than the number of sequences, so that joins rarely reallocate.
        self.lengths: Ints = np.zeros(8, np.int64)
        """`[slot]`: tokens of the sequence."""
        self.last_chunks: Ints = np.zeros(8, np.int64)
        """`[slot]`: id of the last chunk."""
        self.last_tokens: Ints = np.zeros(8, np.int64)
        """`[slot]`: tokens in the last chunk, 1..chunk_size."""
        self.tails: Ints = np.zeros((8, chunk_size), np.int64)
        """`[slot, chunk_size]`: token ids of the last chunk, valid while it is partial."""
        self._free: list[int] = []  # heap of slots that were given back
        self._taken = 0  # number of slots ever taken; slots from here on are unused
        self._of_rows: Ints | slice | None = None  # cached result of `of_rows`; None if outdated

    def take(self) -> int:
        """Take the lowest free slot."""
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
        """Free the slot of a sequence that leaves."""
        self._of_rows = None
        heapq.heappush(self._free, slot)

    def of_rows(self, live: Collection[TreeSequence]) -> Ints | slice:
        """`[b]`: the slots of all live sequences in order of addition. The result is a slice if they are 0, 1, ..., b -
        1."""
        if self._of_rows is None:
            slots = np.fromiter((sequence.slot for sequence in live), np.int64, len(live))
            in_order = bool((slots == np.arange(len(slots))).all())
            self._of_rows = slice(0, len(slots)) if in_order else slots
        return self._of_rows

    def rows(self, slots: Ints) -> Ints:
        """The rows of the sequences in these slots. Call `of_rows` first if a sequence joined or left."""
        if isinstance(self._of_rows, slice):
            return slots
        assert self._of_rows is not None
        rows = np.empty(self._taken, np.int64)
        rows[self._of_rows] = np.arange(len(self._of_rows))
        return rows[slots]

    def end_at(self, slot: int, length: int, chunk: int) -> None:
        """Record that a sequence now has `length` tokens and that `chunk` is its last chunk."""
        self.lengths[slot] = length
        self.last_chunks[slot] = chunk
        self.last_tokens[slot] = (length - 1) % self.chunk_size + 1

    def append(self, slots: Ints, token_counts: Ints, chunk_counts: Ints, new: Ints) -> Append:
        """Add `token_counts[i]` tokens to slot `slots[i]`. The slot takes the next `chunk_counts[i]` chunk ids of the
        list `new`.

        Updates all arrays except `tails`, to which the caller writes the token ids.
        """
        c = self.chunk_size
        before = self.last_tokens[slots]
        # `chunks` lists, for each sequence, its last chunk, then its new chunks; `places` count from that last chunk.
        firsts = np.cumsum(chunk_counts) - chunk_counts + np.arange(len(slots))
        chunks = np.empty(len(slots) + len(new), np.int64)
        chunks[firsts] = self.last_chunks[slots]
        chunks[ranges(firsts + 1, chunk_counts)] = new
        places = ranges(before, token_counts)
        written = chunks[np.repeat(firsts, token_counts) + places // c]
        self.last_chunks[slots] = chunks[firsts + chunk_counts]
        self.last_tokens[slots] = before + token_counts - chunk_counts * c
        self.lengths[slots] += token_counts
        return Append(written, places % c, new, every_row=False)
