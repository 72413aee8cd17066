"""Plans for the native kernels: which runs of chunks are multiplied with which rows, in which order.

Pure integers. An item is a run of chunks and the rows that cover it; it runs once for every KV head. Items are cut so
that every thread finds work (long runs over keys, many rows over rows) and sorted so that expensive ones start first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

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
NOTHING = np.empty(0, np.int64)


class Item(NamedTuple):
    """A run of chunks `[m]` and the rows that cover it.

    `tail_row` is the row whose length the last chunk follows, or -1 where all chunks are full.
    """

    chunks: Ints
    tail_row: int
    rows: Ints


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
    """Chunk ids of all items, one after the other."""
    rows: Ints
    folds: Ints
    """Partial results that items fold in before they write the output of their row, one item's after the other."""
    partials: int


def items_of_forest(plan: PlanLike, chunk_first: bool) -> Iterator[Item]:
    """One item for each segment of a forest; without `chunk_first`, one for each row and all of its chunks."""
    contexts: dict[int, list[Ints]] = {row: [] for row in plan.order.tolist()}
    for segment in plan.segments:
        rows = plan.order[segment.begin : segment.end]
        if not chunk_first:
            for row in rows.tolist():
                contexts[row].append(segment.chunks)
        elif len(rows) == 1:
            row = int(rows[0])
            yield Item(segment.chunks, row if plan.last_chunks[row] == segment.chunks[-1] else -1, rows)
        else:
            yield Item(segment.chunks, -1, rows)
    if not chunk_first:
        for row, chunks in contexts.items():
            yield Item(np.concatenate(chunks), row, np.array([row]))


def cut(items: Iterable[Item], grain: Grain) -> list[Item]:
    """Cut items over rows and over chunks, and sort them by cost, the most expensive first."""
    most_rows = max(1, MAX_QUERIES // grain.group)
    narrow = [part for item in items for part in _over_rows(item, most_rows)]
    total = sum(_cost(item, grain) for item in narrow) * grain.kv_heads
    unit = total / (grain.threads * UNITS_PER_THREAD)
    fine = [part for item in narrow for part in _over_chunks(item, _cost(item, grain) / unit)]
    return sorted(fine, key=lambda item: -_cost(item, grain))


def arrays(items: Sequence[Item], batch: int) -> ItemArrays:
    """Flatten items in two phases (section 3.2 of the paper).

    Of the items of a row, the last writes the output: the row's own item if it has just one, else an item without
    chunks. All others leave partial results, which the last folds in. An item whose rows have no other is the last of
    all of them.
    """
    widths = np.array([len(item.rows) for item in items], np.int64)
    rows = _joined([item.rows for item in items])
    starts = np.cumsum(widths) - widths
    touched = np.bincount(rows, minlength=batch)
    single = np.bincount(rows[starts[widths == 1]], minlength=batch)
    alone = np.logical_and.reduceat(touched[rows] == 1, starts) if len(items) else np.empty(0, bool)
    last = alone | ((widths == 1) & (single[rows[starts]] == 1))
    first = [items[index] for index in np.flatnonzero(~last).tolist()]
    finishing = [items[index] for index in np.flatnonzero(last).tolist()]
    unwritten = touched > 0
    unwritten[_joined([item.rows for item in finishing])] = False
    finishing += [Item(NOTHING, -1, np.array([row])) for row in np.flatnonzero(unwritten).tolist()]

    # Partial results are numbered as their items and rows come; sorted by row, those of a row lie side by side.
    owners = _joined([item.rows for item in first])
    left = np.bincount(owners, minlength=batch)
    ordered = [*first, *finishing]
    rows = _joined([item.rows for item in ordered])
    table = np.empty((len(ordered), 8), np.int64)
    table[:, 1] = [len(item.chunks) for item in ordered]
    table[:, 0] = np.cumsum(table[:, 1]) - table[:, 1]
    table[:, 2] = [item.tail_row for item in ordered]
    table[:, 4] = [len(item.rows) for item in ordered]
    table[:, 3] = np.cumsum(table[:, 4]) - table[:, 4]
    table[:, 5] = np.where(np.arange(len(ordered)) < len(first), table[:, 3], -1)
    own = rows[table[:, 3]]
    folds_in = (table[:, 5] == -1) & (table[:, 4] == 1)
    table[:, 6] = np.where(folds_in, (np.cumsum(left) - left)[own], 0)
    table[:, 7] = np.where(folds_in, left[own], 0)
    return ItemArrays(
        items=table,
        partial_items=len(first),
        chunks=_joined([item.chunks for item in ordered]),
        rows=rows,
        folds=np.argsort(owners, kind="stable"),
        partials=len(owners),
    )


def _cost(item: Item, grain: Grain) -> float:
    """Of one KV head, in readings of a chunk."""
    return len(item.chunks) * (1 + len(item.rows) * grain.group / QUERIES_PER_READ)


def _over_rows(item: Item, most_rows: int) -> Iterator[Item]:
    parts = -(-len(item.rows) // most_rows)
    if parts == 1:
        yield item
        return
    for rows in np.array_split(item.rows, parts):
        yield item._replace(rows=rows)


def _over_chunks(item: Item, units: float) -> Iterator[Item]:
    parts = min(int(np.ceil(units)), len(item.chunks) // LEAST_CHUNKS)
    if parts <= 1:
        yield item
        return
    pieces = np.array_split(item.chunks, parts)
    for index, chunks in enumerate(pieces):
        yield item._replace(chunks=chunks, tail_row=item.tail_row if index == parts - 1 else -1)


def _joined(parts: Sequence[Ints]) -> Ints:
    return np.ascontiguousarray(np.concatenate(parts) if parts else NOTHING, np.int64)
