"""Plans for the GPU kernels: which runs of chunks are multiplied with which rows, in which order. Pure integers.

Costs are counted in tokens that one block reads for one KV head. An item runs once per KV head, so that what is cut
here is one head's share of the work.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.kernels.items import Items, split
from chunkbench.kvcache.integers import Ints, ranges

ITEM_TOKENS = 24
"""What an item costs beside its tokens: starting, loading its queries, writing."""
TAIL_TOKENS = 64
"""A row's own run that is no longer than this is left to the merge, where one is needed anyway."""
WAVES = (0.6, 0.9, 1, 1.9, 3, 5, 8)
"""Tried: programs for so many times the blocks that run side by side."""


class Shape(NamedTuple):
    """What a plan is made for."""

    kv_heads: int
    group: int
    """Query heads of a KV head."""
    chunk_size: int
    multiprocessors: int
    blocks: int
    """Blocks that a multiprocessor runs side by side."""
    narrow_blocks: int
    """The same of a plan without an item that needs the large tile."""
    narrow: int
    """Query heads that the small tile takes."""
    lanes: int
    """Query heads that the largest tile takes."""
    head_tokens: float
    """A float32 head vector written and read again, in tokens of K and V: 2 for 16-bit K and V."""
    tails: bool
    """Whether the merge may go on with a row's own run."""
    growth: int = 8
    """Chunks that a row's own run can take before everything is planned anew."""


class Descriptors(NamedTuple):
    """What the kernels read; see `attention.partial_results`."""

    items: npt.NDArray[np.int32]
    """`[items, 8]`: first chunk, chunks, first position, positions, partial slot or -1, tail row or -1."""
    order: npt.NDArray[np.int32]
    """`[positions]`: row of each."""
    rows: npt.NDArray[np.int32]
    """`[b, 4]`: first fold, folds, first chunk of the tail, its chunks."""
    folds: npt.NDArray[np.int32]
    """Partial slots, one row's after the other's."""
    chunks: Ints
    """Chunk ids that the items' ranges refer to."""

    @property
    def slots(self) -> int:
        """Partial results that items leave."""
        return len(self.folds)

    @property
    def merges(self) -> bool:
        """Whether any row is left to the merge."""
        return bool(self.rows[:, [1, 3]].any())

    def widest(self) -> int:
        """Positions of the widest item."""
        return int(self.items[:, 3].max(initial=0))


def describe(items: Items, batch: int, shape: Shape) -> Descriptors:
    """Cut and order items for a machine; every key of every row is in exactly one item or tail."""
    items = fold_short(items, shape)
    items = split_rows(items, shape)
    tails = find_tails(items, batch) if shape.tails else np.zeros(len(items.row_count), bool)
    tails &= items.chunk_count * shape.chunk_size <= TAIL_TOKENS
    table = np.zeros((batch, 4), np.int32)
    own = items.rows[items.first_row[tails]]
    table[own, 2], table[own, 3] = items.first_chunk[tails], items.chunk_count[tails]
    items = split_keys(items.take(np.flatnonzero(~tails)), shape)
    return _arrays(items, table)


def spread(made: Descriptors, shape: Shape) -> Ints:
    """Leave places behind every row's own run, so that it can grow: moves runs, and says where each chunk now is."""
    own, tailed, room = made.items[:, 5] >= 0, made.rows[:, 3] > 0, shape.growth
    ends = np.sort(np.concatenate([made.items[own, :2].sum(1), made.rows[tailed, 2:].sum(1)]))
    for table, column in ((made.items, 0), (made.rows, 2)):
        table[:, column] += room * np.searchsorted(ends, table[:, column], side="right").astype(np.int32)
    places = np.arange(len(made.chunks))
    return places + room * np.searchsorted(ends, places, side="right")


def room_to_grow(made: Descriptors, own: Ints, shape: Shape) -> Ints:
    """Chunks that each row's own run `own` `[b]` (its item, or -1) can take after `spread`, before it is cut anew.

    A tail grows to twice the length at which it would have been an item.
    """
    longest = 2 * TAIL_TOKENS // shape.chunk_size
    tails = np.where(made.rows[:, 3] > 0, np.clip(longest - made.rows[:, 3], 0, shape.growth), 0)
    return np.where(own >= 0, shape.growth, tails)


def fold_short(items: Items, shape: Shape) -> Items:
    """Give short shared runs to the runs below them, where reading them again costs less than merging them.

    Items come in depth-first order, as `items_of_forest` makes them.
    """
    tokens = items.chunk_count * shape.chunk_size
    # What a row saves: a partial result less to write and read, or an item less that it takes part in.
    saved = ITEM_TOKENS + items.row_count * (shape.group * shape.head_tokens)
    shared = np.flatnonzero(items.row_count > 1)
    if not (tokens[shared] <= saved[shared]).any():
        return items
    parent = np.full(len(tokens), -1)
    stops = np.searchsorted(items.first_row, (items.first_row + items.row_count)[shared])
    for index, stop in zip(shared.tolist(), stops.tolist(), strict=True):
        parent[index + 1 : stop] = index  # those further down are overwritten by their own
    below = np.flatnonzero(parent >= 0)
    parts = np.bincount(parent[below], minlength=len(tokens))
    covered = np.bincount(parent[below], items.row_count[below], len(tokens))
    # Rows that end in a run would need an item of their own in its place.
    able = (items.row_count > 1) & (covered == items.row_count)
    if not (able & ((parts - 1) * tokens <= saved)).any():
        return items
    inherited = [list[int]() for _ in tokens]
    folded = np.zeros(len(tokens), bool)
    for index in range(len(tokens)):
        above = int(parent[index])
        if above >= 0 and folded[above]:
            inherited[index] = [*inherited[above], above]
        if able[index]:
            length = sum(int(tokens[i]) for i in (*inherited[index], index))
            folded[index] = (parts[index] - 1) * length <= saved[index]
    chunks, starts, counts = [items.chunks], items.first_chunk.copy(), items.chunk_count.copy()
    at = len(items.chunks)
    for index in np.flatnonzero(~folded).tolist():
        if inherited[index]:
            pieces = [
                items.chunks[items.first_chunk[i] : items.first_chunk[i] + items.chunk_count[i]]
                for i in (*inherited[index], index)
            ]
            chunks += pieces
            starts[index], counts[index] = at, sum(map(len, pieces))
            at += int(counts[index])
    whole = items._replace(chunks=np.concatenate(chunks), first_chunk=starts, chunk_count=counts)
    return whole.take(np.flatnonzero(~folded))


def split_rows(items: Items, shape: Shape) -> Items:
    """Cut items of more rows than a tile takes; the parts stay neighbours, so that K and V come from the L2 cache."""
    parts = -(-items.row_count // (shape.lanes // shape.group))
    if (parts == 1).all():
        return items
    index, _, first, count = split(items.first_row, items.row_count, parts)
    return items.take(index)._replace(first_row=first, row_count=count)


def find_tails(items: Items, batch: int) -> npt.NDArray[np.bool_]:
    """Which items are a row's own and only one of the several that it has: the merge can go on with them."""
    single = items.row_count == 1
    own = items.rows[items.first_row]
    touched = np.bincount(items.rows[ranges(items.first_row, items.row_count)], minlength=batch)
    alone = np.bincount(own[single], minlength=batch)
    found: npt.NDArray[np.bool_] = single & (touched[own] > 1) & (alone[own] == 1)
    return found


def split_keys(items: Items, shape: Shape) -> Items:
    """Cut long runs so that every multiprocessor gets its share, and sort items by cost, the most expensive first."""
    if len(items.row_count) == 0:
        return items
    tokens = items.chunk_count * shape.chunk_size
    if items.row_count.max() * shape.group <= shape.narrow:
        shape = shape._replace(blocks=shape.narrow_blocks)
    share = (tokens + ITEM_TOKENS).sum() * shape.kv_heads / (shape.multiprocessors * shape.blocks)
    # One row for each number of waves.
    parts = np.rint(tokens * (np.array(WAVES)[:, None] / max(1.0, share))).astype(np.int64)
    np.clip(parts, 1, items.chunk_count, out=parts)
    estimates = _estimates(items, parts, shape)
    # Finer only where it gains something.
    best = parts[np.argmax(estimates <= 1.01 * estimates.min())]
    if best.max() > 1:
        index, is_last, first, count = split(items.first_chunk, items.chunk_count, best)
        items = items.take(index)._replace(
            first_chunk=first, chunk_count=count, tail_row=np.where(is_last, items.tail_row[index], -1)
        )
    return items.take(np.argsort(-items.chunk_count, kind="stable"))


def _estimates(items: Items, parts: Ints, shape: Shape) -> npt.NDArray[np.float64]:
    """How long the items take, in tokens that a multiprocessor reads, when cut into `parts` `[cuts, items]` each.

    All blocks share the memory's bandwidth, of which a multiprocessor can draw about twice its even share. So what is
    lost is the end, where few multiprocessors are still busy, and whatever never was. Parts also write partial results.
    """
    slots = shape.multiprocessors * shape.blocks
    heads = np.minimum(items.row_count * shape.group, shape.lanes) * shape.head_tokens
    per_processor = shape.kv_heads / shape.multiprocessors
    counts = parts.sum(1)
    programs = counts * shape.kv_heads
    reading = (items.chunk_count.sum() * shape.chunk_size + counts * ITEM_TOKENS) * per_processor
    idle = np.maximum(0.0, 1 - programs / shape.multiprocessors)
    least = (items.chunk_count // parts).min(1) * shape.chunk_size + ITEM_TOKENS
    left_over = np.where(programs > slots, programs % slots, 0)
    end = np.maximum(0.0, shape.blocks / 2 - left_over / shape.multiprocessors) * least * (left_over > 0)
    merging = (np.where(parts > 1, parts, 0) @ heads) * per_processor
    found: npt.NDArray[np.float64] = reading * (1 + idle) + end + merging
    return found


def _arrays(items: Items, table: npt.NDArray[np.int32]) -> Descriptors:
    """Number partial results and list those of each row; items whose rows have no other write the output."""
    batch = len(table)
    widths = items.row_count
    members = items.rows[ranges(items.first_row, widths)]
    touched = np.bincount(members, minlength=batch) + (table[:, 3] > 0)
    several = np.zeros(len(widths), bool)
    several[np.repeat(np.arange(len(widths)), widths)[touched[members] > 1]] = True
    left = np.where(several, widths, 0)
    slots = np.cumsum(left) - left
    columns = np.zeros((len(widths), 8), np.int32)
    columns[:, 0], columns[:, 1] = items.first_chunk, items.chunk_count
    columns[:, 2], columns[:, 3] = items.first_row, widths
    columns[:, 4], columns[:, 5] = np.where(several, slots, -1), items.tail_row
    owners = items.rows[ranges(items.first_row[several], widths[several])]
    table[:, 1] = counts = np.bincount(owners, minlength=batch)
    table[:, 0] = np.cumsum(counts) - counts
    return Descriptors(
        items=columns,
        order=items.rows.astype(np.int32),
        rows=table,
        folds=np.argsort(owners, kind="stable").astype(np.int32),
        chunks=items.chunks,
    )
