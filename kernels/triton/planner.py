"""Plans for the GPU kernels: which runs of chunks are multiplied with which rows, in which order. Integers only.

The unit of cost is a token that one block reads for one KV head. An item runs once per KV head, so the planner cuts the
work of one head.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.kernels.integers import Bools, Ints
from chunkbench.kernels.items import ITEM_COLUMNS, Items, number_partials
from chunkbench.kernels.planners import Costs

ITEM_TOKENS = 24
"""Fixed cost of an item besides its tokens: start, load of the queries, write."""
TAIL_TOKENS = 64
"""Largest number of tokens in a tail. A tail is a short run of chunks that only one row reads. The merge reads it if
the row needs a merge anyway."""
WAVES = (0.6, 0.9, 1, 1.9, 3, 5, 8)
"""Cuts that the planner compares. The value of a cut is its approximate number of programs, divided by the number of
blocks that run at the same time."""


class Shape(NamedTuple):
    """The attention shape and the machine for which a plan is made."""

    kv_heads: int
    group: int
    """Query heads per KV head."""
    chunk_size: int
    multiprocessors: int
    blocks: int
    """Blocks that a multiprocessor runs at the same time."""
    narrow_blocks: int
    """Blocks that a multiprocessor runs at the same time if no item of the plan needs the large tile."""
    narrow: int
    """Query heads of the small tile."""
    lanes: int
    """Query heads of the large tile."""
    head_tokens: float
    """Cost of writing and reading one float32 vector `[d of V]`. The unit is the cost of reading one token. 2 for
    16-bit K and V."""
    tail_tokens: int = TAIL_TOKENS
    """Largest number of tokens in a tail; 0: the merge reads none."""
    growth: int = 8
    """Number of chunks that can be added to a row before the planner must make a new plan."""

    @property
    def costs(self) -> Costs:
        """Costs for `two_phase`: a block reads a token in the same time for any number of queries."""
        return Costs(ITEM_TOKENS, self.head_tokens, chunk=0, reread_queries=1, hidden_queries=np.inf, fewest_queries=0)


ITEM = np.dtype([(name, np.int32) for name in ITEM_COLUMNS])


class Descriptors(NamedTuple):
    """The work descriptors that the kernels read; see `attention.partial_results`."""

    items: npt.NDArray[np.void]
    """`[items]`, dtype ITEM. These items fold in no partial results."""
    order: npt.NDArray[np.int32]
    """`[positions]`: rows, listed item by item. `first_row` of an item is an index in this array."""
    rows: npt.NDArray[np.void]
    """`[b]`, dtype ITEM: the work of `merge_rows` for each row. The chunks of such an item are the row's tail."""
    folds: npt.NDArray[np.int32]
    """Indices of the partial results that `merge_rows` folds in, row by row."""
    chunks: Ints
    """Chunk ids. The items' ranges refer to this array."""

    @property
    def slots(self) -> int:
        """Number of partial results that the items write."""
        return len(self.folds)

    @property
    def merges(self) -> bool:
        """Whether any row needs `merge_rows`."""
        return bool((self.rows["folds"] | self.rows["chunk_count"]).any())

    def widest(self) -> int:
        """Number of rows of the widest item."""
        return int(self.items["row_count"].max(initial=0))


def describe(items: Items, batch: int, shape: Shape, more: Bools | None = None) -> Descriptors:
    """Cut and order items for a machine. Every key of every row is in exactly one item or tail. `more` `[b]`: rows that
    `merge_rows` gives something else to read, so that their items must leave partial results."""
    items = items.split_rows(shape.lanes // shape.group)
    # The merge can take over the only own item of a row that has other items, too. It must be the end of the sequence:
    # of a shared run that was cut by rows, a part can have one row, too.
    short = items.chunk_count * shape.chunk_size <= shape.tail_tokens
    tails = items.only_own(batch) & (items.tail_row >= 0) & short
    if tails.any():
        tails &= items.divided(items.of_rows(batch))
    rows, own = np.zeros(batch, ITEM), items.rows[items.first_row[tails]]
    for name in ("first_chunk", "chunk_count", "before"):
        rows[name][own] = getattr(items, name)[tails]

    items = split_keys(items.take(np.flatnonzero(~tails)), shape)
    parts = items.of_rows(batch) + (rows["chunk_count"] > 0) + (0 if more is None else more)
    partials = number_partials(items, items.divided(parts), batch)
    rows["first_fold"], rows["folds"] = partials.first_fold, partials.folds
    return Descriptors(
        items=items.table(ITEM, partials.first),
        order=items.rows.astype(np.int32),
        rows=rows,
        folds=partials.by_row.astype(np.int32),
        chunks=items.chunks,
    )


def spread(work: Descriptors, shape: Shape) -> Ints:
    """Leave free room in the array of chunks after every run that only one row reads, so that these runs can grow.
    Returns the new index of each chunk."""
    own, room = (work.items[work.items["tail_row"] >= 0], work.rows[work.rows["chunk_count"] > 0]), shape.growth
    ends = np.sort(np.concatenate([runs["first_chunk"] + runs["chunk_count"] for runs in own]))
    for runs in (work.items, work.rows):
        runs["first_chunk"] += room * np.searchsorted(ends, runs["first_chunk"], side="right").astype(np.int32)
    places = np.arange(len(work.chunks))
    return places + room * np.searchsorted(ends, places, side="right")


def room_to_grow(work: Descriptors, own: Ints, shape: Shape) -> Ints:
    """`[b]`: number of chunks that can be added to each row after `spread`.

    `own` `[b]`: the item that only this row has, or -1 if there is none. Then the row can grow only if it has a tail. A
    tail can grow to twice `tail_tokens`.
    """
    longest, chunks = 2 * shape.tail_tokens // shape.chunk_size, work.rows["chunk_count"]
    tails = np.where(chunks > 0, np.clip(longest - chunks, 0, shape.growth), 0)
    return np.where(own >= 0, shape.growth, tails)


def split_keys(items: Items, shape: Shape) -> Items:
    """Cut long runs so that every multiprocessor gets its share, and sort items by cost, most expensive first."""
    if len(items.row_count) == 0:
        return items
    tokens = items.chunk_count * shape.chunk_size
    if items.row_count.max() * shape.group <= shape.narrow:
        shape = shape._replace(blocks=shape.narrow_blocks)
    share = (tokens + ITEM_TOKENS).sum() * shape.kv_heads / (shape.multiprocessors * shape.blocks)
    # One row per candidate of WAVES.
    parts = np.rint(tokens * (np.array(WAVES)[:, None] / max(1.0, share))).astype(np.int64)
    np.clip(parts, 1, items.chunk_count, out=parts)
    estimates = _estimates(items, parts, shape)
    # The coarsest cut within 1% of the best estimate.
    best = parts[np.argmax(estimates <= 1.01 * estimates.min())]
    if best.max() > 1:
        items = items.split_chunks(best)
    return items.take(np.argsort(-items.chunk_count, kind="stable"))


def _estimates(items: Items, parts: Ints, shape: Shape) -> npt.NDArray[np.float64]:
    """Estimated time of each candidate cut `parts` `[cuts, items]`, in tokens that a multiprocessor reads.

    All blocks share the memory bandwidth, and a multiprocessor can draw about twice its even share. So time is lost
    only at the end, when few multiprocessors are still busy, or if some never get work. Parts also write partial
    results.
    """
    slots = shape.multiprocessors * shape.blocks
    heads = np.minimum(items.row_count * shape.group, shape.lanes) * shape.head_tokens
    per_processor = shape.kv_heads / shape.multiprocessors
    counts = parts.sum(1)
    programs = counts * shape.kv_heads
    reading = (items.chunk_count.sum() * shape.chunk_size + counts * ITEM_TOKENS) * per_processor
    idle = np.maximum(0.0, 1 - programs / shape.multiprocessors)
    shortest = (items.chunk_count // parts).min(1) * shape.chunk_size + ITEM_TOKENS
    left_over = np.where(programs > slots, programs % slots, 0)
    end = np.maximum(0.0, shape.blocks / 2 - left_over / shape.multiprocessors) * shortest * (left_over > 0)
    merging = (np.where(parts > 1, parts, 0) @ heads) * per_processor
    estimates: npt.NDArray[np.float64] = reading * (1 + idle) + end + merging
    return estimates
