"""Plans for the native kernels: which runs of chunks are multiplied with which rows, and in which order.

Integers only. An item is a run of chunks and the rows that cover this run. Each item runs once for every KV head. The
planner cuts long runs and large sets of rows, so that every thread gets work. It sorts items so that expensive items
start first. It also chooses the order in which an item reads memory: one head after the other, or several heads chunk
by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.kernels.integers import Bools, Ints, any_inside
from chunkbench.kernels.items import ITEM_COLUMNS, Items, items_of_tables, number_partials, together

MAX_QUERIES = 64
"""Largest number of queries of an item: rows times query heads per KV head. Then its scores and sums stay in the
cache."""
UNITS_PER_THREAD = 8
"""Smallest number of work units per thread, if the runs are long enough to be cut into so many units."""
MIN_CHUNKS = 4
"""Fewest chunks of a run after a cut. A shorter run costs more in the merge than it gains in balance."""
HEADS_TOGETHER = 8
"""Largest number of KV heads that one thread reads together, chunk by chunk. So reads are long, and the sums of these
heads stay in the first-level cache."""
STAGES = 8
"""Smallest number of stages, if rows share chunks and there are enough KV heads. A stage is a group of KV heads. While
one thread computes on the shared chunks of the next stage, another thread reads private chunks."""
QUERIES_PER_READ = 8
"""Number of queries whose arithmetic takes about as long as reading one chunk."""


class Grain(NamedTuple):
    """The numbers from which the planner chooses the size of items."""

    threads: int
    kv_heads: int
    group: int
    """Query heads per KV head."""


COLUMNS = (*ITEM_COLUMNS, "heads")
"""The fields of `Item` in src/attention.h: ITEM_COLUMNS, and the number of KV heads that a thread computes together."""
ITEM = np.dtype([(name, np.int64) for name in COLUMNS])


@dataclass(frozen=True)
class ItemArrays:
    """Items in the form that the native plan takes."""

    items: npt.NDArray[np.void]
    """`[items]`, dtype ITEM. Items that write partial results come first."""
    partial_items: int
    chunks: Ints
    """Chunk ids. The items' ranges refer to this array."""
    rows: Ints
    folds: Ints
    """Indices of partial results, row by row. An item folds them in before it writes the output of its row."""


def cut(items: Items, grain: Grain) -> tuple[Items, Ints]:
    """Cut items over rows and over chunks, and sort them by cost, the most expensive first.

    Also returns `[items]`: number of KV heads that a thread computes together in each item. It is 1 for an item of
    several rows with more queries than QUERIES_PER_READ, because the sums of all its rows fill the cache. It is also 1
    for an item with a chunk that another item reads. The chunks of one head then stay in the cache.
    """
    narrow = items.split_rows(max(1, MAX_QUERIES // grain.group))
    many = (narrow.row_count > 1) & (narrow.row_count * grain.group > QUERIES_PER_READ)
    heads = np.where(many | _read_twice(narrow), 1, _heads_together(narrow, grain))
    cost = _cost(narrow, grain)
    unit = cost.sum() * grain.kv_heads / (grain.threads * UNITS_PER_THREAD)
    parts_for_balance = np.ceil(cost * heads / unit).astype(np.int64)
    parts = np.maximum(1, np.minimum(parts_for_balance, narrow.chunk_count // MIN_CHUNKS))
    fine = narrow.split_chunks(parts)
    order = np.argsort(-_cost(fine, grain), kind="stable")
    return fine.take(order), np.repeat(heads, parts)[order]


def arrays(items: Items, heads: Ints, batch: int) -> ItemArrays:
    """Order items in two phases (section 3.2 of the paper): items that write partial results, then items that write
    outputs.

    Each row has one last item, which adds the partial results of the row's other items and writes the row's output. If
    exactly one item of the row covers this row alone, it is the last item. Else the row gets an extra item without
    chunks. If the rows of an item have no other items, the item writes their outputs itself.
    """
    own = items.only_own(batch)
    partials = number_partials(items, items.divided(items.of_rows(batch)) & ~own, batch)
    first_partial, unwritten = partials.first, partials.folds > 0
    unwritten[items.rows[items.first_row[own]]] = False
    if unwritten.any():
        rows = np.flatnonzero(unwritten)
        none = np.zeros_like(rows)
        items = together(items, items_of_tables(none[:0], none, rows)._replace(tail_row=none - 1))
        first_partial = np.append(first_partial, none - 1)
        heads = np.append(heads, none + heads.max())
    order = np.argsort(first_partial < 0, kind="stable")
    items = items.take(order)

    table = items.table(ITEM, first_partial[order])
    table["heads"] = heads[order]
    partial_items = int((first_partial >= 0).sum())
    folding = np.flatnonzero(items.row_count[partial_items:] == 1) + partial_items
    row = items.rows[items.first_row[folding]]
    table["first_fold"][folding], table["folds"][folding] = partials.first_fold[row], partials.folds[row]
    return ItemArrays(table, partial_items, items.chunks.astype(np.int64), items.rows, partials.by_row)


def _cost(items: Items, grain: Grain) -> npt.NDArray[np.float64]:
    """Cost of each item for one KV head. The unit is the time to read one chunk."""
    cost: npt.NDArray[np.float64] = items.chunk_count * (1 + items.row_count * (grain.group / QUERIES_PER_READ))
    return cost


def _read_twice(items: Items) -> Bools:
    """`[items]`: whether another item also has one of the item's chunks."""
    counts = np.bincount(items.chunks, minlength=1)
    if counts.max() <= 1:
        return np.zeros(len(items.row_count), np.bool_)
    return any_inside(counts[items.chunks] > 1, items.first_chunk, items.chunk_count)


def _heads_together(items: Items, grain: Grain) -> int:
    """Number of KV heads of one unit of work: at most HEADS_TOGETHER, and few enough for UNITS_PER_THREAD units per
    thread."""
    runs = int(np.maximum(1, items.chunk_count // (2 * MIN_CHUNKS)).sum())
    fewest = grain.threads * UNITS_PER_THREAD
    stages = STAGES if (items.row_count > 1).any() else 1
    return max(1, min(HEADS_TOGETHER, grain.kv_heads // stages, runs * grain.kv_heads // fewest))
