"""The plan: which chunks exist, and which sequences cover each of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from chunkbench.kvcache.integers import Ints, ranges


class Segment(NamedTuple):
    """A maximal run of consecutive chunks on a path, all covered by the same sequences."""

    chunks: Ints
    """Chunk ids `[m]`, in token order."""
    begin: int
    end: int
    """The sequences `[begin, end)` in depth-first order cover the segment."""


class Growth(NamedTuple):
    """How a plan differs from the plan before: each of these rows got one new last chunk."""

    previous: int
    """`version` of the plan before."""
    rows: Ints
    chunks: Ints


_versions = count()


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
    """`[segments]`: the sequences `[begin, end)` in depth-first order cover the segment."""
    order: Ints
    """`[b]`: row (index in order of addition) of the sequence at each depth-first position."""
    chunks_by_slot: Ints
    tokens_by_slot: Ints
    """The tree's own arrays: id of each sequence's last chunk, and the number of tokens in that chunk."""
    slots: Ints | slice
    """`[b]`: the slot of each row."""
    growth: Growth | None = None
    """The difference from the plan before; None where the tree was walked anew or a row got several chunks."""
    version: int = field(default_factory=_versions.__next__)
    """A number unique to this plan."""

    def grown(self, rows: Ints, chunks: Ints) -> Plan | None:
        """The plan after these rows got new last chunks; a row that occurs several times got several.

        None if a row had no segment of its own, because the forest then gets a new segment. This takes a fraction of
        the time of a walk over the forest, and at almost every step of a busy server some sequence begins a chunk.
        """
        segments = self._own_segments[rows]
        if (segments < 0).any():
            return None
        shifts = np.bincount(segments + 1, minlength=len(self.starts))
        all_chunks = np.insert(self.chunks, self.starts[segments + 1], chunks)
        distinct = len(np.unique(rows)) == len(rows)
        growth = Growth(self.version, rows, chunks) if distinct else None
        starts = self.starts + np.cumsum(shifts)
        plan = replace(self, chunks=all_chunks, starts=starts, growth=growth, version=next(_versions))
        plan.__dict__["_own_segments"] = self._own_segments  # still valid
        return plan

    def growth_from(self, version: int) -> Growth | None:
        """The difference from the plan with this version; None if this plan did not grow from it in one step."""
        return self.growth if self.growth is not None and self.growth.previous == version else None

    def only(self, rows: Ints) -> Plan:
        """The plan of these rows alone, numbered in this order. Chunks that none of them covers are left out."""
        new_rows = np.full(len(self.order), -1)
        new_rows[rows] = np.arange(len(rows))
        order = new_rows[self.order]
        kept = order >= 0
        before = np.concatenate([[0], np.cumsum(kept)])
        begins, ends = before[self.begins], before[self.ends]
        covered = ends > begins
        lengths = np.diff(self.starts)[covered]
        return Plan(
            self.chunk_size,
            self.chunks[ranges(self.starts[:-1][covered], lengths)],
            np.concatenate([[0], np.cumsum(lengths)]),
            begins[covered],
            ends[covered],
            order[kept],
            self.chunks_by_slot,
            self.tokens_by_slot,
            np.arange(self.slots.stop)[rows] if isinstance(self.slots, slice) else self.slots[rows],
        )

    @property
    def last_chunks(self) -> Ints:
        """`[b]`, by row: id of the sequence's last chunk."""
        return self.chunks_by_slot[self.slots]

    @property
    def last_tokens(self) -> Ints:
        """`[b]`, by row: current number of tokens in that chunk, 1..chunk_size."""
        return self.tokens_by_slot[self.slots]

    @cached_property
    def _own_segments(self) -> Ints:
        """`[b]`, by row: the segment that only this row's sequence covers, or -1."""
        single = np.flatnonzero(self.ends - self.begins == 1)
        own = np.full(len(self.order), -1)
        own[self.order[self.begins[single]]] = single
        return own

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments as objects."""
        starts, begins, ends = self.starts.tolist(), self.begins.tolist(), self.ends.tolist()
        ranges = zip(pairwise(starts), begins, ends, strict=True)
        return tuple(Segment(self.chunks[start:stop], begin, end) for (start, stop), begin, end in ranges)

    def tokens(self, segment: Segment) -> int:
        """Number of tokens that the segment holds now."""
        full = len(segment.chunks) * self.chunk_size
        if segment.end - segment.begin > 1:
            return full
        row = self.order[segment.begin]
        if self.last_chunks[row] != segment.chunks[-1]:
            return full
        return full - self.chunk_size + int(self.last_tokens[row])
