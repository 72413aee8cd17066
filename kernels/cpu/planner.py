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
    """Items as the native plan takes them, and how the partial results of rows are merged."""

    items: Ints
    """`[items, 6]`: first chunk, chunks, tail row, first row, rows, first partial result (-1: writes the output)."""
    chunks: Ints
    """Chunk ids of all items, one after the other."""
    rows: Ints
    merge_rows: Ints
    """Rows with partial results; those of merge_rows[i] are merge_partials[merge_starts[i]:merge_starts[i + 1]]."""
    merge_starts: Ints
    merge_partials: Ints
    partials: int


def items_of_forest(plan: PlanLike, chunk_first: bool) -> Iterator[Item]:
    """One item for each segment of a forest; without `chunk_first`, one for each segment and row that covers it."""
    for segment in plan.segments:
        rows = plan.order[segment.begin : segment.end]
        if len(rows) == 1:
            row = int(rows[0])
            yield Item(segment.chunks, row if plan.last_chunks[row] == segment.chunks[-1] else -1, rows)
        elif chunk_first:
            yield Item(segment.chunks, -1, rows)
        else:
            for index in range(len(rows)):
                yield Item(segment.chunks, -1, rows[index : index + 1])


def cut(items: Iterable[Item], grain: Grain) -> list[Item]:
    """Cut items over rows and over chunks, and sort them by cost, the most expensive first."""
    most_rows = max(1, MAX_QUERIES // grain.group)
    narrow = [part for item in items for part in _over_rows(item, most_rows)]
    total = sum(_cost(item, grain) for item in narrow) * grain.kv_heads
    unit = total / (grain.threads * UNITS_PER_THREAD)
    fine = [part for item in narrow for part in _over_chunks(item, _cost(item, grain) / unit)]
    return sorted(fine, key=lambda item: -_cost(item, grain))


def arrays(items: Sequence[Item], batch: int) -> ItemArrays:
    """Flatten items. A row of several items gets a partial result from each; any other is written directly."""
    rows = _joined([item.rows for item in items])
    touched = np.bincount(rows, minlength=batch)
    table = np.empty((len(items), 6), np.int64)
    chunk, row, partial = 0, 0, 0
    shared: list[Ints] = []
    for index, item in enumerate(items):
        direct = bool((touched[item.rows] == 1).all())
        table[index] = (chunk, len(item.chunks), item.tail_row, row, len(item.rows), -1 if direct else partial)
        chunk += len(item.chunks)
        row += len(item.rows)
        if not direct:
            shared.append(item.rows)
            partial += len(item.rows)
    owners = np.concatenate(shared) if shared else NOTHING
    by_row = np.argsort(owners, kind="stable")
    merge_rows, counts = np.unique(owners, return_counts=True)
    return ItemArrays(
        items=table,
        chunks=_joined([item.chunks for item in items]),
        rows=rows,
        merge_rows=merge_rows,
        merge_starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        merge_partials=by_row,
        partials=partial,
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
