"""Plans for the native kernels: which runs of chunks are multiplied with which rows, and in which order.

Integers only. An item is a run of chunks and the rows that cover it; it runs once for every KV head. The planner cuts
items so that every thread gets work (long runs into shorter runs, many rows into fewer rows), sorts them so that
expensive items start first, and chooses the order in which they read memory: one head after the other, or several heads
chunk by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.kernels.integers import Ints, ranges
from chunkbench.kernels.items import Items

MAX_QUERIES = 64
"""Largest number of queries (rows times grouped heads) of an item: its scores and sums then stay in the cache."""
UNITS_PER_THREAD = 8
"""Smallest number of work units per thread, if the runs are long enough to be cut so far."""
MIN_CHUNKS = 4
"""Smallest run after a cut. A shorter one costs more in the merge than it gains in balance."""
HEADS_TOGETHER = 8
"""Largest number of KV heads that one thread reads chunk by chunk: long stretches of memory, and the sums of all these
heads stay in the first-level cache."""
STAGES = 8
"""Smallest number of steps of heads where rows also share chunks. While one thread computes on the shared chunks of the
next heads, another one reads private chunks."""
QUERIES_PER_READ = 8
"""Number of queries whose arithmetic takes about as long as reading one chunk."""


class Grain(NamedTuple):
    """What the planner needs in order to choose the size of items."""

    threads: int
    kv_heads: int
    group: int
    """Query heads per KV head."""


@dataclass(frozen=True)
class ItemArrays:
    """Items in the form that the native plan takes."""

    items: Ints
    """`[items, 9]`: first chunk, chunks, tail row, first row, rows, first partial result (-1: writes the output), first
    fold, folds, KV heads together. Items that write partial results come first."""
    partial_items: int
    chunks: Ints
    """Chunk ids; the items' ranges refer to this array."""
    rows: Ints
    folds: Ints
    """Numbers of the partial results that items fold in before they write the output of their row, item by item."""
    partials: int


def cut(items: Items, grain: Grain) -> tuple[Items, Ints]:
    """Cut items over rows and over chunks, and sort them by cost, the most expensive first.

    Also returns the number of KV heads that a thread computes together in each item `[items]`. Items of several rows
    take one head at a time, because the sums of all their rows fill the cache. So do items with chunks that other items
    read, too: a head's chunks then stay in the cache.
    """
    most_rows = max(1, MAX_QUERIES // grain.group)
    narrow = items.split_rows(-(-items.row_count // most_rows))
    heads = np.where((narrow.row_count > 1) | _read_twice(narrow), 1, _heads_together(narrow, grain))
    cost = _cost(narrow, grain)
    unit = cost.sum() * grain.kv_heads / (grain.threads * UNITS_PER_THREAD)
    parts_for_balance = np.ceil(cost * heads / unit).astype(np.int64)
    parts = np.maximum(1, np.minimum(parts_for_balance, narrow.chunk_count // MIN_CHUNKS))
    fine = narrow.split_chunks(parts)
    order = np.argsort(-_cost(fine, grain), kind="stable")
    return fine.take(order), np.repeat(heads, parts)[order]


def arrays(items: Items, heads: Ints, batch: int) -> ItemArrays:
    """Order items in two phases (section 3.2 of the paper).

    One item of each row, its last, folds in the partial results of the row's other items and writes the output. This is
    the item that covers only this row, if there is exactly one, else an extra item without chunks. An item of several
    rows writes the output of all of them if none of them has another item.
    """
    widths = items.row_count
    item_rows = items.rows[ranges(items.first_row, widths)]
    items_of_row = np.bincount(item_rows, minlength=batch)
    own = items.rows[items.first_row]
    single = np.bincount(own[widths == 1], minlength=batch)
    shared_items = np.repeat(np.arange(len(widths)), widths)[items_of_row[item_rows] > 1]
    last = (widths == 1) & (single[own] == 1)
    last |= np.bincount(shared_items, minlength=len(widths)) == 0

    partial, finishing = np.flatnonzero(~last), np.flatnonzero(last)
    unwritten = items_of_row > 0
    unwritten[items.rows[ranges(items.first_row[finishing], widths[finishing])]] = False
    extra_rows = np.flatnonzero(unwritten)
    ordered = items.take(np.concatenate([partial, finishing]))

    table = np.zeros((len(ordered.row_count) + len(extra_rows), 9), np.int64)
    table[:, 4] = 1
    table[:, 8] = heads.max(initial=1)
    table[:, 2] = table[:, 5] = -1
    given = table[: len(ordered.row_count)]
    for column, values in ((0, ordered.first_chunk), (1, ordered.chunk_count), (2, ordered.tail_row)):
        given[:, column] = values
    given[:, 3], given[:, 4] = ordered.first_row, ordered.row_count
    given[:, 8] = heads[np.concatenate([partial, finishing])]
    table[len(given) :, 3] = len(items.rows) + np.arange(len(extra_rows))
    rows = np.concatenate([items.rows, extra_rows])

    # Partial results are numbered by item, then by row. `folds` sorts them by row, so each row has one range of it.
    partial_counts = widths[partial]
    table[: len(partial), 5] = np.cumsum(partial_counts) - partial_counts
    owners = rows[ranges(items.first_row[partial], partial_counts)]
    partials_of_row = np.bincount(owners, minlength=batch)
    folding = np.flatnonzero((table[:, 5] == -1) & (table[:, 4] == 1))
    own = rows[table[folding, 3]]
    table[folding, 6] = (np.cumsum(partials_of_row) - partials_of_row)[own]
    table[folding, 7] = partials_of_row[own]
    return ItemArrays(
        items=table,
        partial_items=len(partial),
        chunks=np.ascontiguousarray(items.chunks, np.int64),
        rows=rows,
        folds=np.argsort(owners, kind="stable"),
        partials=len(owners),
    )


def _cost(items: Items, grain: Grain) -> npt.NDArray[np.float64]:
    """Cost of each item for one KV head. The unit is the time to read one chunk."""
    cost: npt.NDArray[np.float64] = items.chunk_count * (1 + items.row_count * (grain.group / QUERIES_PER_READ))
    return cost


def _read_twice(items: Items) -> npt.NDArray[np.bool_]:
    """Whether any chunk of each item occurs in another item, too."""
    counts = np.bincount(items.chunks, minlength=1)
    if counts.max() <= 1:
        return np.zeros(len(items.row_count), np.bool_)
    several = np.concatenate([[0], np.cumsum(counts[items.chunks] > 1)])
    repeated: npt.NDArray[np.bool_] = several[items.first_chunk + items.chunk_count] > several[items.first_chunk]
    return repeated


def _heads_together(items: Items, grain: Grain) -> int:
    """KV heads of one unit of work: as many as leave UNITS_PER_THREAD units for each thread, at most HEADS_TOGETHER."""
    runs = int(np.maximum(1, items.chunk_count // (2 * MIN_CHUNKS)).sum())
    fewest = grain.threads * UNITS_PER_THREAD
    stages = STAGES if (items.row_count > 1).any() else 1
    return max(1, min(HEADS_TOGETHER, grain.kv_heads // stages, runs * grain.kv_heads // fewest))
