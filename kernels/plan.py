"""The plan: which chunks exist, and which sequences cover each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from chunkbench.kernels.integers import Ints, ranges


class Segment(NamedTuple):
    """A maximal run of consecutive chunks on a path, all covered by the same sequences."""

    chunks: Ints
    """Chunk ids `[m]`, in token order."""
    begin: int
    end: int
    """The sequences at depth-first positions `begin` to `end - 1` cover the segment."""


@dataclass(frozen=True)
class Plan:
    """Segments in depth-first order (parents before children), and how sequences map to rows.

    The structure is fixed, but the lengths are not. Only the last chunk of a sequence can be partial, and only one
    sequence covers a partial chunk. So all lengths follow from `last_tokens`, which reads the tree's own array, and a
    plan stays valid while tokens are appended inside chunks. When chunks or sequences come or go, the tree makes a new
    plan.
    """

    chunk_size: int
    chunks: Ints
    """Chunk ids of all segments, segment by segment."""
    starts: Ints
    """`[segments + 1]`: where each segment starts in `chunks`, and where the last segment ends."""
    begins: Ints
    ends: Ints
    """`[segments]`: the sequences at depth-first positions `begins[i]` to `ends[i] - 1` cover segment i."""
    order: Ints
    """`[b]`: row (index in order of addition) of the sequence at each depth-first position."""
    chunks_by_slot: Ints
    tokens_by_slot: Ints
    """`[slots]`: number of tokens in each sequence's last chunk. `chunks_by_slot` has the ids of these chunks. Both are
    the tree's own arrays."""
    slots: Ints | slice
    """`[b]`: the slot of each row."""

    def growth_since(self, before: Plan) -> tuple[Ints, Ints] | None:
        """Compare with an earlier plan: if some rows each got one new last chunk, return these rows and chunks. None if
        anything else changed."""
        same = ((self.begins, before.begins), (self.ends, before.ends), (self.order, before.order))
        if not all(np.array_equal(now, then) for now, then in same):
            return None
        added = self.lengths - before.lengths
        grown = np.flatnonzero(added)
        begins, last = self.begins[grown], self.starts[grown + 1] - 1
        if (added[grown] != 1).any() or (self.ends[grown] - begins != 1).any():
            return None
        if not np.array_equal(np.delete(self.chunks, last), before.chunks):
            return None
        return self.order[begins], self.chunks[last]

    def only(self, rows: Ints) -> Plan:
        """A plan of only these rows, numbered in this order. Chunks that none of these rows covers are left out."""
        new_rows = np.full(len(self.order), -1)
        new_rows[rows] = np.arange(len(rows))
        order = new_rows[self.order]
        kept_rows = order >= 0
        before = np.concatenate([[0], np.cumsum(kept_rows)])
        begins, ends = before[self.begins], before[self.ends]
        covered = ends > begins
        lengths = self.lengths[covered]
        return Plan(
            self.chunk_size,
            self.chunks[ranges(self.starts[:-1][covered], lengths)],
            np.concatenate([[0], np.cumsum(lengths)]),
            begins[covered],
            ends[covered],
            order[kept_rows],
            self.chunks_by_slot,
            self.tokens_by_slot,
            np.arange(self.slots.stop)[rows] if isinstance(self.slots, slice) else self.slots[rows],
        )

    @property
    def lengths(self) -> Ints:
        """`[segments]`: number of chunks of each segment."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def last_chunks(self) -> Ints:
        """`[b]`, by row: id of the sequence's last chunk."""
        return self.chunks_by_slot[self.slots]

    @property
    def last_tokens(self) -> Ints:
        """`[b]`, by row: current number of tokens in the sequence's last chunk, 1..chunk_size."""
        return self.tokens_by_slot[self.slots]

    @cached_property
    def parents(self) -> Ints:
        """`[segments]`: the parent of each segment in the prefix tree, as an index. -1 if it has no parent."""
        parents = np.full(len(self.begins), -1)
        behind = np.full(len(self.order), -1)  # by position: the last segment so far
        widths = self.ends - self.begins
        shared, own = np.flatnonzero(widths > 1), np.flatnonzero(widths == 1)
        spans = zip(shared.tolist(), self.begins[shared].tolist(), self.ends[shared].tolist(), strict=True)
        for segment, begin, end in spans:
            parents[segment] = behind[begin]
            behind[begin:end] = segment
        at = self.begins[own]
        parents[own] = behind[at]
        # A plan of only some rows may have several segments of one row, one after the other.
        again = np.flatnonzero(at[1:] == at[:-1])
        parents[own[again + 1]] = own[again]
        return parents

    @cached_property
    def before(self) -> Ints:
        """`[segments]`: number of chunks of the segments before each segment in the prefix tree."""
        lengths, above = self.lengths, self.parents
        before = np.zeros(len(above), np.int64)
        while (has_parent := above >= 0).any():
            before += np.where(has_parent, lengths[above], 0)
            above = np.where(has_parent, self.parents[above], -1)
        return before

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        starts, begins, ends = self.starts.tolist(), self.begins.tolist(), self.ends.tolist()
        ranges = zip(pairwise(starts), begins, ends, strict=True)
        return tuple(Segment(self.chunks[start:stop], begin, end) for (start, stop), begin, end in ranges)

    @property
    def tail_rows(self) -> Ints:
        """`[segments]`: the row that ends in the last chunk of each segment; -1 if this chunk is full."""
        rows = self.order[self.begins]
        ends_inside = (self.ends - self.begins == 1) & (self.last_chunks[rows] == self.chunks[self.starts[1:] - 1])
        return np.where(ends_inside, rows, -1)

    @property
    def tokens(self) -> Ints:
        """`[segments]`: current number of tokens of each segment."""
        tails = self.tail_rows
        return self.lengths * self.chunk_size - np.where(tails < 0, 0, self.chunk_size - self.last_tokens[tails])
