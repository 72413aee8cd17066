"""Block tables for paged attention, with private blocks or with blocks that the prefix tree shares."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.attention.tokens import Tokens
from chunkbench.attention.tree import PrefixTree
from chunkbench.kernels.changes import Copy
from chunkbench.kernels.integers import Ints


class JoinedBlocks(NamedTuple):
    """The result of a join. The caller must write K and V of the tokens from position `cached` to the end into
    `slots`."""

    sequence: int
    cached: int
    slots: Ints
    """`[n - cached]`: the slot of each of these tokens, block * block_size + position in the block."""


class BlockTables:
    """The map from logical to physical blocks of every live sequence (PagedAttention's block table). Its rows are the
    rows of `tree`.

    With `share`, sequences with a common prefix use the same physical blocks (PagedAttn* of the paper). Without it,
    every block is private (PagedAttn).
    """

    def __init__(self, block_size: int, share: bool, max_tokens: int = 1) -> None:
        """`max_tokens`: tokens per sequence for which the table has room at first. The table grows on demand."""
        self.block_size = block_size
        self.tree = PrefixTree(block_size, share=share)
        """The prefix tree, whose chunks are the blocks. Its method `leave` removes a sequence."""
        self._by_slot: npt.NDArray[np.int32] = np.zeros((8, max(1, -(-max_tokens // block_size))), np.int32)

    @property
    def table(self) -> npt.NDArray[np.int32]:
        """`[b, blocks]`, contiguous: block ids of every sequence. Entries beyond a sequence's length are undefined.

        The result is a view of internal memory if every row equals its slot (see `PrefixTree.slots`), else a copy.
        """
        return self._by_slot[self.tree.slots]

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """`[b]`: number of tokens of every sequence."""
        return self.tree.lengths.astype(np.int32)

    def join(self, tokens: Tokens) -> JoinedBlocks:
        """Add a sequence. Raises the same errors as `PrefixTree.join`."""
        joined = self.tree.join(tokens)
        path, slot = self.tree.path(joined.sequence), self.tree.slot(joined.sequence)
        self._make_room(slot + 1, len(path))
        self._by_slot[slot, : len(path)] = path
        length = self.tree.length(joined.sequence)
        slots = joined.chunks[:, None] * self.block_size + np.arange(self.block_size)
        return JoinedBlocks(joined.sequence, joined.cached, slots.ravel()[: length - joined.cached])

    def append(self, tokens: Tokens) -> Ints:
        """Add one token to every sequence. Returns the slots `[b]` of the new tokens. Raises the same errors as
        `PrefixTree.append`."""
        appended = self.tree.append(tokens)
        if len(appended.new):
            rows = np.flatnonzero(appended.slots == 0)
            columns = (self.tree.lengths[rows] - 1) // self.block_size
            self._make_room(0, int(columns.max()) + 1)
            slots = self.tree.slots
            self._by_slot[rows if isinstance(slots, slice) else slots[rows], columns] = appended.chunks[rows]
        return appended.chunks * self.block_size + appended.slots

    def truncate(self, sequence: int, length: int) -> Copy | None:
        """Keep the first `length` tokens of a sequence. The caller must copy the tokens that the returned `Copy` names.

        Raises the same errors as `PrefixTree.truncate`.
        """
        copy = self.tree.truncate(sequence, length)
        if copy is not None:
            self._by_slot[self.tree.slot(sequence), length // self.block_size] = copy.target
        return copy

    def _make_room(self, rows: int, columns: int) -> None:
        """Double the number of rows or columns if the table has too few."""
        old_rows, old_columns = self._by_slot.shape
        if rows > old_rows or columns > old_columns:
            new_columns = old_columns if columns <= old_columns else max(columns, 2 * old_columns)
            new_rows = old_rows if rows <= old_rows else max(rows, 2 * old_rows)
            table = np.zeros((new_rows, new_columns), np.int32)
            table[:old_rows, :old_columns] = self._by_slot
            self._by_slot = table
