"""Makes the forest of chunks from block tables. Sequences that share a prefix have the same leading block ids."""

from __future__ import annotations

import numpy as np

from chunkbench.kernels.integers import Ints, ranges
from chunkbench.kernels.plan import Plan

_NONE: Ints = np.empty(0, np.int64)


class BlockForest:
    """Makes a plan from the block tables of each step of an engine."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._blocks: Ints = np.empty((0, 0), np.int64)  # of the last step; -1 after the blocks in use
        self._last_tokens = _NONE
        zero = np.zeros(1, np.int64)
        self._nothing = Plan(block_size, _NONE, zero, _NONE, _NONE, _NONE, _NONE, _NONE, slice(0, 0))
        self._plan = self._nothing

    def plan(self, table: Ints, lengths: Ints) -> Plan:
        """The plan of `b` sequences. Row i of the plan is sequence i.

        `table` `[b, blocks]`: block ids. `lengths` `[b]`: tokens of each sequence, at least 1. If the sequences have
        the same blocks as in the last call, the result is the same object, with the new lengths.
        """
        if not len(lengths):
            return self._nothing
        used = -(-lengths // self._size)
        # Always 64 bits, because ids are multiplied by the bytes of a block.
        minus = np.int64(-1)
        blocks = np.where(np.arange(int(used.max())) < used[:, None], table[:, : int(used.max())], minus)
        if not np.array_equal(blocks, self._blocks):
            self._last_tokens = np.empty(len(used), np.int64)
            self._plan = self._found(blocks, lengths, used)
            self._blocks = blocks
        self._last_tokens[:] = lengths - (used - 1) * self._size
        return self._plan

    def _found(self, blocks: Ints, lengths: Ints, used: Ints) -> Plan:
        """Make a plan from these block tables."""
        # After sorting as bytes, tables with the same first blocks are neighbours. Their order does not matter.
        keys = np.ascontiguousarray(blocks).view(np.dtype((np.void, blocks.shape[1] * blocks.itemsize)))
        order = np.argsort(keys.ravel(), kind="stable")
        ordered, full = blocks[order], lengths[order] // self._size
        differ = np.column_stack([ordered[1:] != ordered[:-1], np.ones(len(order) - 1, np.bool_)])
        # Only full blocks are shared, because a sequence writes into its last block.
        common = np.minimum(differ.argmax(1), np.minimum(full[1:], full[:-1]))
        begins, ends, firsts, counts = (np.array(column, np.int64) for column in _segments(used[order], common))
        return Plan(
            self._size,
            ordered[np.repeat(begins, counts), ranges(firsts, counts)],
            np.concatenate([[0], np.cumsum(counts)]),
            begins,
            ends,
            order,
            blocks[np.arange(len(used)), used - 1],
            self._last_tokens,
            slice(0, len(order)),
        )


def _segments(used: Ints, common: Ints) -> tuple[list[int], list[int], list[int], list[int]]:
    """Segments of sorted tables, parents before children: first row, row after the last, index of the first block,
    number of blocks.

    `used`: number of blocks of each table; `common`: number of blocks that each table shares with the next one.
    """
    lengths, shared_with_next = used.tolist(), [*common.tolist(), 0]
    begins: list[int] = []
    ends: list[int] = []
    firsts: list[int] = []
    counts: list[int] = []
    waiting = [(0, len(lengths), 0)]  # neighbours, and the number of their blocks that are already in segments
    while waiting:
        begin, end, above = waiting.pop()
        first = begin
        for row in range(begin, end):
            if row + 1 < end and shared_with_next[row] > above:
                continue
            # Rows first .. row share more than `above` blocks. A single row has its remaining blocks for itself.
            shared = min(shared_with_next[first:row]) if row > first else lengths[row]
            if shared > above:
                begins.append(first)
                ends.append(row + 1)
                firsts.append(above)
                counts.append(shared - above)
            if row > first:
                waiting.append((first, row + 1, shared))
            first = row + 1
    return begins, ends, firsts, counts
