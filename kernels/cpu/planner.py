"""Plans for the native kernels: which runs of chunks are multiplied with which rows, in which order.

Pure integers. An item is a run of chunks and the rows that cover it; it runs once for every KV head. Items are cut so
that every thread finds work (long runs over keys, many rows over rows) and sorted so that expensive ones start first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.kernels.items import Items, split
from chunkbench.kvcache.integers import Ints, ranges

MAX_QUERIES = 64
"""Queries (rows times grouped heads) of an item: its scores and sums stay in the cache."""
UNITS_PER_THREAD = 8
"""Pieces of work for each thread, at least, where runs can be cut so far."""
LEAST_CHUNKS = 4
"""A shorter run costs more in merging than it gains in balance."""
QUERIES_PER_READ = 8
"""Queries whose arithmetic takes about as long as reading the chunk that they are multiplied with."""


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


def cut(items: Items, grain: Grain) -> Items:
    """Cut items over rows and over chunks, and sort them by cost, the most expensive first."""
    most_rows = max(1, MAX_QUERIES // grain.group)
    index, _, first, count = split(items.first_row, items.row_count, -(-items.row_count // most_rows))
    narrow = items.take(index)._replace(first_row=first, row_count=count)
    cost = _cost(narrow, grain)
    unit = cost.sum() * grain.kv_heads / (grain.threads * UNITS_PER_THREAD)
    wanted = np.ceil(cost / unit).astype(np.int64)
    parts = np.maximum(1, np.minimum(wanted, narrow.chunk_count // LEAST_CHUNKS))
    index, is_last, first, count = split(narrow.first_chunk, narrow.chunk_count, parts)
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
    members = items.rows[ranges(items.first_row, widths)]
    touched = np.bincount(members, minlength=batch)
    own = items.rows[items.first_row]
    single = np.bincount(own[widths == 1], minlength=batch)
    several = np.repeat(np.arange(len(widths)), widths)[touched[members] > 1]
    last = (widths == 1) & (single[own] == 1)
    last |= np.bincount(several, minlength=len(widths)) == 0

    first, finishing = np.flatnonzero(~last), np.flatnonzero(last)
    unwritten = touched > 0
    unwritten[items.rows[ranges(items.first_row[finishing], widths[finishing])]] = False
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
    owners = rows[ranges(items.first_row[first], left_by)]
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
