"""Items: runs of chunks and the rows that cover them, before they are cut to the size of a machine. Integers only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.kvcache.integers import Ints, ranges
from chunkbench.kvcache.plan import Plan


class Items(NamedTuple):
    """Runs of chunks and the rows that cover them: item i covers `chunk_count[i]` of `chunks` from `first_chunk[i]` on,
    for `row_count[i]` of `rows` from `first_row[i]` on."""

    chunks: Ints
    """Chunk ids."""
    rows: Ints
    first_chunk: Ints
    chunk_count: Ints
    first_row: Ints
    row_count: Ints
    tail_row: Ints
    """The row whose length an item's last chunk follows, or -1 where all its chunks are full."""

    def take(self, index: Ints) -> Items:
        """Some of the items, in this order."""
        return Items(self.chunks, self.rows, *(column[index] for column in self[2:]))


def items_of_forest(plan: Plan, chunk_first: bool) -> Items:
    """One item for each segment of a forest; without `chunk_first`, one for each row and all of its chunks."""
    lengths = np.diff(plan.starts)
    widths = plan.ends - plan.begins
    if chunk_first:
        own = plan.order[plan.begins]
        ends_there = (widths == 1) & (plan.last_chunks[own] == plan.chunks[plan.starts[1:] - 1])
        tails = np.where(ends_there, own, -1)
        return Items(plan.chunks, plan.order, plan.starts[:-1], lengths, plan.begins, widths, tails)
    # Segments come in depth-first order, so those of one position come in the order of its path.
    positions = ranges(plan.begins, widths)
    path = np.repeat(np.arange(len(widths)), widths)[np.argsort(positions, kind="stable")]
    counts = np.bincount(positions, np.repeat(lengths, widths), len(plan.order)).astype(np.int64)
    return items_of_tables(plan.chunks[ranges(plan.starts[path], lengths[path])], counts, plan.order)


def items_of_tables(chunks: Ints, counts: Ints, rows: Ints) -> Items:
    """One item for each of `rows` `[b]`, which covers `counts` `[b]` of `chunks`, one row's after the other's."""
    return Items(chunks, rows, np.cumsum(counts) - counts, counts, np.arange(len(rows)), np.ones_like(counts), rows)


def split(first: Ints, count: Ints, parts: Ints) -> tuple[Ints, npt.NDArray[np.bool_], Ints, Ints]:
    """Cut ranges into `parts` pieces that differ by one at most.

    For each piece: the range that it comes from, whether it is that range's last, where it begins, how long it is.
    """
    index = np.repeat(np.arange(len(parts)), parts)
    piece = ranges(np.zeros_like(parts), parts)
    size, longer = (count // parts)[index], (count % parts)[index]
    begin = first[index] + piece * size + np.minimum(piece, longer)
    return index, piece == parts[index] - 1, begin, size + (piece < longer)
