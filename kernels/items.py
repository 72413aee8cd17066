"""Items: runs of chunks and the rows that cover these chunks, before a planner cuts the items for a machine. Integers
only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chunkbench.kernels.integers import Bools, Ints, any_inside, ranges
from chunkbench.kernels.plan import Plan


class Items(NamedTuple):
    """Runs of chunks and the rows that cover them. Item i has `chunk_count[i]` of `chunks`, starting at index
    `first_chunk[i]`, and `row_count[i]` of `rows`, starting at index `first_row[i]`."""

    chunks: Ints
    rows: Ints
    first_chunk: Ints
    chunk_count: Ints
    first_row: Ints
    row_count: Ints
    tail_row: Ints
    """`[items]`: the longest row that ends inside the item's last chunk. Then each row of the item reads this chunk up
    to the row's own end. -1 if all rows of the item read this chunk to its end."""
    before: Ints
    """`[items]`: number of chunks before the first one in the sequence of each row."""

    def take(self, index: Ints) -> Items:
        return Items(self.chunks, self.rows, *(column[index] for column in self[2:]))

    def split_rows(self, most: int) -> Items:
        """Cut the items into parts of at most `most` rows. The parts of an item have nearly equal numbers of rows and
        stay adjacent."""
        parts = -(-self.row_count // most)
        if (parts == 1).all():
            return self
        index, _, first, count = _split(self.first_row, self.row_count, parts)
        return self.take(index)._replace(first_row=first, row_count=count)

    def split_chunks(self, parts: Ints) -> Items:
        """Split item i into `parts[i]` items with nearly equal numbers of chunks. The last part has the tail row."""
        index, is_last, first, count = _split(self.first_chunk, self.chunk_count, parts)
        tails = np.where(is_last, self.tail_row[index], -1)
        before = self.before[index] + first - self.first_chunk[index]
        return self.take(index)._replace(first_chunk=first, chunk_count=count, tail_row=tails, before=before)

    def of_rows(self, batch: int) -> Ints:
        """`[b]`: number of items of each row."""
        return np.bincount(self.rows[ranges(self.first_row, self.row_count)], minlength=batch)

    def divided(self, of_rows: Ints) -> Bools:
        """`[items]`: whether any row of the item also occurs in other items. `of_rows` `[b]`: number of items of each
        row."""
        return any_inside(of_rows[self.rows] > 1, self.first_row, self.row_count)

    def only_own(self, batch: int) -> Bools:
        """`[items]`: whether the item has only one row and is the only such item of this row."""
        row, single = self.rows[self.first_row], self.row_count == 1
        only: Bools = single & (np.bincount(row[single], minlength=batch)[row] == 1)
        return only

    def table(self, dtype: np.dtype[np.void], first_partial: Ints) -> npt.NDArray[np.void]:
        """`[items]`: the items with the columns that kernels read (ITEM_COLUMNS). Columns that `Items` does not have
        are 0."""
        made = np.zeros(len(self.row_count), dtype)
        made["first_partial"] = first_partial
        for name in self._fields[2:]:
            made[name] = getattr(self, name)
        return made


ITEM_COLUMNS = (*Items._fields[2:], "first_partial", "first_fold", "folds")
"""The columns of an item that kernels read. The first are those of `Items`. `first_partial`: index of the first partial
result that the item writes, or -1 if it writes outputs. `first_fold`, `folds`: the range of `Numbering.by_row` that the
item folds in."""


class Numbering(NamedTuple):
    """Indices of partial results, listed by item and by row."""

    first: Ints
    """`[items]`: index of each item's first partial result, -1 if the item has none."""
    by_row: Ints
    """All indices, row by row."""
    first_fold: Ints
    """`[b]`: position in `by_row` at which the indices of each row begin."""
    folds: Ints
    """`[b]`: number of partial results of each row."""


def number_partials(items: Items, leaves: Bools, batch: int) -> Numbering:
    """Give an index to each partial result. If `leaves[i]` is true, item i writes one partial result for each of its
    rows, else none."""
    counts = np.where(leaves, items.row_count, 0)
    owners = items.rows[ranges(items.first_row, counts)]
    folds = np.bincount(owners, minlength=batch)
    first = np.where(leaves, np.cumsum(counts) - counts, -1)
    return Numbering(first, np.argsort(owners, kind="stable"), np.cumsum(folds) - folds, folds)


def items_of_forest(plan: Plan, merged: Bools) -> Items:
    """Make the items of a forest, in depth-first order. `merged` `[segments]` comes from `planners`.

    An item reads a segment. If this segment is merged, the item also reads the segment before it, and so on. The rows
    of the item are those whose path ends with the segment, or continues with a segment that is not merged. If all flags
    of `merged` are true, also those of segments that begin a sequence, each row has its own item.
    """
    lengths = plan.lengths
    if not merged.any():
        widths = plan.ends - plan.begins
        tails = plan.tail_rows
        return Items(plan.chunks, plan.order, plan.starts[:-1], lengths, plan.begins, widths, tails, plan.before)
    parents, alone = plan.parents, merged.all()
    merged = merged & (parents >= 0)
    # A row belongs to the items of its last segment, and of each segment before one that is not merged.
    widths = plan.ends - plan.begins
    positions, segments = ranges(plan.begins, widths), np.repeat(np.arange(len(widths)), widths)
    by_row = np.argsort(positions, kind="stable")
    path, rows = segments[by_row], positions[by_row]
    leaves = np.append(rows[1:] == rows[:-1], False)[: len(rows)] & np.append(merged[path[1:]], False)[: len(rows)]
    reads = np.ones(len(rows), np.bool_)
    reads[by_row[leaves]] = False
    counts = np.bincount(segments[reads], minlength=len(widths))
    own = np.flatnonzero(counts)
    # The segments of each item: its last segment, and those before it up to the first that is not merged.
    item, segment = np.arange(len(own)), own
    found = [(item, segment)]
    while (goes_on := merged[segment]).any():
        item, segment = item[goes_on], parents[segment[goes_on]]
        found.insert(0, (item, segment))
    item, segment = (np.concatenate(parts) for parts in zip(*found, strict=True))
    listed, segments_of = segment[np.argsort(item, kind="stable")], np.bincount(item)
    chunk_count = np.bincount(item, lengths[segment], len(own)).astype(np.int64)
    row_count = counts[own]
    items = Items(
        chunks=plan.chunks[ranges(plan.starts[listed], lengths[listed])],
        rows=plan.order[positions[reads]],
        first_chunk=np.cumsum(chunk_count) - chunk_count,
        chunk_count=chunk_count,
        first_row=np.cumsum(row_count) - row_count,
        row_count=row_count,
        tail_row=plan.tail_rows[own],
        before=plan.before[listed[np.cumsum(segments_of) - segments_of]],
    )
    if not alone:
        return items
    single = items.split_rows(1)
    return single._replace(tail_row=single.rows[single.first_row])


def items_of_tables(chunks: Ints, counts: Ints, rows: Ints) -> Items:
    """One item for each of `rows` `[b]`. `chunks` lists the chunks row by row: `counts[i]` chunks for `rows[i]`."""
    first, none = np.cumsum(counts) - counts, np.zeros_like(counts)
    return Items(chunks, rows, first, counts, np.arange(len(rows)), np.ones_like(counts), rows, none)


@dataclass(frozen=True)
class PromptRows:
    """Consecutive tokens of one sequence whose queries are computed together. Each query attends to all tokens up to
    its own."""

    chunks: Ints
    """Chunk ids of the sequence, in token order."""
    first: int
    """Position of the first of these tokens in the sequence."""
    count: int


def items_of_prompts(
    prompts: Sequence[PromptRows], chunk_size: int, first_row: int, window: int | None = None
) -> tuple[Items, Ints]:
    """Make items for causal attention of prompts. The rows are numbered from `first_row` on, prompt by prompt.

    There is one item for the tokens of each chunk. Its rows read the sequence up to this chunk. In the last chunk, each
    row reads a different number of tokens. Also returns these numbers `[rows]`, 1..chunk_size. `window`: tokens that a
    row reads, its own included; chunks before the windows of all rows of an item are left out.
    """
    positions = np.concatenate([np.arange(p.first, p.first + p.count) for p in prompts])
    prompt = np.repeat(np.arange(len(prompts)), [p.count for p in prompts])
    starts = np.cumsum([0, *(len(p.chunks) for p in prompts)])[prompt]
    rows = first_row + np.arange(len(positions))
    chunks = np.concatenate([p.chunks for p in prompts])
    items = _items_of_lengths(chunks, starts, rows, positions + 1, chunk_size)
    if window is not None:
        outside = np.maximum(0, positions[items.first_row] - window + 1) // chunk_size
        counts = items.chunk_count - outside
        items = items._replace(first_chunk=items.first_chunk + outside, chunk_count=counts, before=outside)
    return items, positions % chunk_size + 1


def items_of_lengths(chunks: Ints, tokens: int, lengths: Ints, chunk_size: int) -> tuple[Items, Ints]:
    """Items of n rows over the same chunks, which hold `tokens` tokens. Row i reads the first `lengths[i]` tokens.

    Lengths must not decrease. Rows with length 0 have no item. Also returns `[n + 2]`: number of tokens that each row
    reads of its last chunk, 1..chunk_size. Entries n and n + 1 belong to no row: the items have them as tail rows. They
    are the numbers of tokens that a full chunk and the last of `chunks` hold. The kernels need them to read a chunk as
    it was written.
    """
    rows, count = np.flatnonzero(lengths), len(lengths)
    items = _items_of_lengths(chunks, np.zeros_like(rows), rows, lengths[rows], chunk_size)
    tails = np.where(items.chunk_count == len(chunks), count + 1, count)
    return items._replace(tail_row=tails), (np.append(lengths, (chunk_size, tokens)) - 1) % chunk_size + 1


def _items_of_lengths(chunks: Ints, starts: Ints, rows: Ints, lengths: Ints, chunk_size: int) -> Items:
    """Items of consecutive rows whose sequence begins at the same chunk and ends in the same one."""
    last = (lengths - 1) // chunk_size
    changes = (np.diff(last) != 0) | (np.diff(starts) != 0)
    blocks = np.flatnonzero(np.append(np.ones(min(1, len(rows)), bool), changes))
    widths = np.diff(np.append(blocks, len(rows)))
    return Items(
        chunks=chunks,
        rows=rows,
        first_chunk=starts[blocks],
        chunk_count=last[blocks] + 1,
        first_row=blocks,
        row_count=widths,
        tail_row=rows[blocks + widths - 1],
        before=np.zeros_like(blocks),
    )


def together(first: Items, second: Items) -> Items:
    """Combine two sets of items into one."""
    chunks, rows = len(first.chunks), len(first.rows)
    moved = second._replace(first_chunk=second.first_chunk + chunks, first_row=second.first_row + rows)
    return Items(*(np.concatenate(pair) for pair in zip(first, moved, strict=True)))


def _split(first: Ints, count: Ints, parts: Ints) -> tuple[Ints, Bools, Ints, Ints]:
    """Cut range i into `parts[i]` pieces whose lengths differ by at most one.

    Returns for each piece: the index of its range, whether it is the last piece of that range, its begin, its length.
    """
    index = np.repeat(np.arange(len(parts)), parts)
    piece = ranges(np.zeros_like(parts), parts)
    size, longer = (count // parts)[index], (count % parts)[index]
    begin = first[index] + piece * size + np.minimum(piece, longer)
    return index, piece == parts[index] - 1, begin, size + (piece < longer)
