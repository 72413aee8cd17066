"""Block tables for paged attention, with private blocks or with blocks shared through the prefix tree."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.kvcache.integers import Ints
from chunkbench.kvcache.pool import ChunkPool
from chunkbench.kvcache.tokens import Tokens
from chunkbench.kvcache.tree import PrefixTree


class JoinedBlocks(NamedTuple):
    """A sequence has joined: tokens `cached ..` of it are to be written to `slots`."""

    sequence: int
    cached: int
    slots: Ints
    """`[n - cached]`: block * block_size + place in the block."""


class BlockTables:
    """Logical to physical blocks of every live sequence (PagedAttention's block table).

    With `share` the tables of sequences with a common prefix name the same physical blocks (PagedAttn* of the paper);
    without it every block is private (PagedAttn).
    """

    def __init__(self, block_size: int, share: bool, max_tokens: int = 1) -> None:
        """`max_tokens`: tokens per sequence that the table has room for from the start; it widens on demand."""
        self.block_size = block_size
        self._tree = PrefixTree(block_size, share=share)
        self._by_slot: npt.NDArray[np.int32] = np.zeros((8, max(1, -(-max_tokens // block_size))), np.int32)

    @property
    def pool(self) -> ChunkPool:
        """The pool of block ids: `capacity`, `in_use`, `peak`, `reserve`."""
        return self._tree.pool

    @property
    def sequences(self) -> list[int]:
        """Ids of the live sequences in order of addition; rows of `table` and `lengths` follow it."""
        return self._tree.sequences

    @property
    def table(self) -> npt.NDArray[np.int32]:
        """`[b, blocks]`, contiguous; entries beyond a sequence's length mean nothing.

        The tables' own memory until a sequence has left before one that is still there; then a copy.
        """
        return self._by_slot[self._tree.slots]

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of every sequence `[b]`."""
        return self._tree.lengths.astype(np.int32)

    def join(self, tokens: Tokens) -> JoinedBlocks:
        """Add a sequence. Raises as `PrefixTree.join` does."""
        joined = self._tree.join(tokens)
        path, slot = self._tree.path(joined.sequence), self._tree.slot(joined.sequence)
        self._make_room(slot + 1, len(path))
        self._by_slot[slot, : len(path)] = path
        length = self._tree.length(joined.sequence)
        places = joined.chunks[:, None] * self.block_size + np.arange(self.block_size)
        return JoinedBlocks(joined.sequence, joined.cached, places.ravel()[: length - joined.cached])

    def append(self, tokens: Tokens) -> Ints:
        """Add one token to every sequence; returns the slots `[b]` to write them to. Raises as `PrefixTree.append`."""
        appended = self._tree.append(tokens)
        if len(appended.new):
            rows = np.flatnonzero(appended.slots == 0)
            columns = (self._tree.lengths[rows] - 1) // self.block_size
            self._make_room(0, int(columns.max()) + 1)
            slots = self._tree.slots
            self._by_slot[rows if isinstance(slots, slice) else slots[rows], columns] = appended.chunks[rows]
        return appended.chunks * self.block_size + appended.slots

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens of a sequence. Raises as `PrefixTree.truncate` does."""
        self._tree.truncate(sequence, length)

    def leave(self, sequence: int) -> None:
        """Remove a sequence. Raises UnknownSequence."""
        self._tree.leave(sequence)

    def _make_room(self, rows: int, columns: int) -> None:
        """Twice the room where there is too little."""
        have_rows, have_columns = self._by_slot.shape
        if rows > have_rows or columns > have_columns:
            wide = have_columns if columns <= have_columns else max(columns, 2 * have_columns)
            tall = have_rows if rows <= have_rows else max(rows, 2 * have_rows)
            table = np.zeros((tall, wide), np.int32)
            table[:have_rows, :have_columns] = self._by_slot
            self._by_slot = table
