"""Plans for the native kernels: which runs of chunks are multiplied with which rows, in which order.

Pure integers. An item is a run of chunks and the rows that cover it; it runs once for every KV head. Items are cut so
that every thread finds work (long runs over keys, many rows over rows) and sorted so that expensive ones start first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.kernels.chunk_store import Ints
from chunkbench.kernels.work import PlanLike

MAX_QUERIES = 64
"""Queries (rows times grouped heads) of an item: its scores and sums stay in the cache."""
UNITS_PER_THREAD = 8
"""Pieces of work for each thread, at least, where runs can be cut so far."""
LEAST_CHUNKS = 4
"""A shorter run costs more in merging than it gains in balance."""
QUERIES_PER_READ = 8
"""Queries whose arithmetic takes about as long as reading the chunk that they are multiplied with."""


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


class Grain(NamedTuple):
    """How fine the items of a plan have to be."""

    threads: int
    kv_heads: int
    group: int
    """Query heads of a KV head."""


@dataclass(frozen=True)
class ItemArrays:
    """Items as the native plan takes them."""

    items: Ints
    """`[items, 8]`: first chunk, chunks, tail row, first row, rows, first partial result (-1: writes the output), first
    fold, folds. Those that leave partial results come first."""
    partial_items: int
    chunks: Ints
    """Chunk ids that the items' ranges refer to."""
    rows: Ints
    folds: Ints
    """Partial results that items fold in before they write the output of their row, one item's after the other."""
    partials: int


def items_of_forest(plan: PlanLike, chunk_first: bool) -> Items:
    """One item for each segment of a forest; without `chunk_first`, one for each row and all of its chunks."""
    lengths = np.diff(plan.starts)
    widths = plan.ends - plan.begins
    if chunk_first:
        own = plan.order[plan.begins]
        ends_there = (widths == 1) & (plan.last_chunks[own] == plan.chunks[plan.starts[1:] - 1])
        tails = np.where(ends_there, own, -1)
        return Items(plan.chunks, plan.order, plan.starts[:-1], lengths, plan.begins, widths, tails)
    # Segments come in depth-first order, so those of one position come in the order of its path.
    positions = _ranges(plan.begins, widths)
    path = np.repeat(np.arange(len(widths)), widths)[np.argsort(positions, kind="stable")]
    counts = np.bincount(positions, np.repeat(lengths, widths), len(plan.order)).astype(np.int64)
    return items_of_tables(plan.chunks[_ranges(plan.starts[path], lengths[path])], counts, plan.order)


def items_of_tables(chunks: Ints, counts: Ints, rows: Ints) -> Items:
    """One item for each of `rows` `[b]`, which covers `counts` `[b]` of `chunks`, one row's after the other's."""
    return Items(chunks, rows, np.cumsum(counts) - counts, counts, np.arange(len(rows)), np.ones_like(counts), rows)


def cut(items: Items, grain: Grain) -> Items:
    """Cut items over rows and over chunks, and sort them by cost, the most expensive first."""
    most_rows = max(1, MAX_QUERIES // grain.group)
    index, _, first, count = _split(items.first_row, items.row_count, -(-items.row_count // most_rows))
    narrow = items.take(index)._replace(first_row=first, row_count=count)
    cost = _cost(narrow, grain)
    unit = cost.sum() * grain.kv_heads / (grain.threads * UNITS_PER_THREAD)
    wanted = np.ceil(cost / unit).astype(np.int64)
    parts = np.maximum(1, np.minimum(wanted, narrow.chunk_count // LEAST_CHUNKS))
    index, is_last, first, count = _split(narrow.first_chunk, narrow.chunk_count, parts)
    fine = narrow.take(index)._replace(first_chunk=first, chunk_count=count)
    fine = fine._replace(tail_row=np.where(is_last, fine.tail_row, -1))
    return fine.take(np.argsort(-_cost(fine, grain), kind="stable"))


def arrays(items: Items, batch: int) -> ItemArrays:
    """Order items in two phases (section 3.2 of the paper).

    Of the items of a row, the last writes the output: the row's own item if it has just one, else an item without
    chunks. All others leave partial results, which the last folds in. An item whose rows have no other is the last of
    all of them.
    """
    widths = items.row_count
    members = items.rows[_ranges(items.first_row, widths)]
    touched = np.bincount(members, minlength=batch)
    own = items.rows[items.first_row]
    single = np.bincount(own[widths == 1], minlength=batch)
    several = np.repeat(np.arange(len(widths)), widths)[touched[members] > 1]
    last = (widths == 1) & (single[own] == 1)
    last |= np.bincount(several, minlength=len(widths)) == 0

    first, finishing = np.flatnonzero(~last), np.flatnonzero(last)
    unwritten = touched > 0
    unwritten[items.rows[_ranges(items.first_row[finishing], widths[finishing])]] = False
    extra = np.flatnonzero(unwritten)
    ordered = items.take(np.concatenate([first, finishing]))

    table = np.zeros((len(ordered.row_count) + len(extra), 8), np.int64)
    table[:, 4] = 1
    table[:, 2] = table[:, 5] = -1
    known = table[: len(ordered.row_count)]
    for column, values in ((0, ordered.first_chunk), (1, ordered.chunk_count), (2, ordered.tail_row)):
        known[:, column] = values
    known[:, 3], known[:, 4] = ordered.first_row, ordered.row_count
    table[len(known) :, 3] = len(items.rows) + np.arange(len(extra))
    rows = np.concatenate([items.rows, extra])

    # Partial results are numbered as their items and rows come; sorted by row, those of a row lie side by side.
    left_by = widths[first]
    table[: len(first), 5] = np.cumsum(left_by) - left_by
    owners = rows[_ranges(items.first_row[first], left_by)]
    left = np.bincount(owners, minlength=batch)
    folds_in = np.flatnonzero((table[:, 5] == -1) & (table[:, 4] == 1))
    own = rows[table[folds_in, 3]]
    table[folds_in, 6] = (np.cumsum(left) - left)[own]
    table[folds_in, 7] = left[own]
    return ItemArrays(
        items=table,
        partial_items=len(first),
        chunks=np.ascontiguousarray(items.chunks, np.int64),
        rows=rows,
        folds=np.argsort(owners, kind="stable"),
        partials=len(owners),
    )


def _cost(items: Items, grain: Grain) -> npt.NDArray[np.float64]:
    """Of one KV head, in readings of a chunk."""
    cost: npt.NDArray[np.float64] = items.chunk_count * (1 + items.row_count * (grain.group / QUERIES_PER_READ))
    return cost


def _split(first: Ints, count: Ints, parts: Ints) -> tuple[Ints, npt.NDArray[np.bool_], Ints, Ints]:
    """Cut ranges into `parts` pieces that differ by one at most.

    For each piece: the range that it comes from, whether it is that range's last, where it begins, how long it is.
    """
    index = np.repeat(np.arange(len(parts)), parts)
    piece = _ranges(np.zeros_like(parts), parts)
    size, longer = (count // parts)[index], (count % parts)[index]
    begin = first[index] + piece * size + np.minimum(piece, longer)
    return index, piece == parts[index] - 1, begin, size + (piece < longer)


def _ranges(first: Ints, count: Ints) -> Ints:
    """The integers first[0] .. first[0] + count[0] - 1, then those of the next range, and so on."""
    offsets = np.cumsum(count) - count
    return np.repeat(first - offsets, count) + np.arange(int(count.sum()))
