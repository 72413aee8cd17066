"""Items: runs of chunks and the rows that cover them, before a planner cuts them for a machine. Integers only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.kvcache.integers import Ints, ranges
from chunkbench.kvcache.plan import Plan


class Items(NamedTuple):
    """Runs of chunks and the rows that cover them. Item i has `chunk_count[i]` of `chunks`, starting at index
    `first_chunk[i]`, and `row_count[i]` of `rows`, starting at index `first_row[i]`."""

    chunks: Ints
    """Chunk ids."""
    rows: Ints
    first_chunk: Ints
    chunk_count: Ints
    first_row: Ints
    row_count: Ints
    tail_row: Ints
    """The row whose length sets the number of tokens in the item's last chunk, or -1 if all chunks are full."""

    def take(self, index: Ints) -> Items:
        """The items with these indices, in this order."""
        return Items(self.chunks, self.rows, *(column[index] for column in self[2:]))


def items_of_forest(plan: Plan, chunk_first: bool) -> Items:
    """One item for each segment of a forest. Without `chunk_first`, one item for each row with all of its chunks."""
    lengths = np.diff(plan.starts)
    widths = plan.ends - plan.begins
    if chunk_first:
        first_row = plan.order[plan.begins]
        ends_inside = (widths == 1) & (plan.last_chunks[first_row] == plan.chunks[plan.starts[1:] - 1])
        tails = np.where(ends_inside, first_row, -1)
        return Items(plan.chunks, plan.order, plan.starts[:-1], lengths, plan.begins, widths, tails)
    # Segments are in depth-first order, so a stable sort keeps each position's segments in path order.
    positions = ranges(plan.begins, widths)
    path = np.repeat(np.arange(len(widths)), widths)[np.argsort(positions, kind="stable")]
    counts = np.bincount(positions, np.repeat(lengths, widths), len(plan.order)).astype(np.int64)
    return items_of_tables(plan.chunks[ranges(plan.starts[path], lengths[path])], counts, plan.order)


def items_of_tables(chunks: Ints, counts: Ints, rows: Ints) -> Items:
    """One item for each of `rows` `[b]`. `chunks` lists the chunks row by row, `counts[i]` of them for `rows[i]`."""
    return Items(chunks, rows, np.cumsum(counts) - counts, counts, np.arange(len(rows)), np.ones_like(counts), rows)


def split(first: Ints, count: Ints, parts: Ints) -> tuple[Ints, npt.NDArray[np.bool_], Ints, Ints]:
    """Cut range i into `parts[i]` pieces whose lengths differ by at most one.

    Returns for each piece: the index of its range, whether it is the last piece of that range, its begin, its length.
    """
    index = np.repeat(np.arange(len(parts)), parts)
    piece = ranges(np.zeros_like(parts), parts)
    size, longer = (count // parts)[index], (count % parts)[index]
    begin = first[index] + piece * size + np.minimum(piece, longer)
    return index, piece == parts[index] - 1, begin, size + (piece < longer)
